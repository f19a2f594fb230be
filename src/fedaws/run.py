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
from torch.nn.modules.dropout import _DropoutNd

from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.core.spreadout import reachable_margin, resolve_neighbors
from fedaws.data import FederatedData, load_data
from fedaws.data.federated import as_features, as_input
from fedaws.data.hashing import hash64
from fedaws.errors import FedawsError
from fedaws.evaluate import evaluate
from fedaws.evaluate.measures import embed_all
from fedaws.evaluate.precision import Ranking, rank
from fedaws.models import build_encoder, evaluating, example_shape_fits, trainable
from fedaws.record.folder import Facts, RunFolder
from fedaws.runners import make_runner
from fedaws.types import CLASS_MATRIX, Params, ServerState

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
    facts: Facts
    metrics: list[Metrics] = field(default_factory=list)
    data: FederatedData | None = None
    folder: Path | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names that came with the data."""
        return self.facts.class_names

    def embed(self, x: Any) -> Tensor:
        """g(x) of examples [B, …], NumPy or torch; [B, d]."""
        x = self._checked(x)
        with evaluating(self.encoder):
            return embed_all(self.encoder, self.theta, x, self.config.model.normalize)

    def identify(self, x: Any, k: int = 1) -> Ranking:
        """The k most likely classes of each example, and their scores."""
        if k < 1:
            raise FedawsError(f"k={k}; wanted at least one class")
        return rank(self.embed(x), self.W, k)

    def evaluate(self, data: FederatedData | None = None) -> dict[str, float]:
        """All measures on the test set of `data`, by default the run's own."""
        data = data or self.data or self._configured_data()
        if data.num_classes != len(self.W):
            raise FedawsError(
                f"the data has {data.num_classes} classes, the model {len(self.W)}; they do not belong together"
            )
        x, y = self._checked(data.x_test), data.y_test.to(self.W.device)
        return evaluate(self.encoder, self.theta, self.W, x, y, self.config)

    def _configured_data(self) -> FederatedData:
        if self.facts.own_data:
            raise FedawsError(
                f"{self.folder} was trained on data of your own, which it does not hold; "
                "give it again in Python: fedaws.load(folder).evaluate(data)"
            )
        return load_data(self.config, method_of(self.config).classes_per_client)

    def _checked(self, x: Any) -> Tensor:
        features = as_features(x)
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
    _check(cfg, data, encoder, reporter)
    facts = Facts(
        example_shape=tuple(data.x.shape[1:]),
        example_dtype=_dtype_name(data.x),
        class_names=data.class_names,
        own_encoder=own_encoder,
        own_data=own_data,
    )
    place = None if folder is None else Path(folder)
    record = _Record(cfg, facts, None if place is None else RunFolder(place))
    state, history = record.open(initial_state(cfg, data, encoder), resume)
    with evaluating(encoder):
        state = _loop(cfg, data, encoder, state, record, history, reporter)
    record.finish(state)
    return Run(cfg, encoder, state.theta, state.W, record.facts(state), history, data, place)


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
    expected = {name: p.shape for name, p in trainable(encoder).items()}
    if expected != {name: t.shape for name, t in theta.items()} or W.shape[1] != cfg.model.embedding_dim:
        raise FedawsError(f"the weights in {folder} do not fit the encoder; give the one it was trained with")
    return Run(cfg, encoder, theta, W, facts, record.metrics(), folder=record.path)


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def initial_state(cfg: Config, data: FederatedData, encoder: nn.Module) -> ServerState:
    """θ⁰ from the encoder; W⁰ random on the sphere, from the seed."""
    theta = {name: p.detach().clone() for name, p in trainable(encoder).items()}
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
        _check_loss(state.loss, done)
        reporter.on_round(done, state.loss)
        if done % cfg.train.evaluate_every == 0 or done == cfg.train.rounds:
            _check_weights(state)
            row = record.measured(done, evaluate(encoder, state.theta, state.W, data.x_test, data.y_test, cfg))
            history.append(row)
            reporter.on_metrics(row)
            _warn_of_collapse(cfg, history, reporter)
        stop = reporter.should_stop()
        if done % cfg.train.checkpoint_every == 0 or done == cfg.train.rounds or stop:
            _check_weights(state)
            record.checkpoint(state)
        if stop and done < cfg.train.rounds:
            raise Interrupted(done)
    return state


