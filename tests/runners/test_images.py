"""Convolutions on images: every runner and any number of threads compute the same, augmented and resized."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaws
from fedaws import Config, FederatedData, Reporter, Run, from_arrays
from fedaws.core.algorithm import run_round
from fedaws.core.losses import OfScore
from fedaws.core.methods import method_of
from fedaws.data.federated import as_input
from fedaws.machine.blocks import POOLED
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.runners.common import even_blocks
from fedaws.runners.pooled import _block_count, bytes_per_example
from fedaws.training.session import Interrupted
from fedaws.types import ServerState

ROUNDS = 3
SETTINGS = [
    "model.name=resnet8",
    "model.embedding_dim=6",
    "clients.examples_per_step=3",
    "clients.lr=0.1",
    "clients.per_round=4",
    "server.momentum=0.5",
    "spread.margin=0.5",
    "data.augment=crop-flip",
    "train.sizes=[[0, 6], [0.5, 8]]",
    f"train.rounds={ROUNDS}",
    "train.evaluate_every=2",
]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def federation() -> FederatedData:
    """Five clients with 7, 2, 5, 1 and 4 images of 8 × 8 bytes: some have fewer than a batch."""
    y = torch.arange(5).repeat_interleave(torch.tensor([7, 2, 5, 1, 4]))
    return from_arrays(torch.randint(0, 256, (len(y), 3, 8, 8), generator=rng()).to(torch.uint8), y)


def config(*settings: str) -> Config:
    return Config().override([*SETTINGS, *settings])


def trained(cfg: Config, threads: int = 1, rounds: int = ROUNDS, dtype: torch.dtype = torch.float32) -> ServerState:
    torch.set_num_threads(threads)
    data = federation()
    if dtype == torch.float64:
        data = replace(data, x=as_input(data.x).double())
    encoder = build_encoder(cfg.model, data.x.shape[1:], seed=0).to(dtype)
    W = F.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim, generator=rng(1)), dim=1).to(dtype)
    state = ServerState(0, {k: v.detach().clone() for k, v in encoder.named_parameters()}, W, data.class_of)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for t in range(rounds):
        state = run_round(state, data.available, run_clients, cfg, rng(t), data.num_examples)
    return state


def assert_agree(cfg: Config, *others: tuple[str, int, int | str], rounds: int = ROUNDS) -> None:
    """Each (runner, threads, block) has the numbers of the serial runner in one thread.

    With 53 bits: with 24, what is rounded otherwise lies on the other side of some ReLU's kink after a few rounds.
    """
    expected = trained(cfg.override(["train.runner=serial"]), 1, rounds, torch.float64)
    for runner, threads, block in others:
        other = cfg.override([f"train.runner={runner}", f"train.block={block}"])
        state = trained(other, threads, rounds, torch.float64)
        assert state.W.dtype == torch.float64
        for name, tensor in tensors(expected).items():
            torch.testing.assert_close(tensors(state)[name], tensor, atol=1e-6, rtol=0)
        assert state.loss == pytest.approx(expected.loss, abs=1e-6)


def tensors(state: ServerState) -> dict[str, Tensor]:
    return {"W": state.W, **state.theta}


# --- all runners agree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "weighting"), [("fedaws", "examples"), ("softmax", "uniform")])
def test_pooled_stacked_and_serial_agree_on_augmented_images_of_changing_size(method: str, weighting: str) -> None:
    cfg = config(f"method={method}", f"clients.weighting={weighting}")
    one_thread, three = (("pooled", 1, "auto"), ("pooled", 1, 3)), (("pooled", 3, "auto"), ("pooled", 3, 1))
    assert_agree(cfg, ("stacked", 1, 3), *one_thread, *three)


@pytest.mark.parametrize("norm", ["group", "weight", "none"])
def test_runners_agree_whatever_stands_for_norms(norm: str) -> None:
    cfg = config(f"model.norm={norm}", "clients.per_round=all")
    assert_agree(cfg, ("stacked", 1, "auto"), ("pooled", 2, "auto"), rounds=2)


def test_serial_and_stacked_agree_over_several_local_steps() -> None:
    assert_agree(config("clients.local_steps=2"), ("serial", 3, "auto"), ("stacked", 1, "auto"), rounds=2)


@pytest.mark.parametrize("setting", ["data.augment=none", "train.sizes=[]", "train.sizes=[[0, 8]]"])
def test_augmentation_and_sizes_do_take_part(setting: str) -> None:
    usual, changed = trained(config(), rounds=1), trained(config(setting), rounds=1)
    assert not torch.allclose(usual.theta["head.weight"], changed.theta["head.weight"], atol=1e-6)


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["pooled", "serial"])
def test_threads_give_the_same_bits_every_time(runner: str) -> None:
    cfg = config(f"train.runner={runner}", "train.block=1", "clients.per_round=all")
    first, again = (tensors(trained(cfg, threads=3)) for _ in range(2))
    assert all(first[k].equal(again[k]) for k in first)


@pytest.mark.parametrize("runner", ["pooled", "serial"])
def test_the_number_of_threads_does_not_change_the_bits_of_equal_blocks(runner: str) -> None:
    cfg = config("method=fixed", f"train.runner={runner}", "train.block=2")  # no spreadout: it is not the workers'
    one, three = (tensors(trained(cfg, threads, rounds=2)) for threads in (1, 3))
    assert all(one[k].equal(three[k]) for k in one)


@pytest.mark.parametrize("runner", ["pooled", "serial"])
def test_clients_of_convolutions_are_trained_in_as_many_threads_as_torch_has(
    runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[int] = set()
    meeting = threading.Barrier(3)

    def met(*_: object, **__: object) -> Tensor:
        used.add(threading.get_ident())
        meeting.wait(10)  # all three at once, or it fails
        raise KeyError("enough")

    monkeypatch.setattr("fedaws.core.losses.hinge_of_score", lambda _: OfScore(met, met))
    with pytest.raises(KeyError, match="enough"):
        trained(config(f"train.runner={runner}", "train.block=1", "clients.per_round=3"), threads=3, rounds=1)
    assert len(used) == 3
    assert threading.get_ident() not in used


# --- stopping and going on ------------------------------------------------------------------------------------------


def bits(run: Run) -> dict[str, list[int]]:
    return {name: t.view(torch.int32).flatten().tolist() for name, t in {"W": run.W, **run.theta}.items()}


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_run_with_convolutions_and_threads_resumes_to_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    lr = 0.02 if optimizer == "muon" else 1.0
    cfg = config("train.threads=2", f"server.optimizer={optimizer}", f"server.lr={lr}")
    expected = fedaws.train(federation(), config=cfg)
    stop = Reporter(should_stop=lambda: True)
    for _ in range(2):
        with pytest.raises(Interrupted):
            fedaws.train(federation(), config=cfg, folder=tmp_path, resume=True, reporter=stop)
    assert bits(fedaws.train(federation(), config=cfg, folder=tmp_path, resume=True)) == bits(expected)
    x = federation().x_test
    assert fedaws.load(tmp_path).embed(x).equal(expected.embed(x))


# --- what goes into a block -----------------------------------------------------------------------------------------


def sizes_of(blocks: Iterable[slice]) -> list[int]:
    return [block.stop - block.start for block in blocks]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 10, 64, 1000])
@pytest.mark.parametrize("fitting", [1, 3, 10, 10**6])
def test_blocks_fit_and_no_worker_waits_for_longer_than_it_must(workers: int, count: int, fitting: int) -> None:
    sizes = sizes_of(even_blocks(count, _block_count(count, 4 * POOLED // fitting, workers)))
    assert sum(sizes) == count
    assert 1 <= min(sizes) <= max(sizes) <= fitting
    turns = 1  # by trial: the fewest in which the workers can do it all
    while turns * workers * fitting < count:
        turns += 1
    assert len(sizes) <= turns * workers
    busiest = max(sum(sizes[worker::workers]) for worker in range(workers))  # each takes a block in its turn
    assert busiest < count / workers + turns


@pytest.mark.parametrize("count", [1, 7, 10, 64])
@pytest.mark.parametrize("parts", [1, 2, 5, 7])
def test_even_blocks_follow_one_another_and_differ_by_one_at_most(count: int, parts: int) -> None:
    found = list(even_blocks(count, parts))
    assert [place for part in found for place in range(part.start, part.stop)] == list(range(count))
    assert len(found) == parts
    assert max(sizes_of(found)) - min(sizes_of(found)) <= 1


def test_equal_blocks_for_each_worker() -> None:
    assert _block_count(12, 1, workers=4) == 4
    assert _block_count(12, 4 * POOLED // 2, workers=3) == 6  # two turns of three blocks of two
    assert _block_count(3, 1, workers=8) == 3


def test_a_client_larger_than_the_cache_is_a_block_of_its_own() -> None:
    assert _block_count(5, 400 * POOLED, workers=2) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_mlp_keeps_its_input_and_its_hidden_layers(dtype: torch.dtype) -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 4)).to(
        dtype
    )
    # For the backward pass: each layer's input, that is x and what comes out of the two ReLUs.
    assert bytes_per_example(encoder, torch.randn(2, 3, 4, dtype=dtype)) == dtype.itemsize * (12 + 7 + 5)


def test_a_convolution_keeps_its_input() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    # The images, and what comes out of the ReLU: for its own gradient and for the mean's only its shape.
    assert bytes_per_example(encoder, torch.randn(2, 3, 8, 8)) == 4 * (3 + 5) * 64


def test_a_larger_image_takes_more_memory() -> None:
    encoder = build_encoder(config().model, (3, 8, 8), seed=0)
    small, large = (bytes_per_example(encoder, torch.rand(2, 3, side, side)) for side in (8, 16))
    assert 3.5 < large / small < 4.5


def blocks_of(cfg: Config, data: FederatedData, encoder: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Clients in each block of a first round with all of them, if the cache were of 10 kB."""
    monkeypatch.setattr("fedaws.runners.pooled.POOLED", 2_500)
    state = fedaws.training.train.initial_state(cfg, data, encoder)
    sizes: list[int] = []
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)

    def watched(sent: fedaws.types.Broadcast) -> Iterator[fedaws.types.Update]:
        for update in run_clients(sent):
            sizes.append(len(update.cohort))
            yield update

    run_round(state, data.available, watched, cfg, rng(), data.num_examples)
    return sizes


