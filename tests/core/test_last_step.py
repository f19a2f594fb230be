"""The closing step on the rows, and what of it a run, a method and Flower make."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

import fedaws
from fedaws import Config
from fedaws.core.last_step import enroll, ridge, shared_covariance
from fedaws.core.losses import positive_hinge
from fedaws.core.method import LastStep, Method
from fedaws.record.folder import RunFolder
from fedaws.runners.sums import ask_sums
from fedaws.training.session import Interrupted, Reporter
from fedaws.types import Sums
from helpers import refusal

QUIET = Reporter(on_warning=lambda message: None)


def digits(*settings: str) -> Config:
    few = ["train.rounds=6", "train.evaluate_every=3", "train.checkpoint_every=2", "train.threads=1"]
    return Config().override([*few, *settings])


def test_no_weight_leaves_the_rows() -> None:
    W = F.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(enroll(W, torch.ones(5, 3), 0.0), W)


def test_a_large_weight_puts_every_row_on_its_mean() -> None:
    W, means = torch.eye(2), torch.tensor([[3.0, 4.0], [-4.0, 3.0]])
    torch.testing.assert_close(enroll(W, means, 1e6), means / 5, atol=1e-5, rtol=0)


def test_the_sums_are_those_of_a_loop_over_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.runners.sums.EXAMPLES", 100)  # so that a client's examples lie in several blocks
    run = fedaws.train(config=digits("data.clients_per_class=2"))
    data = run.data
    assert data is not None
    sums = ask_sums(run.encoder, data)(run.theta, False).sums
    expected = torch.zeros(10, run.W.shape[1])
    for client, own in enumerate(data.class_of.tolist()):
        mine = data.x[int(data.starts[client]) : int(data.starts[client + 1])]
        expected[own] += len(mine) * run.embed(mine).mean(0)
    torch.testing.assert_close(sums, expected, atol=1e-3, rtol=1e-5)


def test_a_run_is_enrolled_once_after_its_last_round() -> None:
    plain, enrolled = fedaws.train(config=digits()), fedaws.train(config=digits("train.enroll=0.5"))
    assert plain.data is not None
    assert enrolled.metrics[0]["precision@1"] == plain.metrics[0]["precision@1"]  # of round 3
    assert all(enrolled.theta[name].equal(plain.theta[name]) for name in plain.theta)
    expected = enroll(plain.W, ask_sums(plain.encoder, plain.data)(plain.theta, False).sums, 0.5)
    torch.testing.assert_close(enrolled.W, expected)


def test_a_killed_run_is_enrolled_as_if_it_had_not_been(tmp_path: Path) -> None:
    cfg, rounds = digits("train.enroll=0.5"), iter(range(100))
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=tmp_path / "run", reporter=Reporter(should_stop=lambda: next(rounds) == 4))
    resumed = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)
    again = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)  # it is finished: not a second time
    assert resumed.W.equal(fedaws.train(config=cfg).W)
    assert again.W.equal(resumed.W)


def test_rows_that_nobody_trains_are_enrolled_like_others() -> None:
    plain, enrolled = (fedaws.train(config=digits("method=fixed", f"train.enroll={weight}")) for weight in (0, 1))
    assert plain.data is not None
    z, y = plain.embed(plain.data.x), plain.data.y
    means = torch.stack([F.normalize(z[y == c].mean(0), dim=0) for c in range(10)])
    torch.testing.assert_close(enrolled.W, F.normalize(plain.W + means, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("setting", ["train.enroll=1", "train.last_step=ridge"])
def test_secret_rows_are_not_told_by_sums(tmp_path: Path, setting: str) -> None:
    cfg = digits("method=feduv", "model.embedding_dim=127", setting)
    told = refusal(lambda: fedaws.train(config=cfg, folder=tmp_path / "run"))
    assert told.startswith("method=feduv keeps rows secret")
    assert not (tmp_path / "run").exists()


def test_a_method_with_a_last_step_of_its_own_takes_no_other() -> None:
    mine = Method("mine", "mine", "own", positive_hinge, last_step=LastStep(lambda W, sums: (W, None)))
    told = refusal(lambda: fedaws.train(config=digits("train.enroll=1"), method=mine))
    assert told == "method=mine has a last step of its own; set train.enroll=0 and train.last_step=none"


def test_rows_of_any_length_cannot_be_enrolled() -> None:
    told = refusal(lambda: Config().override(["model.normalize=false", "train.enroll=1"]))
    assert "set model.normalize=true" in told


# --- by second moments ------------------------------------------------------------------------------------------------


def random_problem(classes: int = 4, missing: int | None = None) -> tuple[np.ndarray, np.ndarray, Sums]:
    """Unit embeddings [60, 5], their labels, and what the clients tell of them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 60)
    y[y == missing] = 0
    z = rng.normal(size=(60, 5)) + 2 * np.eye(5)[y % 5]
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    hot = np.eye(classes)[y]
    counts, sums = torch.tensor(hot.sum(0)), torch.tensor(hot.T @ z)
    return z, y, Sums(counts.long(), sums, torch.tensor(z.T @ z))


