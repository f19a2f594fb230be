"""A run of each method that was stopped and resumed ends with the same bits."""

from pathlib import Path

import pytest
import torch

import fedaws
from fedaws import Config, Reporter
from fedaws.core.methods import method_names
from fedaws.data import FederatedData, from_arrays
from fedaws.data.label_sets import from_sparse
from fedaws.sparse import from_lists
from fedaws.training.session import Interrupted

ROUNDS = 10


def config(name: str) -> Config:
    dim = 127 if name == "feduv" else 5
    own = {"model": {"name": "bag", "embedding_dim": dim, "hidden": []}} if name in ("glas", "fedalc") else {}
    tree = {
        "method": name,
        "model": {"embedding_dim": dim, "hidden": [8]},
        "train": {"rounds": ROUNDS, "checkpoint_every": 3, "evaluate_every": 4, "threads": 1},
    }
    return Config.model_validate(tree | own)


def data(name: str) -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    if name in ("glas", "fedalc"):
        sets = [[i % 4, (i + 1) % 4] for i in range(40)]
        words = from_lists([[i % 6, (i * 5 + 1) % 6 + 6] for i in range(40)], width=12)
        return from_sparse(words, from_lists(sets, width=4), validation=0.25, cooccurrence=True)
    y = torch.arange(4).repeat_interleave(10)
    several = 2 if name in ("fedavg", "family") else 1
    x = torch.randn(40, 6, generator=rng) + y[:, None]
    features = torch.randn(4, 3, generator=rng)
    return from_arrays(x, y, validation=0.25, classes_per_client=several, class_features=features)


def quiet(message: str) -> None:
    """Ten rounds are few: some of the methods' classes are not apart yet."""


@pytest.mark.parametrize("name", method_names())
def test_a_resumed_run_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    cfg, own, place = config(name), data(name), tmp_path / "run"
    done: list[int] = []
    stop = Reporter(
        on_round=lambda number, _: done.append(number),
        should_stop=lambda: len(done) >= ROUNDS // 2,
        on_warning=quiet,
    )
    with pytest.raises(Interrupted):
        fedaws.train(own, config=cfg, folder=place, reporter=stop)
    resumed = fedaws.train(own, config=cfg, folder=place, resume=True, reporter=Reporter(on_warning=quiet))
    whole = fedaws.train(own, config=cfg, reporter=Reporter(on_warning=quiet))
    assert resumed.W.equal(whole.W)
    assert all(whole.theta[k].equal(v) for k, v in resumed.theta.items())


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_an_optimiser_of_the_spreading_goes_on_with_its_memory(optimizer: str, tmp_path: Path) -> None:
    spread = {"optimizer": optimizer, "bounded": False, "regularizer": "nearest", "neighbors": 2}
    cfg, place = config("fedaws").with_(spread=spread), tmp_path / "run"
    done: list[int] = []
    stop = Reporter(
        on_round=lambda number, _: done.append(number), should_stop=lambda: len(done) >= 5, on_warning=quiet
    )
    with pytest.raises(Interrupted):
        fedaws.train(data("fedaws"), config=cfg, folder=place, reporter=stop)
    resumed = fedaws.train(data("fedaws"), config=cfg, folder=place, resume=True, reporter=Reporter(on_warning=quiet))
    whole = fedaws.train(data("fedaws"), config=cfg, reporter=Reporter(on_warning=quiet))
    forgetful = fedaws.train(
        data("fedaws"), config=cfg.with_(spread={"optimizer": "sgd"}), reporter=Reporter(on_warning=quiet)
    )
    assert resumed.W.equal(whole.W)
    assert not forgetful.W.equal(whole.W)
