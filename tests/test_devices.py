"""Whatever trains and measures works on the device that its tensors are on."""

import pytest
import torch
from torch import Tensor

from fedaws.config import Config, from_toml
from fedaws.core.algorithm import run_round
from fedaws.core.last_step import make_last_step, take_last_step
from fedaws.core.methods import method_of
from fedaws.core.owners import settled
from fedaws.data import load_data
from fedaws.evaluate import Model, TestSet, evaluate
from fedaws.evaluate.per_class import examine
from fedaws.evaluate.strangers import open_set
from fedaws.hashing import hash64
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.runners.sums import ask_sums
from fedaws.training.train import initial_state
from fedaws.types import ClassFacts, ServerState
from other_device import DEVICE, Elsewhere, back, move, other_device

DENSE = """
[data]
name = "synthetic"
classes = 14
features = 6
examples_per_class = 10
overlap = 0.1
[model]
embedding_dim = 5
hidden = [8]
[clients]
per_round = 9
examples_per_step = 4
[train]
rounds = 3
"""
SPARSE = """
[data]
name = "xc-synthetic"
scale = 0.0004
test_examples = 40
[model]
name = "bag"
embedding_dim = 8
hidden = []
[clients]
per_round = 40
examples_per_step = 2
sampling = "examples"
[server]
table_lr = 0.3
[spread]
regularizer = "nearest"
neighbors = 3
candidates = 60
remember = true
[train]
rounds = 3
"""
OF_TABLES: dict[str, list[str]] = {
    "a table": [],
    "a table by plain steps, one by one": ["server.table_optimizer=sgd", "train.runner=serial"],
    "a table under layers, features dropped": ["model.hidden=[8]", "model.residual=true", "data.drop=0.3"],
    "every label, in blocks": ["data.every_label=true", "train.block=7"],
    "enrolled in a table": ["train.enroll=1.0", "model.crowding=0.5"],
    "label pairs": ["method=fedalc"],
}
CHANGES: dict[str, list[str]] = {
    "eq. (6), all pairs": [],
    "eq. (6), mined": ["spread.neighbors=3", "spread.candidates=8", "spread.remember=true"],
    "eq. (7)": ["spread.regularizer=nearest", "spread.neighbors=2"],
    "softmax of scores": ["spread.regularizer=softmax", "spread.neighbors=4"],
    "moments": ["spread.regularizer=moments"],
    "centred, whitened": ["spread.center=true", "spread.whiten=true", "spread.every=1"],
    "an optimiser of rows": ["spread.optimizer=adam", "spread.bounded=false"],
    "several local steps": ["clients.local_steps=3"],
    "local Adam, one by one": ["clients.local_steps=2", "clients.optimizer=adam", "train.runner=serial"],
    "weighed, averaged": ["clients.weighting=examples", "server.average=0.9", "server.momentum=0.9"],
    "drawn by examples": ["clients.sampling=examples"],
    "Adam": ["server.optimizer=adam", "server.lr=0.01"],
    "Muon": ["server.optimizer=muon", "server.lr=0.01"],
    "rows of any length": ["model.normalize=false"],
    "enrolled": ["train.enroll=1.0"],
    "ridge": ["train.last_step=ridge"],
    "LDA": ["train.last_step=lda"],
    "crowding": ["model.crowding=0.5"],
    "softmax": ["method=softmax"],
    "sampled softmax": ["method=softmax", "clients.sampled_classes=6"],
    "contrastive": ["method=contrastive"],
    "triplet": ["method=triplet"],
    "family": ["method=family"],
    "fixed": ["method=fixed"],
    "fixed-spread": ["method=fixed-spread"],
    "agnostic": ["method=agnostic"],
    "private rows": ["privacy.rows=private", "spread.regularizer=moments", "spread.center=false"],
    "median": ["defence.clip=median"],
    "rows kept near": ["defence.row_step=0.5", "defence.apart=0.9"],
    "strangers": ["data.strangers=0.2"],
}
CONFIGS = {
    name: from_toml(text, "test").override(changes)
    for text, changed in ((DENSE, CHANGES), (SPARSE, OF_TABLES))
    for name, changes in changed.items()
}


def trained(cfg: Config, device: torch.device | None) -> tuple[ServerState, dict[str, float], dict[str, object]]:
    """Three rounds, the last step, and all that is measured; on the CPU without a device."""
    method = method_of(cfg)
    data = load_data(cfg, method.classes_per_client, "cooccurrence" in method.needs)
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    if device is not None:
        data, encoder = data.to(device), move(encoder)
    method = method_of(cfg, data.class_facts or ClassFacts())
    ask, run_clients = ask_sums(encoder, data), make_runner(cfg, method, data, encoder)
    state = initial_state(cfg, data, encoder, method)
    for round_num in range(cfg.train.rounds):
        rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", round_num))
        state = run_round(state, data.available, run_clients, cfg, rng, data.num_examples, method=method)
    state, last_step = settled(state, cfg, method), make_last_step(cfg, method)
    if last_step is not None:
        state = take_last_step(state, state.averaged, last_step, ask)
    model = Model(encoder, state.averaged, state.W, cfg.model.normalize, state.bias, cfg.model.crowding)
    test = TestSet(data.x_test, data.y_test, data.label_weights)
    figures = evaluate(model, test, cfg)
    for part, strangers in data.apart.items():
        figures |= open_set(model, strangers, cfg.data.enroll, part)
    return state, figures, examine(model, test, cfg)


@pytest.mark.parametrize("name", CONFIGS)
def test_training_and_measuring_stay_on_the_device(name: str) -> None:
    cfg = CONFIGS[name]
    expected, figures, details = trained(cfg, None)
    with other_device():
        state, found, told = trained(cfg, DEVICE)
    for part in ("theta", "optimizer", "tables", "spread", "weighting", "average", "row_optimizer"):
        for key, tensor in getattr(state, part).items():
            torch.testing.assert_close(back(tensor), getattr(expected, part)[key], msg=f"{part} {key}")
    torch.testing.assert_close(back(state.W), expected.W)
    assert found == pytest.approx(figures, rel=1e-4, abs=1e-5)
    assert told.keys() == details.keys()


def test_a_tensor_made_here_by_mistake_is_an_error() -> None:
    with other_device():
        there = torch.ones(3, device=DEVICE)
        assert isinstance(there + 1, Elsewhere)
        assert isinstance(there + torch.tensor(1.0), Elsewhere)  # a single number may be anywhere
        assert type(there.cpu()) is Tensor
        with pytest.raises(AssertionError, match="here"):
            there + torch.ones(3)
        with pytest.raises(AssertionError, match="here"):
            there.index_select(0, torch.tensor([0]))
