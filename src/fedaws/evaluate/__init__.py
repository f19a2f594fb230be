"""How good a model is, and what the paper's theory says about it."""

from fedaws.evaluate.measures import evaluate

__all__ = ["evaluate"]
