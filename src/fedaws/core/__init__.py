"""The paper, in its order: losses, local steps, aggregation, spreadout, Algorithm 1."""

from fedaws.core import aggregate, algorithm, local, losses, methods, optimizers, schedule, spreadout

__all__ = ["aggregate", "algorithm", "local", "losses", "methods", "optimizers", "schedule", "spreadout"]
