"""The paper, in its order: losses, local steps, aggregation, spreadout, Algorithm 1."""
