"""A run from its configuration to its model: `train`, `load`, and the `Run` they give."""

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.enroll import enroll
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, load_data
from fedaws.data.federated import as_features, as_input
from fedaws.data.label_sets import as_sparse
from fedaws.errors import FedawsError
from fedaws.evaluate import evaluate
from fedaws.evaluate.index import ClassIndex
from fedaws.evaluate.measures import embed_all
from fedaws.evaluate.per_class import examine
from fedaws.evaluate.precision import Ranking, crowding, rank
from fedaws.hashing import hash64
from fedaws.machine.memory import keep_freed_memory
from fedaws.machine.threads import shared_out
from fedaws.models import (
    batch_norms,
    build_encoder,
    evaluating,
    example_shape_fits,
    measured_statistics,
    model_tensors,
    set_weights,
    trainable,
)
from fedaws.record.folder import Facts, RunFolder
from fedaws.record.journal import Journal, Metrics
from fedaws.runners import make_runner
from fedaws.runners.means import embedding_sums
from fedaws.sparse import Rows, SparseRows, is_scipy
from fedaws.training.checks import check_loss, check_setup, check_weights, warn_of_collapse
from fedaws.types import Broadcast, Params, RunClients, ServerState, Update


class Interrupted(Exception):  # noqa: N818 - not an error: the user asked for it
    """The run was asked to stop; what it had done is in its checkpoint."""

    def __init__(self, round_num: int) -> None:
        super().__init__(f"stopped after round {round_num}")
        self.round_num = round_num


@dataclass
class Reporter:
    """Whom a run tells what happens; the command line draws its progress bar with these."""

    on_start: Callable[[int, int], None] = lambda done, rounds: None
    on_round: Callable[[int, float], None] = lambda round_num, loss: None
    on_metrics: Callable[[Metrics], None] = lambda metrics: None
    on_warning: Callable[[str], None] = lambda message: warnings.warn(message, stacklevel=2)
    should_stop: Callable[[], bool] = lambda: False


@dataclass
class Run:
    """A trained (or half-trained) model that tells classes apart, with its history."""

    config: Config
    encoder: nn.Module
    theta: Params
    W: Tensor
    facts: Facts
    metrics: list[Metrics] = field(default_factory=list)
    data: FederatedData | None = None
    folder: Path | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names that came with the data."""
        return self.facts.class_names

    def embed(self, x: Any) -> Tensor:
        """g(x) of examples [B, …], NumPy, torch or, where the model was trained on such, scipy's sparse; [B, d]."""
        return embed_all(self.encoder, self.theta, self._checked(x), self.config.model.normalize)

    def identify(self, x: Any, k: int = 1, index: ClassIndex | None = None, probes: int = 16) -> Ranking:
        """The k most likely classes of each example, and their scores.

        With an index only the classes in the `probes` cells nearest to the example are looked at: faster for few
        examples among very many classes, but it may miss some.
        """
        if k < 1:
            raise FedawsError(f"k={k}; wanted at least one class")
        if index is None:
            return rank(self.embed(x), self.W, k, self._shift)
        if index.num_classes != len(self.W):
            raise FedawsError(
                f"the index has {index.num_classes} classes, the model {len(self.W)}; make it by this run's index()"
            )
        return index.rank(self.embed(x), k, probes)

    def index(self, cells: int | None = None) -> ClassIndex:
        """An approximate index of the classes for :meth:`identify`, by default of √classes cells; needs faiss."""
        return ClassIndex(self.W, cells, self._shift)

    def evaluate(self, data: FederatedData | None = None) -> dict[str, float]:
        """All measures on the test set of `data`, by default the run's own."""
        data = data or self.data or self._configured_data()
        if data.num_classes != len(self.W):
            raise FedawsError(
                f"the data has {data.num_classes} classes, the model {len(self.W)}; they do not belong together"
            )
        x, y = self._checked(data.x_test), data.y_test.to(self.W.device)
        weights = None if data.label_weights is None else data.label_weights.to(self.W.device)
        return evaluate(self.encoder, self.theta, self.W, x, y, self.config, weights)

    @cached_property
    def _shift(self) -> Tensor | None:
        """What is taken from the classes' scores."""
        return crowding(self.W, self.config.model.crowding)

    def _configured_data(self) -> FederatedData:
        if self.facts.own_data:
            raise FedawsError(
                f"{self.folder} was trained on data of your own, which it does not hold; "
                "give it again in Python: fedaws.load(folder).evaluate(data)"
            )
        return load_data(self.config, method_of(self.config).classes_per_client)

    def _checked(self, x: Any) -> Rows:
        features = as_sparse(x) if isinstance(x, SparseRows) or is_scipy(x) else as_features(x)
        got, wanted = _dtype_name(features), self.facts.example_dtype
        if got != wanted:  # bytes are scaled to 0 … 1, numbers are taken as they are
            raise FedawsError(f"x is {got}, the model was trained on {wanted}; prepare x as the training examples were")
        example_shape_fits(self.encoder, as_input(features[:1]).to(self.W.device), self.W.shape[1])
        return features.to(self.W.device)


