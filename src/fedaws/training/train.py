"""`train`: from data, encoder, method and configuration to a model."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedaws.config import Config, check_effects
from fedaws.core.defences import guarded
from fedaws.core.last_step import make_last_step
from fedaws.core.method import Method
from fedaws.core.methods import method_of, named_after
from fedaws.core.owners import settled
from fedaws.core.start import mean_rows, random_rows, start_state
from fedaws.data import FederatedData, load_data
from fedaws.data.federated import as_input
from fedaws.errors import FedawsError
from fedaws.evaluate import Measure, Model
from fedaws.evaluate.measures import check_measures
from fedaws.machine.memory import keep_freed_memory, return_freed_memory
from fedaws.machine.threads import shared_out
from fedaws.models import (
    batch_norms,
    build_encoder,
    evaluating,
    measured_statistics,
    set_weights,
    table_names,
    trainable,
)
from fedaws.ranks import Ranks, Together, check_ranks, current_ranks, own_examples
from fedaws.record.facts import Facts
from fedaws.record.folder import RunFolder
from fedaws.record.functions import digests
from fedaws.record.journal import Journal
from fedaws.runners import make_runner
from fedaws.runners.sums import ask_sums
from fedaws.tensor_files import digest
from fedaws.training.checks import check_setup, check_stop
from fedaws.training.protection import opened, protect
from fedaws.training.register import register_of, test_of
from fedaws.training.rounds import run_rounds
from fedaws.training.run import Run, dtype_name
from fedaws.training.session import Reporter, Session, nothing_kept
from fedaws.training.warm_start import TRAINED, Start, begin_with, check_start, weights_of
from fedaws.types import AskSums, ClassFacts, RunClients, ServerState


def train(
    data: FederatedData | None = None,
    encoder: nn.Module | None = None,
    config: Config | None = None,
    *,
    method: Method | None = None,
    start: Start | None = None,
    measures: Mapping[str, Measure] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train over clients that each have one class; by default on the configured data with the configured encoder.

    Parameters
    ----------
    data
        The clients' examples and the test set, by :func:`fedaws.from_arrays` and the like; by default as `[data]` says.
    encoder
        A module that maps examples [B, …] to embeddings [B, `model.embedding_dim`]; by default as `[model]` says. It is
        run in its eval mode and trained in place; its frozen parameters (`requires_grad=False`) and buffers stay.
    config
        The settings; by default those of `Config()`.
    method
        A method of your own; by default the one that `config.method` names.
    start
        θ to start from: that of another :class:`Run`, of a run folder or a `.safetensors` file, or tensors by name. For
        W⁰ of your own give the method a `start`.
    measures
        Measures of your own by name: functions of a `Model` and a `TestSet` that give a number.
    folder
        Where the run is recorded, so that it can be resumed, reported and loaded; by default nowhere.
    resume
        Go on with the run in `folder`, if there is one. A run that was killed and resumed ends with the same bits as
        one that was not. What was given in Python is to be given again.
    reporter
        Whom to tell of rounds, metrics and warnings.

    Returns
    -------
    Run
        The trained model with its metrics.
    """
    cfg = _checked(config, data, encoder, method)
    ranks = current_ranks()
    reporter = _spoken_by_one(reporter or Reporter(), ranks)
    own_data, own_encoder, own_method = data is not None, encoder is not None, method is not None
    check_effects(cfg, own_data, own_encoder)
    check_measures(measures or {})
    cfg = _as_given(cfg, own_data, own_encoder)
    device = _prepare(cfg)
    if data is None:
        described = method or method_of(cfg)
        with nullcontext() if ranks is None else ranks.in_turn():
            data = load_data(cfg, described.classes_per_client, "cooccurrence" in described.needs)
    if encoder is None:
        encoder = build_encoder(cfg.model, data.example_shape, cfg.seed)
    data, encoder = data.to(device), encoder.to(device)
    begun_with = start if start is not None else cfg.model.start
    method = method or method_of(cfg, data.class_facts or ClassFacts())
    check_setup(cfg, method, data, encoder, reporter.on_warning)
    place = None if folder is None else Path(folder)
    going_on = resume and place is not None and bool(RunFolder(place).checkpoints())
    check_start(cfg, begun_with is not None or (encoder in TRAINED and not going_on))
    weights = None if begun_with is None else weights_of(begun_with)
    if weights is not None:
        begin_with(encoder, weights, reporter.on_warning)
    facts = Facts(
        example_shape=data.example_shape,
        example_dtype=dtype_name(data.x),
        class_names=data.class_names,
        own_encoder=own_encoder,
        own_data=own_data,
        own_method=own_method,
        data=data.digest() if own_data else None,
        encoder_name=type(encoder).__name__ if own_encoder else None,
        role=method.role,
        rows=method.rows,
        functions=digests(_own_functions(method if own_method else None, measures or {})),
        replaced=method.replaces if own_method else (),
        start=None if weights is None else digest(weights),
        tested_on=data.tested_on,
        own_measures=tuple(sorted(measures or ())),
        classes=data.num_classes,
    )
    method = guarded(method, cfg) if own_method else method
    private = protect(
        cfg, method, len(data.available), trainable(encoder), table_names(encoder), place, reporter.on_warning
    )
    with evaluating(encoder), shared_out(encoder):
        # All that may be refused comes before the folder is touched.
        last_step = make_last_step(cfg, method)
        if cfg.train.stop_on == "strangers":
            check_stop(cfg, data, last_step)
        parts = (
            _alone(cfg, method, data, encoder, own_encoder)
            if ranks is None
            else _together(cfg, method, data, encoder, ranks)
        )
        data, first = parts.data, parts.first
        if cfg.train.stop_on == "strangers":
            first = replace(first, best=nothing_kept(_model(cfg, data, encoder, first)))
        record = None if place is None else parts.folder(place)
        journal = Journal(cfg, facts, record, private.facts if private else None, reporter.on_warning)
        with journal.held():
            state, history = opened(journal, first, resume, private)
            return_freed_memory()  # of reading data and a checkpoint
            people = register_of(cfg, method, data, encoder, first, parts.ask, journal.forgotten, state.round_num)
            session = Session(
                cfg,
                method,
                journal,
                reporter,
                model_of=parts.model_of,
                test_of=lambda state: test_of(data, state),
                checkpoint_every=cfg.train.checkpoint_every,
                measures=measures or {},
                history=history,
                spent=dict if private is None else private.spent,
                strangers=data.apart,
                best=state.best,
            )
            state = run_rounds(cfg, people, state, session, parts.run_clients, last_step, private)
            model, facts = session.finish(state)
    set_weights(encoder, model.theta)
    TRAINED.add(encoder)
    return Run(cfg, model, facts, session.history, data, place)


