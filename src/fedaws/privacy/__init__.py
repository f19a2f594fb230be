"""Mathematics of privacy: what is computed so that less is told; no transport."""
