"""The server: from the run's settings to a run folder like that of `fedaws train`."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, NonNegativeInt, ValidationError
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.methods import method_of
from fedaws.core.start import start_state
from fedaws.data import FederatedData
from fedaws.data.arrays import as_features, as_labels
from fedaws.data.sources.npz import read_npz
from fedaws.data.strangers import PARTS, Part, Strangers
from fedaws.errors import FedawsError
from fedaws.evaluate import Model, TestSet
from fedaws.evaluate.strangers import check_strangers
from fedaws.files import append_line, write_text
from fedaws.flower import wire
from fedaws.flower.federation import Federation, Member, read_federation
from fedaws.flower.settings import SERVER_LOG, Settings, load_dense, run_settings
from fedaws.flower.strategy import FedAwS, first_rows
from fedaws.models import batch_norms, build_encoder, evaluating, trainable
from fedaws.record.facts import Facts
from fedaws.record.folder import PARTICIPANTS, RunFolder
from fedaws.record.journal import Journal
from fedaws.report.page import try_report
from fedaws.tensor_files import digest
from fedaws.training.checks import check_setup
from fedaws.training.protection import opened, protect
from fedaws.training.register import here
from fedaws.training.run import dtype_name
from fedaws.training.session import Reporter, Session
from fedaws.training.warm_start import begin_with, weights_of
from fedaws.types import ServerState

_LOG = logging.getLogger("flwr")
_MOST_NAMES = 200  # of nodes in a line of the record
_KEPT_FILE = "flower.json"
_TIMES = {"import_seconds": "startup-seconds", "compute_seconds": "compute-seconds", "server_seconds": "server-seconds"}


class _Kept(BaseModel):
    """What no checkpoint of `fedaws train` has a place for."""

    joined: list[NonNegativeInt]  # the classes that have been online
    rejected: dict[str, NonNegativeInt]  # replies by reason
    members: tuple[tuple[str, int], ...] = ()  # names and classes, in the order of their client numbers
    run: str | None = None  # by which nodes know that their private rows are of this run


app = ServerApp()
"""What `[tool.flwr.app.components]` names as `serverapp = "fedaws.flower.server_app:app"`."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over the nodes of the grid until the last round, from the last checkpoint if there is one."""
    settings = run_settings(context.run_config)
    cfg = settings.loaded()
    federation, test, apart = _claimed(settings, cfg) if settings.trust_claims else _registered(settings, cfg)
    for part, strangers in apart.items():
        check_strangers(part, strangers, cfg.data.enroll)
    encoder = build_encoder(cfg.model, federation.example_shape, cfg.seed)
    if batch_norms(encoder):
        raise FedawsError(f"model.norm={cfg.model.norm} needs statistics of the clients' data; set model.norm=group")
    same = settings.model_dump(include={"quorum", "grace", "wait", "secret_rows", "trust_claims"})
    strategy = FedAwS(federation, config=cfg, limits=settings.limits, **same)
    weights = None if cfg.model.start is None else weights_of(cfg.model.start)
    if weights is not None:
        begin_with(encoder, weights, _LOG.warning)
    folder = None if settings.run_folder is None else RunFolder(settings.run_folder)
    facts = Facts(
        example_shape=federation.example_shape,
        example_dtype=federation.example_dtype,
        class_names=federation.class_names,
        own_data=True,
        role=strategy.method.role,
        rows=strategy.method.rows,
        start=None if weights is None else digest(weights),
    )
    people, where = len(federation.members), None if folder is None else folder.path
    parts = strategy.method, people, trainable(encoder), (), where
    strategy.private = private = protect(cfg, *parts, _LOG.warning, shares=True)
    journal = Journal(cfg, facts, folder, private.facts if private else None)
    start = _start(cfg, federation, encoder, folder, settings.secret_rows)  # all that may be refused, before the folder
    with journal.held(), evaluating(encoder), _logged(folder):
        strategy.state, history = opened(journal, start, True, private)
        _restore(strategy, folder)
        session = Session(
            cfg,
            strategy.method,
            journal,
            Reporter(on_warning=_LOG.warning),
            model_of=lambda state: Model(
                encoder, state.averaged, state.W, cfg.model.normalize, state.bias, cfg.model.crowding
            ),
            test_of=lambda state: None if strategy.method.own_spread else _known_test(test, state),
            checkpoint_every=1,  # a round is dear here
            history=history,
            spent=dict if private is None else private.spent,
            strangers=apart,
        )
        strategy.start(
            grid,
            wire.pack(strategy.state.theta),
            num_rounds=cfg.train.rounds,
            timeout=settings.deadline,
            evaluate_fn=_Record(strategy, session, folder).after_round,
        )
        session.finish(strategy.state)
    if folder is not None:
        try_report(folder.path, _LOG.warning)


