"""Clients that join a run and leave it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaws
from fedaws import Config, Reporter
from fedaws.core.algorithm import run_round
from fedaws.core.attendance import NEVER, among, attendance_of, entered
from fedaws.core.method import Spread, When
from fedaws.core.spreadout import make_spread
from fedaws.data import load_data
from fedaws.evaluate.model import REMOVED
from fedaws.models import build_encoder
from fedaws.record.folder import RunFolder
from fedaws.training.session import Interrupted
from helpers import dense, refusal

QUIET = Reporter(on_warning=lambda message: None)


@pytest.fixture
def late(tiny: Config) -> Config:
    """Class 3 comes in round 6, class 0 goes in round 9, of twelve."""
    return tiny.override(["clients.join=[[6, [3]]]", "clients.leave=[[9, [0]]]", "train.evaluate_every=1"])


def trained(cfg: Config, folder: Path | None = None, **more: object) -> fedaws.Run:
    return fedaws.train(config=cfg, folder=folder, reporter=QUIET, **more)  # type: ignore[arg-type]


def cohorts_of(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[Tensor], fedaws.Run]:
    """Who took part in each round, W at its begin, and the run."""
    seen: list[list[int]] = []
    before: list[Tensor] = []

    def watched(state, available, run_clients, *args, **kwargs):  # type: ignore[no-untyped-def]
        before.append(state.W.clone())
        asked = lambda sent: seen.append(sent.cohort.tolist()) or run_clients(sent)  # noqa: E731
        return run_round(state, available, asked, *args, **kwargs)

    monkeypatch.setattr("fedaws.training.rounds.run_round", watched)
    return seen, before, trained(cfg)


def test_a_run_is_evaluated_later_as_it_was_in_training(late: Config, tmp_path: Path) -> None:
    last = trained(late, tmp_path / "run").metrics[-1]
    again = fedaws.load(tmp_path / "run").evaluate()
    assert {name: last[name] for name in again} == pytest.approx(again)


# --- the schedule ---------------------------------------------------------------------------------------------------


def test_shares_are_parts_of_each_other_and_the_first_to_come_go_first() -> None:
    cfg = Config(clients={"join": [[0, 0.2], [5, 0.6], [9, 1.0]], "leave": [[20, 0.2]]})
    who = attendance_of(cfg, 10)
    assert [int(who.present(t).sum()) for t in (0, 4, 5, 9, 19, 20)] == [2, 2, 6, 10, 10, 8]
    assert not (who.present(0) & who.present(20)).any()
    assert (who.present(0) <= who.present(5)).all()


def test_who_comes_when_is_the_seeds() -> None:
    cfg = Config(clients={"join": [[0, 0.5], [5, 1.0]]})
    first = attendance_of(cfg, 100).present(0)
    assert first.equal(attendance_of(cfg, 100).present(0))
    assert not first.equal(attendance_of(cfg.override(["seed=1"]), 100).present(0))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["clients.join=[[0, 0.5], [5, [1]]]"], "mixes shares and lists of classes"),
        (["clients.join=[[1, 0.5], [5, 1.0]]"], "wanted who is there in round 0 first, and the share 1.0 last"),
        (["clients.join=[[0, 0.5], [5, 0.8]]"], "wanted who is there in round 0 first, and the share 1.0 last"),
        (["clients.join=[[0, 0.5], [12, 1.0]]"], "wanted rounds from 0 to train.rounds − 1 = 11"),
        (["clients.join=[[0, 0.5], [5, 0.4]]"], "shares that do not rise"),
        (["clients.leave=[[5, [1]], [5, [2]]]"], "rounds that do not rise"),
        (["clients.leave=[[5, 1.0]]"], "leaves nobody"),
        (["clients.leave=[[5]]"], "wanted pairs [round, share] or [round, [classes]]"),
        (["clients.leave=[[5, [4]]]"], "clients.leave has class 4 of 4"),
        (["clients.leave=[[5, [1]], [6, [1]]]"], "clients.leave has class 1 twice"),
        (["clients.join=[[6, [1]]]", "clients.leave=[[5, [1]]]"], "class 1 leaves in round 5 and joins in round 6"),
        (["clients.leave=[[5, [1, 2, 3]]]"], "a round with 1 of 4 classes"),
        (["clients.leave=[[5, [1]]]", "method=softmax"], "sends all of W to everybody"),
        (["clients.leave=[[5, [1]]]", "method=family"], "clients of several classes"),
        (["clients.leave=[[5, [1]]]", "privacy.rows=private", "spread.regularizer=moments"], "which shows it"),
        (["clients.leave=[[5, [1]]]", "privacy.clip=1", "privacy.noise=1"], "the accounting does not hold"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(tiny: Config, settings: list[str], told: str) -> None:
    assert told in refusal(lambda: trained(tiny.override(settings)))


# --- a run ----------------------------------------------------------------------------------------------------------


def test_nobody_is_asked_before_they_join_nor_after_they_leave(late: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _, _ = cohorts_of(late, monkeypatch)
    assert seen == [[0, 1, 2]] * 6 + [[0, 1, 2, 3]] * 3 + [[1, 2, 3]] * 3


def test_who_is_not_there_has_no_row(late: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    _, before, run = cohorts_of(late, monkeypatch)
    assert [(W.norm(dim=1) == 0).nonzero().flatten().tolist() for W in before] == [[3]] * 6 + [[]] * 3 + [[0]] * 3
    assert run.W[0].eq(0).all()
    assert run.model.bias is not None
    assert run.model.bias.tolist() == pytest.approx([REMOVED, 0, 0, 0])
    assert 0 not in run.identify(dense(load_data(late).x_test), 3).classes


def test_a_newcomers_row_is_the_direction_of_its_mean_embedding(tiny: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    # θ does not move, so that the θ of round 6 is that of the start
    cfg = tiny.override(["clients.join=[[6, [3]]]", "clients.lr=1e-9", "clients.class_lr=0.1"])
    _, before, run = cohorts_of(cfg, monkeypatch)
    data = load_data(cfg)
    with torch.no_grad():
        z = F.normalize(build_encoder(cfg.model, data.x.shape[1:], cfg.seed)(dense(data.x)[data.y == 3]), dim=1)
    assert torch.allclose(before[6][3], F.normalize(z.mean(0), dim=0), atol=1e-5)
    assert not torch.allclose(run.W[3], before[6][3], atol=1e-3)  # then it trains


def test_before_anybody_joins_the_run_is_that_of_the_others_alone(
    tiny: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three classes of the same examples and first rows, without a fourth: rows move alike, so none was spread from it.
    cfg = tiny.override(["clients.join=[[11, [3]]]", "train.schedule=constant"])
    _, before, _ = cohorts_of(cfg, monkeypatch)
    data = load_data(cfg)
    known = data.y < 3
    alone = fedaws.from_arrays(dense(data.x)[known], data.y[known])
    start = before[0][:3]
    method = replace(fedaws.core.methods.method_of(cfg), name="fedaws from these rows", start=lambda rows: start)
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    short = cfg.override(["clients.join=[]", "train.rounds=11", "train.schedule=constant"])
    few = fedaws.train(alone, encoder, short, method=method, reporter=QUIET)
    assert torch.allclose(before[11][:3], few.W, atol=1e-6)


def test_with_everybody_there_a_schedule_changes_no_bit(tiny: Config) -> None:
    cfg = tiny.override(["clients.per_round=2"])
    plain, there = trained(cfg), trained(cfg.override(["clients.join=[[0, 1.0]]"]))
    assert plain.W.equal(there.W)
    assert there.model.bias is None


def test_once_all_have_joined_cohorts_are_those_of_a_run_without_a_schedule(
    tiny: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = tiny.override(["clients.per_round=2"])
    plain, _, _ = cohorts_of(cfg, monkeypatch)
    late, _, _ = cohorts_of(cfg.override(["clients.join=[[5, [2, 3]]]"]), monkeypatch)
    assert late[5:] == plain[5:]
    assert late[:5] == [[0, 1]] * 5


@pytest.mark.parametrize("method", ["fedaws", "positive-only", "fixed", "agnostic", "fixed-spread"])
def test_runners_agree_on_who_comes_and_goes(late: Config, method: str) -> None:
    runs = [trained(late.override([f"train.runner={r}", f"method={method}"])) for r in ("serial", "pooled", "stacked")]
    assert torch.allclose(runs[0].W, runs[1].W, atol=1e-5)
    assert torch.allclose(runs[0].W, runs[2].W, atol=1e-5)


SPREADINGS = [
    [],
    ["spread.regularizer=moments"],
    ["spread.regularizer=nearest", "spread.neighbors=1", "spread.candidates=2", "spread.remember=true"],
    ["defence.row_step=0.5", "defence.anchor=0.3"],
    ["train.last_step=lda"],
]


@pytest.mark.parametrize("settings", SPREADINGS, ids=lambda s: " ".join(s) or "margin")
@pytest.mark.parametrize("stop", [3, 6, 7, 9, 10])
def test_a_run_that_people_join_and_leave_resumes_to_the_same_bits(
    late: Config, tmp_path: Path, settings: list[str], stop: int
) -> None:
    cfg, done = late.override(settings), list[int]()
    stopping = Reporter(
        on_round=lambda number, _: done.append(number),
        should_stop=lambda: len(done) >= stop,
        on_warning=lambda message: None,
    )
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=tmp_path / "run", reporter=stopping)
    resumed, whole = trained(cfg, tmp_path / "run", resume=True), trained(cfg)
    assert resumed.W.equal(whole.W)
    assert all(whole.theta[k].equal(v) for k, v in resumed.theta.items())
    timeless = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics] for run in (resumed, whole)]
    assert timeless[0] == timeless[1]
    assert fedaws.load(tmp_path / "run").identify(torch.zeros(1, 6), 3).classes.tolist()[0].count(0) == 0


def test_measures_are_of_those_who_are_there(late: Config, tmp_path: Path) -> None:
    run = trained(late.override(["clients.join=[]", "clients.leave=[[9, [0]]]"]), tmp_path / "run")
    test = load_data(late)
    known = test.y_test != 0
    found = run.identify(dense(test.x_test)[known]).classes[:, 0]
    assert run.metrics[-1]["precision@1"] == float((found == dense(test.y_test)[known]).double().mean())
    W = run.W[1:]
    cosines = (W @ W.T).fill_diagonal_(-1)
    assert run.metrics[-1]["max_cosine"] == pytest.approx(float(cosines.max()), abs=1e-6)


def test_the_last_step_asks_nobody_who_has_left(late: Config) -> None:
    run = trained(late.override(["train.last_step=ridge"]))
    data = load_data(late)
    stay = data.y != 0
    z = run.embed(dense(data.x)[stay]).double()
    gram = z.T @ z
    sums = torch.zeros(4, 5, dtype=torch.float64).index_add_(0, data.y[stay], z)
    wanted = torch.linalg.solve(gram + torch.eye(5) * gram.trace() / 5, sums.T).T
    assert torch.allclose(run.W.double(), wanted, atol=1e-4)


def test_a_run_that_people_left_has_no_row_of_theirs_in_its_model(late: Config, tmp_path: Path) -> None:
    trained(late, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    model = folder.load_model()
    assert all(model.W[0] == 0)
    assert model.bias is not None
    assert model.bias[0] <= REMOVED


# --- spreading a part -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[], ["spread.regularizer=moments"], SPREADINGS[2]], ids=str)
def test_those_there_are_spread_as_if_there_were_no_others(settings: list[str]) -> None:
    cfg, rng = Config().override(settings), torch.Generator().manual_seed(0)
    W = F.normalize(torch.randn(9, 5, generator=rng), dim=1)
    here = torch.tensor([True, False, True, True, False, True, True, True, False])
    ids, spread, when = here.nonzero().flatten(), make_spread(cfg), When(0, 0.1, 1.0)
    heard = torch.tensor([2, 5])
    whole, part = W.clone(), W[ids]
    after = among(spread, here).step(whole, heard, when, torch.Generator().manual_seed(1), spread.init(W))
    spread.step(part, torch.tensor([1, 3]), when, torch.Generator().manual_seed(1), spread.init(part))
    assert whole[ids].equal(part)
    assert whole[~here].equal(W[~here])
    for known in after.values():  # neighbours by their own numbers, and none that is absent
        assert set(known[heard].flatten().tolist()) <= set(ids.tolist())


def test_a_newcomers_entries_in_a_memory_begin_anew() -> None:
    memory = {"rows": torch.tensor([[1.0], [2.0], [3.0]]), "shared": torch.tensor([7.0])}
    found = entered(memory, {"rows": torch.zeros(3, 1), "shared": torch.zeros(1)}, torch.tensor([False, True, False]))
    assert found["rows"].flatten().tolist() == [1.0, 0.0, 3.0]
    assert found["shared"].tolist() == [7.0]


def test_a_memory_without_classes_is_handed_on(tiny: Config) -> None:
    def step(W: Tensor, _: Tensor, __: When, ___: torch.Generator, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"count": memory["count"] + len(W)}

    here = torch.tensor([True, True, False])
    spread = among(Spread(step, lambda W: {"count": torch.zeros(1)}), here)
    made = spread.step(torch.eye(3), torch.tensor([0]), When(0, 1.0, 1.0), torch.Generator(), {"count": torch.zeros(1)})
    assert made["count"].tolist() == [2.0]


def test_a_class_that_stays_never_leaves(tiny: Config) -> None:
    assert attendance_of(tiny, 4).leaves.tolist() == [NEVER] * 4