def features(clients: int, classes: int | None = None) -> FederatedData:
    y = np.arange(3 * clients) % clients
    return from_arrays(np.random.default_rng(0).normal(size=(3 * clients, 20)), y, num_classes=classes)


@pytest.mark.parametrize("batch", [1, 2])
def test_blocks_are_as_large_as_the_cache_allows_for_any_batch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config().override([f"clients.examples_per_step={batch}", "model.hidden=[30]", "train.runner=pooled"])
    encoder = build_encoder(cfg.model, (20,), seed=0)
    # An example keeps 4 · (20 + 30) = 200 bytes, so 50 of them fit.
    assert max(blocks_of(cfg, features(100), encoder, monkeypatch)) == 50 // batch


def test_an_oracles_scores_of_all_classes_count_where_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["clients.examples_per_step=1", "model.hidden=[30]", "train.runner=pooled"]
    for method, at_thousand in (("contrastive", 1), ("softmax", 14)):  # 1,000 scores of 4 bytes, thrice; none kept
        cfg = Config().override([f"method={method}", *settings])
        encoder = build_encoder(cfg.model, (20,), seed=0)
        few = blocks_of(cfg, features(40), encoder, monkeypatch)
        many = blocks_of(cfg, features(40, classes=1000), encoder, monkeypatch)
        assert max(few) > 10
        assert max(many) == at_thousand
