"""A whole run on sparse examples: train, record, resume, load, evaluate."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import fedaws
from fedaws import Config, Reporter
from fedaws.sparse import SparseRows
from fedaws.training.session import Interrupted
from helpers import refusal

SETTINGS = """\
data.name=xc-synthetic data.like=yso-finna-en data.scale=0.002 model.name=bag model.embedding_dim=16 model.hidden=[24]
clients.per_round=20 clients.examples_per_step=4 clients.lr=1 clients.class_lr=0.3 clients.sampling=examples
server.optimizer=adam server.lr=0.01 server.table_lr=0.3 spread.center=true spread.regularizer=nearest
train.rounds=12 train.evaluate_every=4 train.checkpoint_every=5 train.threads=1
"""


def config(*settings: str) -> Config:
    return Config().override([*SETTINGS.split(), *settings])


def silent() -> Reporter:
    return Reporter(on_warning=lambda message: None)


def test_it_learns() -> None:
    run = fedaws.train(config=config("train.rounds=60", "train.evaluate_every=60"), reporter=silent())
    start = fedaws.train(config=config("train.rounds=1"), reporter=silent())
    assert run.metrics[-1]["precision@1"] > 2 * start.metrics[-1]["precision@1"]
    assert {"psp@1", "psp@3", "psp@5", "precision@5", "max_cosine"} <= run.metrics[-1].keys()
    assert "error_bound" not in run.metrics[-1]  # of one label an example


@pytest.mark.parametrize(
    "settings",
    [
        ["server.table_optimizer=adagrad"],
        ["server.table_optimizer=sgd"],
        ["method=softmax", "clients.sampled_classes=10"],
        ["data.drop=0.4"],
    ],
)
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, settings: list[str]) -> None:
    cfg = config(*settings)
    whole = fedaws.train(config=cfg, reporter=silent())
    rounds = iter(range(100))
    stopping = Reporter(on_warning=lambda message: None, should_stop=lambda: next(rounds) == 6)
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=tmp_path / "run", reporter=stopping)
    resumed = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True, reporter=silent())
    assert all(resumed.theta[k].equal(whole.theta[k]) for k in whole.theta)
    assert resumed.W.equal(whole.W)


def test_a_loaded_run_evaluates_and_identifies_as_the_trained_one(tmp_path: Path) -> None:
    trained = fedaws.train(config=config(), folder=tmp_path / "run", reporter=silent())
    loaded = fedaws.load(tmp_path / "run")
    assert loaded.evaluate()["precision@1"] == trained.metrics[-1]["precision@1"]
    assert trained.data is not None
    x = trained.data.x_test
    assert isinstance(x, SparseRows)
    assert x.values is not None
    matrix = sp.csr_matrix((x.values.numpy(), x.indices.numpy(), x.starts.numpy()), shape=x.shape)
    expected = trained.identify(x, k=3).classes
    assert loaded.identify(matrix, k=3).classes.equal(expected)
    assert loaded.identify(x.to_dense(), k=3).classes.equal(expected)


def test_the_users_own_sparse_data_and_encoder_are_taken() -> None:
    rng = np.random.default_rng(0)
    x = sp.random(80, 30, 0.2, format="csr", random_state=0, dtype=np.float32)
    labels = sp.csr_matrix(rng.random((80, 5)) < 0.4)
    encoder = Own()
    start = encoder.bag.weight.detach().clone()
    run = fedaws.train(
        fedaws.from_sparse(x, labels), encoder, Config().override(["train.rounds=3", "model.embedding_dim=8"])
    )
    assert run.theta["bag.weight"].shape == (30, 8)
    assert not run.theta["bag.weight"].equal(start)


class Own(torch.nn.Module):
    """Somebody's encoder on PyTorch's own EmbeddingBag with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(30, 8, mode="sum", sparse=True, include_last_offset=True)

    def forward(self, x: SparseRows) -> torch.Tensor:
        out: torch.Tensor = self.bag(x.indices, x.starts.to(x.indices.dtype), per_sample_weights=x.values)
        return out


def test_sparse_examples_need_an_encoder_that_takes_them() -> None:
    assert "set model.name=bag" in refusal(
        lambda: fedaws.train(config=config("model.name=mlp", "server.table_lr=none"), reporter=silent())
    )


def test_the_methods_that_are_compared_all_run() -> None:
    for method in ("positive-only", "fixed", "softmax", "contrastive"):
        run = fedaws.train(config=config(f"method={method}", "train.rounds=2"), reporter=silent())
        assert 0 <= run.metrics[-1]["precision@1"] <= 1


@pytest.mark.parametrize("method", ["softmax", "contrastive"])
def test_oracles_learn_nearly_as_much_from_a_third_of_the_classes_a_round(method: str) -> None:
    def precision(*settings: str) -> float:
        chosen = [f"method={method}", "train.rounds=60", "train.evaluate_every=60", *settings]
        return float(fedaws.train(config=config(*chosen), reporter=silent()).metrics[-1]["precision@1"])

    assert precision("clients.sampled_classes=12") > 0.7 * precision()


def test_the_serial_runner_leaves_out_the_same_features() -> None:
    settings = ["data.drop=0.4", "train.rounds=4", "train.evaluate_every=4", "data.clients_per_class=1"]
    pooled = fedaws.train(config=config(*settings, "train.runner=pooled"), reporter=silent())
    serial = fedaws.train(config=config(*settings, "train.runner=serial"), reporter=silent())
    torch.testing.assert_close(pooled.theta["table"], serial.theta["table"], atol=1e-5, rtol=0)
    without = fedaws.train(config=config(*settings, "data.drop=0"), reporter=silent())
    assert not torch.allclose(pooled.theta["table"], without.theta["table"], atol=1e-3)