def _own_functions(method: Method | None, measures: Mapping[str, Measure]) -> dict[str, Any]:
    """What of a run is the user's code, by the names under which it is told to have changed."""
    parts = [] if method is None else [field.name for field in fields(method) if field.name not in ("name", "role")]
    return {name: getattr(method, name) for name in parts} | {f"measure {n!r}": f for n, f in measures.items()}


class _Parts(NamedTuple):
    """Of a run what depends on whether one process has all of it."""

    data: FederatedData
    run_clients: RunClients
    first: ServerState
    model_of: Callable[[ServerState], Model]
    folder: Callable[[Path], RunFolder]
    ask: AskSums


def _alone(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, own_encoder: bool) -> _Parts:
    ask = ask_sums(encoder, data)
    return _Parts(
        data,
        make_runner(cfg, method, data, encoder),
        initial_state(cfg, data, encoder, method, shared=not own_encoder),
        lambda state: _model(cfg, data, encoder, settled(state, cfg, method)),
        RunFolder,
        ask,
    )


def _together(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, ranks: Ranks) -> _Parts:
    check_ranks(cfg, method, data, encoder, ranks)
    own = own_examples(data, ranks)
    run = Together(ranks, cfg, method, own, encoder)
    first = run.start()
    return _Parts(own, run.runner(), first, run.model, run.folder, run.ask(first))


def _spoken_by_one(reporter: Reporter, ranks: Ranks | None) -> Reporter:
    """Of several ranks the first tells; if one is asked to stop, all do."""
    if ranks is None:
        return reporter
    return replace(reporter if ranks.first else Reporter(), should_stop=lambda: ranks.any(reporter.should_stop()))


def initial_state(
    cfg: Config, data: FederatedData, encoder: nn.Module, method: Method | None = None, shared: bool = False
) -> ServerState:
    """θ⁰ from the encoder, W⁰ and the memories.

    With `shared` memory a run on the state changes the encoder's tables, which then need not be there twice.
    """
    theta = {name: p.detach() if shared else p.detach().clone() for name, p in trainable(encoder).items()}
    rows = random_rows(cfg, data.num_classes).to(data.x.device)
    if cfg.model.start_rows == "means":  # each class's mean embedding under θ⁰
        rows = mean_rows(ask_sums(encoder, data)(theta, False), rows)
    return start_state(cfg, method or method_of(cfg), theta, rows, data.class_of, table_names(encoder))


def _checked(config: Any, data: Any, encoder: Any, method: Any) -> Config:
    """The configuration, once the arguments are known to be what they should; a method of one's own gives its name."""
    arguments: list[tuple[Any, type, str, str]] = [
        (data, FederatedData, "data", "fedaws.from_arrays(x, y)"),
        (encoder, nn.Module, "encoder", "a torch.nn.Module"),
        (config, Config, "config", "a fedaws.Config, as by fedaws.config.load(name)"),
        (method, Method, "method", "a fedaws.Method; for one by its name set config.method"),
    ]
    for value, kind, name, fix in arguments:
        if value is not None and not isinstance(value, kind):
            raise FedawsError(f"{name} is a {type(value).__name__}; wanted {fix}")
    cfg = config or Config()
    return cfg if method is None else named_after(method, cfg)


def _as_given(cfg: Config, own_data: bool, own_encoder: bool) -> Config:
    """The configuration with no name of a data set or encoder that it was not: its file cannot run these again."""
    names = {"data": own_data, "model": own_encoder}
    return cfg.with_(**{table: {"name": "own"} for table, own in names.items() if own})


def _prepare(cfg: Config) -> torch.device:
    """The device, once it has computed something; memory and threads as the settings say."""
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


def _model(cfg: Config, data: FederatedData, encoder: nn.Module, state: ServerState) -> Model:
    """θ, with BatchNorm's statistics as each client, or all at once, would tell, and W."""
    theta = state.averaged
    if batch_norms(encoder):
        starts, count = data.starts[data.available].tolist(), max(8, 1000 // len(data.available))
        ends = data.starts[data.available + 1].tolist()
        assert isinstance(data.x, Tensor)  # images
        samples = [as_input(data.x[s : min(s + count, e)]) for s, e in zip(starts, ends, strict=True)]
        if cfg.model.norm == "batch-pooled":
            samples = [torch.cat(samples)]
        theta = theta | measured_statistics(encoder, theta, samples)
    return Model(encoder, theta, state.W, cfg.model.normalize, state.bias, cfg.model.crowding)