def train(
    data: FederatedData | None = None,
    encoder: nn.Module | None = None,
    config: Config | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train over clients that each have one class; by default on the configured data with the configured encoder.

    With a `folder` the run is recorded there and can be resumed; a run that was killed and resumed ends with the same
    bits as one that was not. An encoder of your own is run in its eval mode, and its frozen parameters
    (`requires_grad=False`) and buffers stay as they are.
    """
    cfg, reporter = config or Config(), reporter or Reporter()
    device = _prepare(cfg)
    own_data, own_encoder = data is not None, encoder is not None
    if data is None:
        data = load_data(cfg, method_of(cfg).classes_per_client)
    if encoder is None:
        encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    data, encoder = data.to(device), encoder.to(device)
    check_setup(cfg, data, encoder, reporter.on_warning)
    facts = Facts(
        example_shape=tuple(data.x.shape[1:]),
        example_dtype=_dtype_name(data.x),
        class_names=data.class_names,
        own_encoder=own_encoder,
        own_data=own_data,
    )
    place = None if folder is None else Path(folder)
    journal = Journal(cfg, facts, None if place is None else RunFolder(place))
    with journal.held(), evaluating(encoder), shared_out(encoder):
        state, history = journal.open(initial_state(cfg, data, encoder, shared=not own_encoder), resume)
        state = _loop(cfg, data, encoder, state, journal, history, reporter)
        theta = _model(cfg, data, encoder, state)
        journal.finish(state, theta, lambda: examine(encoder, theta, state.W, data.x_test, data.y_test, cfg))
    set_weights(encoder, theta)
    return Run(cfg, encoder, theta, state.W, journal.facts(state), history, data, place)


def load(folder: str | Path, encoder: nn.Module | None = None) -> Run:
    """The model in a run folder, or an unfinished run's newest checkpoint; give an encoder of your own again."""
    record = RunFolder(Path(folder))
    cfg = record.config()
    theta, W, facts = record.load_model()
    if encoder is None:
        if facts.own_encoder:
            raise FedawsError(
                f"{folder} was trained with an encoder of your own; give it again: fedaws.load(folder, encoder)"
            )
        encoder = build_encoder(cfg.model, facts.example_shape, cfg.seed)
    expected = {name: p.shape for name, p in model_tensors(encoder).items()}
    if expected != {name: t.shape for name, t in theta.items()} or W.shape[1] != cfg.model.embedding_dim:
        raise FedawsError(f"the weights in {folder} do not fit the encoder; give the one it was trained with")
    set_weights(encoder, theta)
    return Run(cfg, encoder, theta, W, facts, record.metrics(), folder=record.path)


def _dtype_name(x: Rows) -> str:
    return str(x.dtype).removeprefix("torch.")


def initial_state(cfg: Config, data: FederatedData, encoder: nn.Module, shared: bool = False) -> ServerState:
    """θ⁰ from the encoder; W⁰ random on the sphere, from the seed.

    With `shared` memory a run on the state changes the encoder's tables, which then need not be there twice.
    """
    theta = {name: p.detach() if shared else p.detach().clone() for name, p in trainable(encoder).items()}
    return ServerState(0, theta, initial_rows(cfg, data.num_classes).to(data.x.device), data.class_of)


def initial_rows(cfg: Config, num_classes: int) -> Tensor:
    """W⁰: random on the sphere, from the seed."""
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "class embeddings"))
    return F.normalize(torch.randn(num_classes, cfg.model.embedding_dim, generator=rng), dim=1)


