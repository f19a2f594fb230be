"""Methods whose rows are not trained: the simplex, rows spread once, secret codewords."""

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedaws
from fedaws import Config
from fedaws.core import spreadout
from fedaws.core.methods import feduv, method_of
from fedaws.core.start import random_rows, simplex, spread_first
from helpers import refusal

# The code's length → (degree of its generator, least distance), of the BCH codes (127, 64), (255, 71), (511, 67).
CODES = {127: (63, 21), 255: (184, 59), 511: (444, 175)}


def unit(rows: int, dim: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


# --- fixed rows that are good ones ---


@given(st.integers(2, 12), st.integers(0, 8), st.integers(0, 100))
def test_a_simplex_has_equal_cosines(classes: int, more: int, seed: int) -> None:
    W = simplex(unit(classes, classes - 1 + more, seed))
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    torch.testing.assert_close(W @ W.T, expected, atol=1e-5, rtol=0)


def test_spreading_first_spreads() -> None:
    rows = unit(40, 8)
    cfg = Config(method="fixed-spread", model={"embedding_dim": 8})
    spread = spread_first(rows, spreadout.make_spread(cfg), steps=200, lr=0.3)
    before, after = (float((W @ W.T).fill_diagonal_(-1).max()) for W in (rows, spread))
    assert after < before - 0.2
    torch.testing.assert_close(spread.norm(dim=1), torch.ones(40))


@pytest.mark.parametrize("name", ["fixed", "fixed-spread"])
@pytest.mark.parametrize("classes", [4, 9])  # within d + 1 = 6 and beyond
def test_fixed_rows_never_move(tiny: Config, name: str, classes: int) -> None:
    cfg = tiny.override([f"method={name}", f"data.classes={classes}"])
    first = method_of(cfg).start(random_rows(cfg, classes))
    assert torch.equal(fedaws.train(config=cfg).W, first)


def test_fixed_spread_has_the_simplex_where_it_fits(tiny: Config) -> None:
    W = fedaws.train(config=tiny.override(["method=fixed-spread"])).W
    torch.testing.assert_close(W @ W.T, torch.full((4, 4), -1 / 3).fill_diagonal_(1), atol=1e-5, rtol=0)


# --- FedUV ---


@pytest.mark.parametrize("length", CODES)
def test_a_generator_has_the_degree_that_leaves_the_papers_message(length: int) -> None:
    bits, distance, field = feduv.CODES[length]
    degree = feduv.generator_polynomial(length, distance, field).bit_length() - 1
    assert (degree, distance) == CODES[length]
    assert length - degree == bits


def test_the_generator_of_the_shortest_double_error_correcting_code_is_the_textbooks() -> None:
    # BCH(15, 7, 5) over x⁴ + x + 1: x⁸ + x⁷ + x⁶ + x⁴ + 1 (Lin & Costello, table of codes).
    assert feduv.generator_polynomial(15, 5, 0b10011) == 0b111010001


@pytest.mark.parametrize("length", CODES)
def test_a_generator_divides_x_to_the_length_plus_one(length: int) -> None:
    divisor, rest = feduv.generator_polynomial(length, *feduv.CODES[length][1:]), (1 << length) | 1
    while rest.bit_length() >= divisor.bit_length():
        rest ^= divisor << (rest.bit_length() - divisor.bit_length())
    assert rest == 0


@pytest.mark.parametrize("length", CODES)
def test_codewords_of_any_two_classes_are_as_far_apart_as_the_code_promises(length: int) -> None:
    words = feduv.codewords(unit(2000, length))
    torch.testing.assert_close(words.abs(), torch.full_like(words, length**-0.5))
    scores = (words @ words.T).mul_(length).round_()  # length − 2 × Hamming distance
    apart = (length - scores.fill_diagonal_(-length)) / 2
    assert apart.min() >= CODES[length][1]


def test_two_clients_that_draw_the_same_have_different_codewords() -> None:
    words = feduv.codewords(unit(1, 127).expand(16, 127))
    assert all(not torch.equal(words[a], words[b]) for a, b in combinations(range(16), 2))


def test_the_loss_of_feduv_is_the_papers() -> None:
    # max(0, 1 − (1/c) vᵀσ(g)) with σ(g) = √c g/‖g‖ and v ∈ {±1}^c.
    g, c = torch.randn(5, 127, generator=torch.Generator().manual_seed(3)), 127
    v = feduv.codewords(unit(1, 127))[0] * c**0.5
    for example, loss in zip(g, feduv.linear_hinge(F.normalize(g, dim=1), v * c**-0.5), strict=True):
        sigma = c**0.5 * example / example.square().sum().sqrt()
        assert float(loss) == pytest.approx(max(0.0, 1 - float(v @ sigma) / c), abs=1e-6)


def test_feduv_trains_and_its_codewords_stay(tiny: Config) -> None:
    cfg = tiny.override(["method=feduv", "model.embedding_dim=127", "train.rounds=60"])
    run = fedaws.train(config=cfg)
    assert torch.equal(run.W, feduv.codewords(random_rows(cfg, 4)))
    assert run.metrics[-1]["precision@1"] > 0.8


def test_a_length_without_a_code_is_refused_in_one_line(tiny: Config) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override(["method=feduv"])))
    assert told == "model.embedding_dim=5 is no code's length; wanted 127, 255 or 511 for method=feduv"
