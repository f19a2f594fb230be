"""Rows made from class features: the gradient, and classes that nobody has examples of."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaws
from fedaws import Config
from fedaws.core.losses import positive_hinge
from fedaws.core.method import When
from fedaws.core.methods import class_features, method_of
from fedaws.core.spreadout import spreadout
from fedaws.data import FederatedData, from_arrays
from fedaws.types import ClassFacts
from helpers import refusal

ETA, GAMMA, LAMBDA = 1e-3, 0.5, 2.0


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("hidden", [0, 7])
def test_the_step_on_phi_is_autograds_of_the_whole_objective(hidden: int) -> None:
    # Clients of classes 0, 1, 3 take a small step on their rows; the objective is their mean risk + λ/C of eq. (6).
    features = torch.randn(5, 4, generator=rng())
    options = {"hidden": hidden, "step": GAMMA, "weight": LAMBDA}
    cfg = Config(method="class-features", model={"embedding_dim": 6}, options=options)
    method = method_of(cfg, ClassFacts(features=features))
    assert method.spread is not None
    W = method.start(torch.zeros(5, 6)).double()
    phi = {k: v.double() for k, v in method.spread.init(W).items()}
    heard = torch.tensor([0, 1, 3])
    z = F.normalize(torch.randn(3, 8, 6, generator=rng(1), dtype=torch.float64), dim=-1)

    def risk(rows: Tensor) -> Tensor:
        return torch.stack([positive_hinge(z[i], rows[c]).mean() for i, c in enumerate(heard.tolist())])

    leaves = {k: v.clone().requires_grad_() for k, v in phi.items()}
    rows = class_features.make_rows(leaves, features)
    objective = risk(rows).mean() + LAMBDA / 5 * spreadout(rows, cfg.spread.margin)
    expected = torch.autograd.grad(objective, [*leaves.values()])

    own = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(risk(own).sum(), own)
    W[heard] = F.normalize(W - ETA * gradient, dim=1)[heard]
    moved = method.spread.step(W, heard, When(0, ETA, 1.0), rng(), phi)
    for (name, before), wanted in zip(phi.items(), expected, strict=True):
        torch.testing.assert_close((moved[name] - before) / -GAMMA, wanted, rtol=5e-3, atol=1e-4)
    torch.testing.assert_close(W, class_features.make_rows(moved, features))


def zero_shot_data() -> tuple[FederatedData, Tensor]:
    """40 classes whose centres are a linear map of their features; the last ten have no training example."""
    features = torch.randn(40, 8, generator=rng())
    centres = features @ torch.randn(8, 16, generator=rng(1))
    y = torch.arange(40).repeat_interleave(20)
    x = centres[y] + 0.5 * torch.randn(800, 16, generator=rng(2))
    seen = y < 30
    return from_arrays(x[seen], y[seen], x[~seen], y[~seen], num_classes=40, class_features=features), features


def settings(method: str) -> Config:
    tree = {
        "method": method,
        "model": {"embedding_dim": 16, "hidden": [32]},
        "spread": {"margin": 0.9},
        "train": {"rounds": 300, "threads": 1, "evaluate_every": 300},
    }
    return Config.model_validate(tree)


def test_a_class_that_nobody_has_examples_of_gets_a_row_that_works() -> None:
    # All test examples are of the ten unseen classes, to be told among all 40: chance is 1 in 40.
    data, _ = zero_shot_data()
    by_features = fedaws.train(data, config=settings("class-features")).metrics[-1]["precision@1"]
    by_examples = fedaws.train(data, config=settings("fedaws")).metrics[-1]["precision@1"]
    assert by_features > 0.4
    assert by_examples < 0.1


def test_data_without_class_features_are_refused_in_one_line(tiny: Config) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override(["method=class-features"])))
    assert told == (
        "the method needs the classes' features, which these data do not have; "
        "give class_features=… in fedaws.from_arrays"
    )


@pytest.mark.parametrize("name", ["glas", "fedalc"])
def test_data_without_label_sets_are_refused_in_one_line(tiny: Config, name: str) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override([f"method={name}"])))
    assert told == (
        "the method needs the classes' cooccurrence, which these data do not have; give data with sets of labels"
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [("agnostic", "step, mixing"), ("fixed-spread", "steps"), ("class-features", "hidden, step, weight")],
)
def test_an_unknown_option_is_told_the_known_ones(tiny: Config, name: str, known: str) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override([f"method={name}", "options.temperature=2"])))
    assert told == f"unknown key 'options.temperature'; method={name} has {known}"


def test_an_option_out_of_range_is_told_in_one_line(tiny: Config) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override(["method=agnostic", "options.step=-1.0"])))
    assert told.startswith("options.step: got -1.0; ")
