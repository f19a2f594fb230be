"""A run from its configuration to its model: `train`, `load`, and the `Run` they give."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.core.spreadout import reachable_margin, resolve_neighbors
from fedaws.data import FederatedData, load_data
from fedaws.data.federated import as_input
from fedaws.data.hashing import hash64
from fedaws.errors import FedawsError
from fedaws.evaluate import evaluate
from fedaws.evaluate.measures import embed_all
from fedaws.evaluate.precision import Ranking, rank
from fedaws.models import build_encoder, example_shape_fits
from fedaws.record.folder import RunFolder
from fedaws.runners import make_runner
from fedaws.types import Params, ServerState

COLLAPSED = 0.95
"""A largest class cosine above this is called a collapse."""

Metrics = dict[str, Any]


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
    metrics: list[Metrics] = field(default_factory=list)
    class_names: tuple[str, ...] | None = None
    data: FederatedData | None = None
    folder: Path | None = None

    def embed(self, x: Tensor) -> Tensor:
        """g(x), [B, d]."""
        return embed_all(self.encoder, self.theta, self._checked(x), self.config.model.normalize)

    def identify(self, x: Tensor, k: int = 1) -> Ranking:
        """The k most likely classes of each example, and their scores."""
        return rank(self.embed(x), self.W, k)

    def evaluate(self, data: FederatedData | None = None) -> dict[str, float]:
        """All measures on the test set of `data`, by default the run's own."""
        data = data or self.data or load_data(self.config, method_of(self.config).classes_per_client)
        if data.num_classes != len(self.W):
            raise FedawsError(
                f"the data has {data.num_classes} classes, the model {len(self.W)}; they do not belong together"
            )
        x, y = self._checked(data.x_test), data.y_test.to(self.W.device)
        return evaluate(self.encoder, self.theta, self.W, x, y, self.config)

    def _checked(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x).to(self.W.device)
        example_shape_fits(self.encoder, as_input(x[:1]), self.W.shape[1])
        return x


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
    bits as one that was not.
    """
    cfg, reporter = config or Config(), reporter or Reporter()
    device = _prepare(cfg)
    data = (data or load_data(cfg, method_of(cfg).classes_per_client)).to(device)
    built = encoder is None
    encoder = (encoder or build_encoder(cfg.model, data.x.shape[1:], cfg.seed)).to(device)
    _check(cfg, data, encoder, reporter)
    state = initial_state(cfg, data, encoder)
    record = _Record(cfg, data, folder, resume, built)
    state, history = record.open(state)
    state = _loop(cfg, data, encoder, state, record, history, reporter)
    record.finish(state)
    place = None if folder is None else Path(folder)
    return Run(cfg, encoder, state.theta, state.W, history, data.class_names, data, place)


def load(folder: str | Path, encoder: nn.Module | None = None) -> Run:
    """The model in a run folder, or an unfinished run's newest checkpoint; give an encoder of your own again."""
    record = RunFolder(Path(folder))
    cfg = record.config()
    theta, W, facts = record.load_model()
    if encoder is None:
        if not facts.get("built", True):
            raise FedawsError(
                f"{folder} was trained with an encoder of your own; give it: fedaws.load(folder, encoder)"
            )
        encoder = build_encoder(cfg.model, facts["example_shape"], cfg.seed)
    expected = {name: p.shape for name, p in encoder.named_parameters()}
    if expected != {name: t.shape for name, t in theta.items()}:
        raise FedawsError(f"the weights in {folder} do not fit the encoder; give the one it was trained with")
    names = facts.get("class_names")
    return Run(cfg, encoder, theta, W, record.metrics(), tuple(names) if names else None, folder=Path(folder))


def initial_state(cfg: Config, data: FederatedData, encoder: nn.Module) -> ServerState:
    """θ⁰ from the encoder; W⁰ random on the sphere, from the seed."""
    theta = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "class embeddings"))
    W = F.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim, generator=rng), dim=1)
    return ServerState(0, theta, W.to(data.x.device), data.class_of)


def _loop(
    cfg: Config,
    data: FederatedData,
    encoder: nn.Module,
    state: ServerState,
    record: "_Record",
    history: list[Metrics],
    reporter: Reporter,
) -> ServerState:
    run_clients, available, counts = make_runner(cfg, data, encoder), data.available, data.num_examples
    reporter.on_start(state.round_num, cfg.train.rounds)
    while state.round_num < cfg.train.rounds:
        # A generator of its own for every round: nothing random needs to be saved.
        rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", state.round_num))
        started = time.perf_counter()
        state = run_round(state, available, run_clients, cfg, rng, counts, in_place=True)
        record.add(state.loss, time.perf_counter() - started)
        done = state.round_num
        if not math.isfinite(state.loss):
            raise FedawsError(
                f"the loss is {state.loss} in round {done}: training diverged; lower clients.lr or server.lr"
            )
        reporter.on_round(done, state.loss)
        if done % cfg.train.evaluate_every == 0 or done == cfg.train.rounds:
            row = record.measured(done, evaluate(encoder, state.theta, state.W, data.x_test, data.y_test, cfg))
            history.append(row)
            reporter.on_metrics(row)
            _warn_of_collapse(cfg, history, reporter)
        stop = reporter.should_stop()
        if done % cfg.train.checkpoint_every == 0 or done == cfg.train.rounds or stop:
            record.checkpoint(state)
        if stop and done < cfg.train.rounds:
            raise Interrupted(done)
    return state


