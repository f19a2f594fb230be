"""What can be set of the oracles, apart from them: who only reads settings need not wait for scikit-learn."""

from typing import Literal

from fedaws.config import Count, Positive, Section


class SleecConfig(Section):
    """Of SLEEC."""

    clusters: Count | Literal["auto"] = "auto"  # auto: one for every 6,000 examples
    learners: Count = 1
    dims: Count = 100  # L
    label_neighbors: Count = 50  # n̄
    ridge: Positive = 1.0  # λ
    votes: Count = 25  # neighbours that are asked at prediction
    iterations: Count = 20  # of the singular value projection