def _check_loss(loss: float, round_num: int) -> None:
    if not math.isfinite(loss):
        raise FedawsError(
            f"training diverged: the loss is {loss} in round {round_num}; lower clients.lr, server.lr or spread.weight"
        )


def _check_weights(state: ServerState) -> None:
    """A last step to infinity does not show in its round's loss."""
    for name, tensor in {CLASS_MATRIX: state.W, **state.theta}.items():
        if not bool(torch.isfinite(tensor).all()):
            raise FedawsError(
                f"training diverged: {name} is not finite in round {state.round_num}; lower clients.lr or server.lr"
            )


class _Record:
    """The run's folder, if it has one, and what is summed up between two rows of metrics."""

    def __init__(self, cfg: Config, facts: Facts, folder: RunFolder | None) -> None:
        self._cfg, self._facts, self._folder = cfg, facts, folder
        self._loss_sum, self._rounds, self._seconds = 0.0, 0, 0.0

    def open(self, state: ServerState, resume: bool) -> tuple[ServerState, list[Metrics]]:
        """The state to start from and the metrics so far."""
        folder = self._folder
        if folder is None:
            return state, []
        if not (resume and folder.started):
            folder.create(self._cfg)
            return state, []
        _same_config(self._cfg, folder.config(), folder.path)
        found = folder.load_checkpoint(state)
        if found is None:
            return state, folder.rewind_metrics(0)
        state, facts = found
        _same_facts(self._facts, facts, folder.path)
        self._loss_sum, self._rounds, self._seconds = facts.loss_sum, facts.loss_rounds, facts.seconds
        history = folder.rewind_metrics(state.round_num)
        if state.round_num >= self._cfg.train.rounds and not history:
            raise FedawsError(
                f"{folder.metrics_file} has lost its rows; delete the newest checkpoint to make them again"
            )
        return state, history

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
            self._folder.save_checkpoint(state, self.facts(state))

    def finish(self, state: ServerState) -> None:
        if self._folder is not None:
            self._folder.save_model(state, self.facts(state))

    def facts(self, state: ServerState) -> Facts:
        """What a reader of this state needs to know beside its tensors."""
        sums = {"loss_sum": self._loss_sum, "loss_rounds": self._rounds, "seconds": self._seconds}
        return self._facts.model_copy(update={"round": state.round_num, "loss": state.loss, **sums})


def _prepare(cfg: Config) -> torch.device:
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
        reporter.on_warning("the encoder has buffers (such as BatchNorm's statistics): they stay as they are now")
    if any(isinstance(module, _DropoutNd) for module in encoder.modules()):
        reporter.on_warning("the encoder has dropout: it is off, as the encoder runs in its eval mode")
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
            f"{cfg.model.embedding_dim} dimensions can be at most {reachable:.3f} apart, so spreadout never reaches 0"
        )


def _client_of_each(data: FederatedData) -> Tensor:
    return torch.arange(len(data.class_of), device=data.y.device).repeat_interleave(data.num_examples)


def _warn_of_collapse(cfg: Config, history: list[Metrics], reporter: Reporter) -> None:
    """Once per run, when the largest cosine first passes the line."""
    collapsed = [row["max_cosine"] > COLLAPSED for row in history]
    if collapsed[-1] and sum(collapsed) == 1:
        row = history[-1]
        cure = "raise spread.weight" if method_of(cfg).spread else "method=fedaws keeps them apart"
        reporter.on_warning(
            f"classes have collapsed: largest cosine {row['max_cosine']:.3f} in round {row['round']} ({cure})"
        )


def _same_facts(given: Facts, saved: Facts, path: Path) -> None:
    for key in ("example_shape", "example_dtype", "class_names", "own_encoder", "own_data"):
        ours, theirs = getattr(given, key), getattr(saved, key)
        if ours != theirs:
            raise FedawsError(
                f"{path} was started with {key}={theirs}, now it is {ours}; resume with the same data and encoder"
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
