"""How good a model is, and what the paper's theory says about it."""

from fedaws.evaluate.measures import Measure, TestSet, evaluate, own_measures
from fedaws.evaluate.model import Model

__all__ = ["Measure", "Model", "TestSet", "evaluate", "own_measures"]