@pytest.mark.parametrize("weight", [0.1, 1.0, 30.0])
def test_ridge_is_scikit_learns_on_one_hot_labels(weight: float) -> None:
    z, y, sums = random_problem()
    mean_eigenvalue = 60 / 5  # of Σzzᵀ: its trace is the number of unit vectors
    reference = Ridge(alpha=weight * mean_eigenvalue, fit_intercept=False).fit(z, np.eye(4)[y])
    np.testing.assert_allclose(ridge(sums, weight).numpy(), reference.coef_, atol=1e-10)


def test_lda_is_scikit_learns_but_for_the_smoothed_frequencies() -> None:
    # Without λ both divide the within-class scatter by n; its priors are n_c / n, ours (n_c + ½)/(n + C/2).
    z, y, sums = random_problem()
    rows, bias = shared_covariance(sums, 0.0)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y)
    counts = sums.counts.numpy()
    smoothed = np.log((counts + 0.5) / 62) - np.log(counts / 60)
    np.testing.assert_allclose(rows.numpy(), reference.coef_, atol=1e-8)
    np.testing.assert_allclose(bias.numpy(), reference.intercept_ + smoothed, atol=1e-8)


def test_lda_is_its_formula_over_a_plain_loop() -> None:
    z, y, sums = random_problem()
    rows, bias = shared_covariance(sums, 2.0)
    means = np.stack([z[y == c].mean(0) for c in range(4)])
    covariance = 2.0 * 60 / 5 * np.eye(5)
    for example, label in zip(z, y, strict=True):
        covariance += np.outer(example - means[label], example - means[label])
    inverse = np.linalg.inv(covariance / 60)
    for c in range(4):
        prior = (np.sum(y == c) + 0.5) / (60 + 2)
        np.testing.assert_allclose(rows[c].numpy(), inverse @ means[c], atol=1e-8)
        np.testing.assert_allclose(float(bias[c]), np.log(prior) - means[c] @ inverse @ means[c] / 2, atol=1e-8)


def test_a_class_without_examples_has_no_row_and_a_small_prior() -> None:
    _, _, sums = random_problem(missing=2)
    assert sums.counts[2] == 0
    assert ridge(sums, 1.0)[2].tolist() == [0] * 5
    rows, bias = shared_covariance(sums, 1.0)
    assert rows[2].tolist() == [0] * 5
    assert float(bias[2]) == pytest.approx(np.log(0.5 / 62))
    assert rows.isfinite().all()


@pytest.mark.parametrize("step", ["ridge", "lda"])
def test_a_runs_last_step_is_that_of_its_final_embeddings(step: str) -> None:
    run, plain = fedaws.train(config=digits(f"train.last_step={step}"), reporter=QUIET), fedaws.train(config=digits())
    assert plain.data is not None
    assert all(run.theta[name].equal(plain.theta[name]) for name in plain.theta)
    z, y = plain.embed(plain.data.x).double(), plain.data.y
    hot = F.one_hot(y, 10).double()
    sums = Sums(hot.sum(0).long(), hot.T @ z, z.T @ z)
    rows, bias = (ridge(sums, 1.0), None) if step == "ridge" else shared_covariance(sums, 1.0)
    torch.testing.assert_close(run.W.double(), rows, atol=1e-2, rtol=1e-3)
    assert (run.model.bias is None) == (bias is None)
    assert run.metrics[-1]["precision@1"] > plain.metrics[-1]["precision@1"] - 0.1


class Killed(BaseException):
    """Ends a run at once."""


@pytest.mark.parametrize("step", ["ridge", "lda"])
@pytest.mark.parametrize("when", ["in the last round", "before the model is written"])
def test_a_run_killed_at_its_end_takes_the_last_step_once(
    step: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = digits(f"train.last_step={step}")
    fatal = "save_checkpoint" if when == "in the last round" else "save_model"
    write = getattr(RunFolder, fatal)

    def killed(folder: RunFolder, *given: Any) -> None:
        if fatal == "save_model" or given[0].round_num == 6:
            raise Killed
        write(folder, *given)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, fatal, killed)
        with pytest.raises(Killed):
            fedaws.train(config=cfg, folder=tmp_path / "run", reporter=QUIET)
    resumed = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True, reporter=QUIET)
    whole = fedaws.train(config=cfg, reporter=QUIET)
    loaded = fedaws.load(tmp_path / "run")
    assert whole.data is not None
    for other in (resumed, loaded):
        assert other.W.equal(whole.W)
        x = whole.data.x_test[:50]
        assert other.identify(x, 10).scores.equal(whole.identify(x, 10).scores)
