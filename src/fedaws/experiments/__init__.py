"""Several runs: comparisons, the paper's tables, and what they are compared with."""