@contextmanager
def _logged(folder: RunFolder | None) -> Iterator[None]:
    """The log in the run folder too, where people look for it: Flower keeps it to itself until it is asked."""
    handler: logging.Handler = logging.NullHandler()
    if folder is not None:
        handler = logging.FileHandler(folder.path / SERVER_LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _LOG.addHandler(handler)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        handler.close()


@dataclass
class _Record:
    """What is written down after each round beside what every run writes."""

    strategy: FedAwS
    session: Session
    folder: RunFolder | None
    began: float = field(default_factory=time.perf_counter)  # when the round did

    def after_round(self, round_num: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Who took part, then what happens after every round, then a line in the log."""
        state, last = self.strategy.state, self.strategy.last
        assert state is not None
        if round_num == 0:  # rows of the nodes' telling in place of the random ones
            self.session.journal.trace(state)
            return None
        seconds = time.perf_counter() - self.began
        journal, federation = self.session.journal, self.strategy.federation
        journal.class_names = federation.class_names  # also of those that have joined
        journal.forgotten = tuple((~here(state)).nonzero().flatten().tolist())
        if self.folder is not None:
            _remember(self.strategy, self.folder)
            _note_attendance(self.strategy, self.folder, round_num)
        row = self.session.after_round(state, seconds, self._counts(seconds))
        rounds = self.session.cfg.train.rounds
        line = f"round {round_num}/{rounds}  {last['replies']} of {last['asked']}  loss {state.loss:.4g}"
        if row and "precision@1" in row:
            line += f"  P@1 {100 * row['precision@1']:.1f} %"
        if row and "strangers_eer" in row:
            line += f"  EER {100 * row['strangers_eer']:.1f} %"
        _LOG.info(
            "%s  %.1f s (imports %.1f, compute %.2f, server %.3f)", line, seconds, *map(last.get, _TIMES.values())
        )
        self.began = time.perf_counter()  # measuring and recording are no part of a round
        return MetricRecord({k: v for k, v in row.items() if k != "round"}) if row else None

    def _counts(self, seconds: float) -> dict[str, float]:
        """Who answered, and where the round's time went; what these leave is processes, polling and transport."""
        last = self.strategy.last
        counts = {"replies": last["replies"], "rejected": sum(self.strategy.rejected.values())}
        if "largest-change" in last:  # not of secure sums
            counts["largest_change"] = last["largest-change"]
        return counts | {"round_seconds": seconds} | {name: last[key] for name, key in _TIMES.items()}


def _known_test(test: tuple[Tensor, Tensor] | None, state: ServerState) -> TestSet | None:
    """The server's own test examples of the classes that have a row by now; W is not sent out to be tested."""
    if test is None:
        return None
    x, y = test
    known = (y < len(state.W)) & here(state)[y.clamp_max(len(state.W) - 1)]
    return TestSet(x[known], y[known]) if known.any() else None


_Served = tuple[Federation, tuple[Tensor, Tensor] | None, dict[Part, Strangers]]
"""Who is who, the server's test set, and its people without a node."""


def _registered(settings: Settings, cfg: Config) -> _Served:
    """Who is who from federation.toml, the test set and the strangers beside it."""
    if not settings.federation:
        raise FedawsError(
            "no federation: set federation to the path of federation.toml, which says what class each registered node "
            "has (trust-claims=true believes whatever nodes say, for simulations only)"
        )
    if settings.settings:
        _LOG.warning(
            "every node is told settings=%r; better keep them in the file that config names", settings.settings
        )
    federation = read_federation(Path(os.path.expanduser(settings.federation)))
    missing = [part for part in PARTS if getattr(cfg.data, part) and part not in federation.apart]
    if missing:
        raise FedawsError(
            f"data.{missing[0]} is set, but {settings.federation} has no {missing[0]} = FILE.npz with their examples; "
            "make the federation anew by fedaws flower init, or add it"
        )
    read = {part: _read_test(path, federation) for part, path in federation.apart.items()}
    apart = {part: Strangers(x, y, tuple(map(str, y.unique().tolist()))) for part, (x, y) in read.items()}
    return federation, None if federation.test is None else _read_test(federation.test, federation), apart


def _read_test(path: Path, federation: Federation) -> tuple[Tensor, Tensor]:
    arrays = read_npz(path, ["x", "y"], "test set", "save it by numpy.savez(FILE, x=…, y=…)")
    x = as_features(arrays["x"], f"x of {path}")
    y = as_labels(arrays["y"], f"y of {path}")
    if tuple(x.shape[1:]) != federation.example_shape or len(x) != len(y):
        raise FedawsError(f"{path} has x {tuple(x.shape)} and y {tuple(y.shape)}; wanted [n, *example_shape] and [n]")
    return x, y


def _claimed(settings: Settings, cfg: Config) -> _Served:
    """A simulation: the configured data, client by client."""
    if settings.federation:
        raise FedawsError("trust-claims=true believes nodes who they are, federation knows it; set only one of them")
    data = load_dense(cfg)
    names = data.class_names or [None] * (1 + int(data.class_of.max()))
    of_clients = enumerate(data.class_of.tolist())
    members = (Member(i, c, f"client-{i}", class_name=names[c]) for i, c in of_clients)
    federation = Federation(tuple(members), None, data.example_shape, dtype_name(data.x))
    return federation, (data.x_test, data.y_test), data.apart


def _start(
    cfg: Config, federation: Federation, encoder: nn.Module, folder: RunFolder | None, secret_rows: bool
) -> ServerState:
    """θ⁰ as `fedaws train` has it, and W⁰; as many rows as the run has got to, if it goes on."""
    classes = federation.num_classes
    if folder is not None and folder.checkpoints():
        classes = len(folder.load_model().W)
    x = torch.empty(0, *federation.example_shape, dtype=getattr(torch, federation.example_dtype))
    y = torch.empty(0, dtype=torch.int64)
    class_of = torch.tensor([m.class_id for m in federation.members])
    if cfg.privacy.rows == "private":  # a class for each node: who has come since gets a place in the next round
        class_of = class_of[:classes]
    starts = torch.zeros(len(class_of) + 1, dtype=torch.int64)
    data = FederatedData(x, y, starts, class_of, classes, x, y)
    method = method_of(cfg)
    check_setup(cfg, method, data, encoder, _LOG.warning)
    theta = {name: p.detach().clone() for name, p in trainable(encoder).items()}
    rows = first_rows(cfg, classes, secret_rows)
    return start_state(cfg, method, theta, rows, class_of)


def _remember(strategy: FedAwS, folder: RunFolder) -> None:
    """Write down who has joined, and what was dropped."""
    members = tuple((m.name, m.class_id) for m in strategy.federation.members)
    joined, rejected = sorted(strategy.joined or ()), dict(strategy.rejected)
    kept = _Kept(joined=joined, rejected=rejected, members=members, run=strategy.run_id)
    write_text(folder.path / _KEPT_FILE, kept.model_dump_json() + "\n")


def _note_attendance(strategy: FedAwS, folder: RunFolder, round_num: int) -> None:
    """Who answered and who did not, by name; of many nodes only the first of each."""
    answered = [name for name, reason in strategy.answers.items() if reason is None]
    dropped = {name: reason for name, reason in strategy.answers.items() if reason is not None}
    counts = {"round": round_num, "asked": strategy.last["asked"], "replies": len(answered)}
    names = {"dropped": dict(islice(dropped.items(), _MOST_NAMES)), "answered": sorted(answered)[:_MOST_NAMES]}
    append_line(folder.path / PARTICIPANTS, json.dumps(counts | names))


def _restore(strategy: FedAwS, folder: RunFolder | None) -> None:
    path = None if folder is None else folder.path / _KEPT_FILE
    if path is None or not path.exists() or strategy.state is None or strategy.state.round_num == 0:
        return
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise FedawsError(f"cannot go on with {path}: {why}; delete it to take all nodes for known") from None
    if not strategy.federation.continues(kept.members):
        raise FedawsError(
            f"{strategy.federation.path} moves, drops or reclassifies nodes that the run in {path.parent} began with; "
            "add nodes at the end, and let those that leave stay with removed = true"
        )
    strategy.joined = set(kept.joined)
    strategy.rejected.update(kept.rejected)
    strategy.run_id = kept.run or strategy.run_id
    _LOG.info("going on after round %d", strategy.state.round_num)
