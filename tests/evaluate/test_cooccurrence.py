"""What share of mined neighbours are positives too: by hand, and by a plain loop."""

import pytest
import torch
import torch.nn.functional as F

from fedaws.evaluate.cooccurrence import cooccurrence
from fedaws.sparse import from_lists

# Classes at 0°, 10°, 30°, 90° and 180°: the nearest are 0 → 1, 1 → 0, 2 → 1, 3 → 2, 4 → 3.
ANGLES = torch.deg2rad(torch.tensor([0.0, 10.0, 30.0, 90.0, 180.0]))
W = torch.stack([ANGLES.cos(), ANGLES.sin()], 1)
# 0 and 1 together in one of the three examples with 0 and in one of the two with 1; 2 with 3 in the only one of each.
SETS = from_lists([[0, 1], [0], [0], [1], [2, 3], [], [4]], width=5)


def test_the_nearest_by_hand() -> None:
    share, frequency = cooccurrence(W, SETS, 1)
    assert share == pytest.approx(3 / 5)  # 0 → 1, 1 → 0, 3 → 2
    assert frequency == pytest.approx((1 / 3 + 1 / 2 + 1) / 5)


def test_all_classes_by_hand() -> None:
    share, frequency = cooccurrence(W, SETS, None)
    assert share == pytest.approx(4 / 20)
    assert frequency == pytest.approx((1 / 3 + 1 / 2 + 1 + 1) / 20)


def test_a_class_without_examples_is_nobodys_but_can_be_a_neighbour() -> None:
    sets = from_lists([[1], [1, 3], [3]], width=5)
    assert cooccurrence(W, sets, 1).share == 0  # 1 → 0, 3 → 2
    assert cooccurrence(W, sets, 3).share == pytest.approx(2 / 6)  # 1 → 0, 2, 3 and 3 → 2, 1, 0


def test_it_is_what_a_plain_loop_finds() -> None:
    rng = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(12, 3, generator=rng), dim=1)
    drawn = [(torch.rand(12, generator=rng) < 0.2).nonzero().ravel().tolist() for _ in range(30)]
    sets = [set(labels) for labels in drawn]
    hits, often, pairs = 0, 0.0, 0
    for c in range(12):
        order = sorted((y for y in range(12) if y != c), key=lambda y: -float(vectors[c] @ vectors[y]))
        own = [labels for labels in sets if c in labels]
        for y in order[:4]:
            both = sum(y in labels for labels in own)
            hits, often, pairs = hits + (both > 0), often + both / len(own), pairs + 1
    found = cooccurrence(vectors, from_lists(drawn, width=12), 4)
    assert found == pytest.approx((hits / pairs, often / pairs))
    everyone = cooccurrence(vectors, from_lists(drawn, width=12), 11)
    assert everyone == pytest.approx(cooccurrence(vectors, from_lists(drawn, width=12), None))