def _loop(
    cfg: Config,
    data: FederatedData,
    encoder: nn.Module,
    state: ServerState,
    journal: Journal,
    history: list[Metrics],
    reporter: Reporter,
) -> ServerState:
    run_clients = _timed(make_runner(cfg, data, encoder), journal)
    available, counts = data.available, data.num_examples
    reporter.on_start(state.round_num, cfg.train.rounds)
    while state.round_num < cfg.train.rounds:
        # A generator of its own for every round: nothing random needs to be saved.
        rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", state.round_num))
        started = time.perf_counter()
        state = run_round(state, available, run_clients, cfg, rng, counts, in_place=True)
        journal.add(state.loss, time.perf_counter() - started)
        done = state.round_num
        check_loss(state.loss, done)
        if done == cfg.train.rounds and cfg.train.enroll and method_of(cfg).rows != "fixed":
            sums = embedding_sums(encoder, _model(cfg, data, encoder, state), data)
            state = replace(state, W=enroll(state.W, sums, cfg.train.enroll))
        reporter.on_round(done, state.loss)
        paused = time.perf_counter()
        if done % cfg.train.evaluate_every == 0 or done == cfg.train.rounds:
            check_weights(state)
            theta = _model(cfg, data, encoder, state)
            measures = evaluate(encoder, theta, state.W, data.x_test, data.y_test, cfg, data.label_weights)
            paused = _spent(journal, "evaluation", paused)
            row = journal.measured(done, measures)
            history.append(row)
            reporter.on_metrics(row)
            warn_of_collapse(cfg, history, reporter.on_warning)
        stop = reporter.should_stop()
        if done % cfg.train.checkpoint_every == 0 or done == cfg.train.rounds or stop:
            check_weights(state)
            journal.checkpoint(state)
        journal.trace(state)
        _spent(journal, "records", paused)
        if stop and done < cfg.train.rounds:
            raise Interrupted(done)
    return state


def _timed(run_clients: RunClients, journal: Journal) -> RunClients:
    """The same clients, with the time that they take counted; what a round takes beside them is the server's."""

    def run(sent: Broadcast) -> Iterable[Update]:
        started = time.perf_counter()
        for update in run_clients(sent):
            _spent(journal, "clients", started)
            yield update
            started = time.perf_counter()
        _spent(journal, "clients", started)

    return run


def _spent(journal: Journal, part: str, since: float) -> float:
    now = time.perf_counter()
    journal.spend(part, now - since)
    return now


def _model(cfg: Config, data: FederatedData, encoder: nn.Module, state: ServerState) -> Params:
    """What a model consists of beside W: θ, and BatchNorm's statistics as each client, or all at once, would tell."""
    if not batch_norms(encoder):
        return state.averaged
    starts, count = data.starts[data.available].tolist(), max(8, 1000 // len(data.available))
    ends = data.starts[data.available + 1].tolist()
    assert isinstance(data.x, Tensor)  # images
    samples = [as_input(data.x[s : min(s + count, e)]) for s, e in zip(starts, ends, strict=True)]
    if cfg.model.norm == "batch-pooled":
        samples = [torch.cat(samples)]
    return state.averaged | measured_statistics(encoder, state.averaged, samples)


def _prepare(cfg: Config) -> torch.device:
    keep_freed_memory()
    if cfg.train.threads != "auto":
        torch.set_num_threads(cfg.train.threads)
    name = cfg.train.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=name).tolist()  # a device that cannot compute (meta) fails here too
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedawsError(f"train.device={name} cannot be used: {reason}; set train.device=cpu") from None