class _Record:
    """The run's folder, if it has one, and what is summed up between two rows of metrics."""

    def __init__(self, cfg: Config, data: FederatedData, folder: str | Path | None, resume: bool, built: bool) -> None:
        self._cfg, self._resume = cfg, resume
        self._folder = None if folder is None else RunFolder(Path(folder))
        self._facts = {
            "example_shape": list(data.x.shape[1:]),
            "class_names": None if data.class_names is None else list(data.class_names),
            "built": built,
        }
        self._loss_sum, self._rounds, self._seconds = 0.0, 0, 0.0

    def open(self, state: ServerState) -> tuple[ServerState, list[Metrics]]:
        """The state to start from and the metrics so far."""
        if self._folder is None:
            return state, []
        if not (self._resume and (self._folder.path / "config.toml").exists()):
            self._folder.create(self._cfg)
            return state, []
        _same_config(self._cfg, self._folder.config(), self._folder.path)
        found = self._folder.load_checkpoint(state)
        if found is None:
            return state, self._folder.rewind_metrics(0)
        state, facts = found
        self._loss_sum, self._rounds, self._seconds = facts["loss_sum"], facts["rounds"], facts["seconds"]
        return state, self._folder.rewind_metrics(state.round_num)

    def add(self, loss: float, seconds: float) -> None:
        self._loss_sum, self._rounds, self._seconds = self._loss_sum + loss, self._rounds + 1, self._seconds + seconds

    def measured(self, round_num: int, measures: dict[str, float]) -> Metrics:
        row = {
            "round": round_num,
            "loss": self._loss_sum / self._rounds,
            **measures,
            "seconds": round(self._seconds, 3),
        }
        self._loss_sum, self._rounds = 0.0, 0
        if self._folder is not None:
            self._folder.append_metrics(row)
        return row

    def checkpoint(self, state: ServerState) -> None:
        if self._folder is not None:
            sums = {"loss_sum": self._loss_sum, "rounds": self._rounds, "seconds": self._seconds}
            self._folder.save_checkpoint(state, self._facts | sums)

    def finish(self, state: ServerState) -> None:
        if self._folder is not None:
            self._folder.save_model(state, self._facts)


def _prepare(cfg: Config) -> torch.device:
    if cfg.train.threads != "auto":
        torch.set_num_threads(cfg.train.threads)
    name = cfg.train.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedawsError(f"train.device={name} cannot be used: {reason}; set train.device=cpu") from None


def _check(cfg: Config, data: FederatedData, encoder: nn.Module, reporter: Reporter) -> None:
    """What only data and encoder together can show to be wrong."""
    example_shape_fits(encoder, as_input(data.x[:1]), cfg.model.embedding_dim)
    method = method_of(cfg)
    several = data.num_classes > 1 and bool((data.y != data.class_of[_client_of_each(data)]).any())
    if method.rows != "all" and several:
        raise FedawsError(
            f"method={cfg.method} needs clients of one class; set data.classes_per_client=1 or method=fedavg"
        )
    if any(True for _ in encoder.buffers()):
        reporter.on_warning(
            "the encoder has buffers (such as BatchNorm's statistics): they stay as they are at the start"
        )
    if not method.spread:
        return
    if cfg.spread.regularizer != "moments":
        k = resolve_neighbors(cfg.spread, data.num_classes)
        available = data.num_classes if cfg.spread.candidates == "all" else min(cfg.spread.candidates, data.num_classes)
        if k != "all" and k >= available:
            raise FedawsError(
                f"spread.neighbors={k} needs at least {k + 1} candidates, got {available}; "
                "lower spread.neighbors or raise spread.candidates"
            )
    reachable = reachable_margin(data.num_classes, cfg.model.embedding_dim)
    if cfg.spread.regularizer == "margin" and cfg.spread.margin > reachable + 1e-9:
        reporter.on_warning(
            f"spread.margin={cfg.spread.margin:g} is out of reach: {data.num_classes} classes in "
            f"{cfg.model.embedding_dim} dimensions can be at most {reachable:.3f} apart, so spreadout never rests"
        )


def _client_of_each(data: FederatedData) -> Tensor:
    return torch.arange(len(data.class_of), device=data.y.device).repeat_interleave(data.num_examples)


def _warn_of_collapse(cfg: Config, history: list[Metrics], reporter: Reporter) -> None:
    """Once per run, when the largest cosine first passes the line."""
    collapsed = [row["max_cosine"] > COLLAPSED for row in history]
    if collapsed[-1] and sum(collapsed) == 1:
        row = history[-1]
        cure = (
            "that is what it does; method=fedaws keeps them apart"
            if cfg.method == "positive-only"
            else "raise spread.weight"
        )
        reporter.on_warning(
            f"classes have collapsed: largest cosine {row['max_cosine']:.3f} in round {row['round']} ({cure})"
        )


def _same_config(given: Config, saved: Config, path: Path) -> None:
    ours, theirs = given.model_dump(), saved.model_dump()
    for section in ours:
        pairs = [(section, ours[section], theirs[section])]
        if isinstance(ours[section], dict):
            pairs = [(f"{section}.{key}", value, theirs[section][key]) for key, value in ours[section].items()]
        for key, value, old in pairs:
            if value != old:
                raise FedawsError(
                    f"{path} was started with {key}={old}, now it is {value}; resume with the same settings"
                )
