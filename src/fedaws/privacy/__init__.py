"""User-level differential privacy: clipping, noise, accounting. Mathematics only; nothing here sends or stores."""
