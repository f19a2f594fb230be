"""Private runs: what they promise, what they write down before anybody sees it, what they refuse."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import fedaws
from fedaws import Config, FederatedData, Reporter, Run, from_arrays
from fedaws.core.method import OwnLoss
from fedaws.core.methods import method_of
from fedaws.core.sums import tell_moments
from fedaws.privacy.accountant import AtMost, Fixed, Poisson, epsilon, epsilon_if_known
from fedaws.privacy.mechanism import beside_count, noised
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from fedaws.record.ledger import LEDGER, PARTICIPATIONS, Ledger, Terms
from fedaws.record.state import read_state
from fedaws.training.session import Interrupted
from helpers import refusal

PEOPLE = 40
PRIVATE = ("method=fedaws", "privacy.rows=private", "spread.regularizer=moments")
PLAIN = ["model.embedding_dim=4", "train.rounds=2", "privacy.clip=0.1", "privacy.noise=1"]


def federation() -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(PEOPLE).repeat_interleave(3)
    return from_arrays(torch.randn(len(y), 6, generator=rng) + torch.randn(PEOPLE, 6, generator=rng)[y], y)


def spoilt(client: int, value: float) -> FederatedData:
    """The same, but that all numbers of one client's examples are this one."""
    data = federation()
    assert isinstance(data.x, torch.Tensor)
    return replace(data, x=torch.where((data.y == client)[:, None], value, data.x))


def config(*settings: str) -> Config:
    usual = ["method=fixed-spread", "model.embedding_dim=4", "model.hidden=[]", "train.rounds=6"]
    often = ["train.evaluate_every=2", "train.checkpoint_every=2", "privacy.clip=0.1", "privacy.noise=0.5"]
    steps = [] if "method=fedaws" in settings else ["options.steps=5"]
    return Config().override([*usual, *often, *steps, *settings])


quiet = Reporter(on_warning=lambda _: None)


def trained(cfg: Config, folder: Path | None = None, resume: bool = False, **more: Any) -> Run:
    return fedaws.train(
        federation(), config=cfg, folder=folder, resume=resume, reporter=more.pop("reporter", quiet), **more
    )


def releases(folder: Path) -> int:
    return int(json.loads((folder / LEDGER).read_text())["releases"])


# --- what is promised -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "cohorts"),
    [
        ([], AtMost()),
        (["clients.per_round=40"], AtMost()),
        (["clients.per_round=10"], Fixed(40, 10)),
        (["clients.per_round=10", "clients.sampling=poisson"], Poisson(0.25)),
    ],
)
def test_epsilon_is_of_the_rounds_so_far_by_the_accounting_of_their_cohorts(
    settings: list[str], cohorts: AtMost | Fixed | Poisson
) -> None:
    run = trained(config("privacy.delta=0.01", *settings))
    for row in run.metrics:
        assert row["dp_epsilon"] == pytest.approx(epsilon(0.5, 0.01, row["round"], cohorts))
    facts = run.facts.privacy
    assert facts is not None
    assert facts.epsilon == run.metrics[-1]["dp_epsilon"]
    assert facts.epsilon_if_known == pytest.approx(epsilon_if_known(0.5, 0.01, 6, cohorts))
    assert (facts.releases, facts.delta, facts.clip, facts.noise) == (6, 0.01, 0.1, 0.5)
    assert facts.neighbours == cohorts.neighbours


def test_a_target_is_met_at_the_last_round_and_not_before() -> None:
    run = trained(config("privacy.noise=none", "privacy.epsilon=3"))
    spent = [row["dp_epsilon"] for row in run.metrics]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(3.0, rel=1e-3)
    assert spent[-1] <= 3.0
    assert run.facts.privacy.delta == pytest.approx(PEOPLE**-1.1)


def test_the_record_says_what_is_covered_and_what_is_not(tmp_path: Path) -> None:
    fixed = trained(config(), tmp_path / "fixed").facts.privacy
    assert (fixed.covers, fixed.rows) == ("theta", "nothing released")
    own = trained(Config().override([*PLAIN, "method=positive-only"]), tmp_path / "own")
    assert (own.facts.privacy.covers, own.facts.privacy.rows) == ("theta", "none")
    assert fedaws.load(tmp_path / "own").facts.privacy == own.facts.privacy


def test_of_private_rows_the_means_are_covered_too_and_the_ledger_prices_one_release_a_round(tmp_path: Path) -> None:
    run = trained(config(*PRIVATE, "privacy.delta=0.01"), tmp_path)
    facts = run.facts.privacy
    assert (facts.covers, facts.rows) == ("theta and means of rows", "joint")
    assert (facts.releases, releases(tmp_path)) == (6, 6)
    assert facts.epsilon == pytest.approx(epsilon(0.5, 0.01, 6, AtMost()))
    assert not run.W.equal(trained(config(*PRIVATE, "privacy.delta=0.01")).W)  # other noise, other rows


def test_private_rows_with_noise_resume_with_their_means_and_spend_nothing_twice(tmp_path: Path) -> None:
    cfg = config(*PRIVATE, "clients.per_round=10", "clients.sampling=poisson")
    stop = Reporter(should_stop=iter([False, False, True]).__next__, on_warning=lambda _: None)
    with pytest.raises(Interrupted):
        trained(cfg, tmp_path, reporter=stop)
    tensors, _ = read_state(RunFolder(tmp_path).checkpoints()[-1])
    assert float(tensors["spread/noise"].min()) > 0
    assert not tensors["spread/heard"].any()
    assert trained(cfg, tmp_path, resume=True).facts.privacy.releases == releases(tmp_path) == 6


def test_private_rows_with_next_to_no_noise_train_as_without_it() -> None:
    still = config(*PRIVATE, "train.rounds=1", "privacy.clip=none", "privacy.noise=none")
    nearly = trained(config(*PRIVATE, "train.rounds=1", "privacy.clip=100", "privacy.noise=1e-8"))
    torch.testing.assert_close(nearly.W, trained(still).W, atol=1e-5, rtol=0)


def test_with_a_fixed_number_a_round_trained_rows_have_no_amplification() -> None:
    fixed = trained(config("clients.per_round=10")).facts.privacy
    rows = trained(config(*PRIVATE, "clients.per_round=10")).facts.privacy
    assert fixed.epsilon != fixed.epsilon_if_known
    assert rows.epsilon == rows.epsilon_if_known == fixed.epsilon_if_known


FOLLOWS = ("privacy.clip_quantile=0.5", "clients.per_round=20", "clients.sampling=poisson")


@pytest.mark.parametrize("rows", [(), PRIVATE], ids=["fixed", "private"])
def test_a_clip_that_follows_the_changes_costs_what_one_that_stays_does(rows: tuple[str, ...]) -> None:
    run = trained(config(*rows, *FOLLOWS, "privacy.delta=0.01"))
    facts = run.facts.privacy
    assert facts.epsilon == pytest.approx(epsilon(0.5, 0.01, 6, Poisson(0.5)))
    assert (facts.releases, facts.clip) == (6, 0.1)
    clips = [row["clip"] for row in run.metrics]
    assert len({0.1, *clips}) == 4


def test_changes_are_cut_and_noised_by_the_clip_of_their_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    def noted(total: Any, theta: Any, clip: float, noise: float, *rest: Any) -> Any:
        seen.append((clip, noise))
        return noised(total, theta, clip, noise, *rest)

    monkeypatch.setattr("fedaws.training.protection.noised", noted)
    run = trained(config(*FOLLOWS, "train.evaluate_every=1", "train.schedule=linear"))
    clips = [0.1, *(row["clip"] for row in run.metrics)][:6]
    assert [clip for clip, _ in seen] == pytest.approx([clip * (6 - t) / 6 for t, clip in enumerate(clips)])
    assert {noise for _, noise in seen} == {beside_count(0.5, 20)}


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_it_finds_the_changes_lengths_whatever_the_runner(runner: str) -> None:
    still = [f"train.runner={runner}", "privacy.clip=1e-4", "privacy.noise=0.01", "privacy.clip_quantile=0.5"]
    # Nobody is inside: e^(0.2 · 0.5) a round; the count's noise is 2 of 40 people.
    clips = [row["clip"] for row in trained(config(*still)).metrics]
    assert clips[-1] == pytest.approx(1e-4 * math.exp(0.1 * 6), rel=0.2)


def test_it_goes_on_from_where_a_run_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.privacy.mechanism.os.urandom", lambda count: (b"a little chance" * count)[:count])
    cfg = config(*FOLLOWS)
    whole = trained(cfg)
    stop = Reporter(should_stop=iter([False, False, True]).__next__, on_warning=lambda _: None)
    with pytest.raises(Interrupted):
        trained(cfg, tmp_path, reporter=stop)
    again = trained(cfg, tmp_path, resume=True)
    assert again.metrics[-1]["clip"] == whole.metrics[-1]["clip"]
    assert all(again.theta[k].equal(tensor) for k, tensor in whole.theta.items())


def test_noise_on_rows_alone_promises_nothing() -> None:
    settings = ["privacy.clip=none", "privacy.noise=none", "privacy.row_noise=0.1"]
    first, second = (trained(config(*PRIVATE, *settings)) for _ in range(2))
    assert first.facts.privacy is None
    assert "dp_epsilon" not in first.metrics[-1]
    assert not first.W.equal(second.W)


def test_a_run_without_noise_promises_nothing() -> None:
    run = trained(config("privacy.noise=none"))
    assert run.facts.privacy is None
    assert "dp_epsilon" not in run.metrics[-1]


def test_two_runs_of_one_seed_have_other_noise() -> None:
    first, second = (trained(config()).theta for _ in range(2))
    assert all(not first[k].equal(second[k]) for k in first)


def test_without_much_noise_a_private_run_learns_what_an_ordinary_one_does() -> None:
    usual = config("privacy.clip=none", "privacy.noise=none")
    nearly = trained(config("privacy.clip=100", "privacy.noise=1e-8")).theta
    for k, expected in trained(usual).theta.items():
        torch.testing.assert_close(nearly[k], expected, atol=1e-5, rtol=0)


def test_a_run_that_may_end_by_what_it_sees_owes_all_its_rounds() -> None:
    """(ε, δ) of fewer rounds holds where their number was fixed before, not where it depends on what was released."""
    patient = ["train.stop_on=strangers", "train.patience=1", "data.enroll=1", "train.evaluate_every=1"]
    cfg = config("privacy.delta=0.01", "train.rounds=50", *patient)
    run = fedaws.train(federation_apart(), config=cfg, reporter=quiet)
    facts = run.facts.privacy
    assert facts.releases < 50
    assert facts.epsilon == run.metrics[-1]["dp_epsilon"] == pytest.approx(epsilon(0.5, 0.01, 50, AtMost()))


# --- resuming -------------------------------------------------------------------------------------------------------


def test_a_stopped_run_spends_nothing_twice(tmp_path: Path) -> None:
    stop = Reporter(should_stop=lambda: True, on_warning=lambda _: None)
    with pytest.raises(Interrupted):
        trained(config(), tmp_path, reporter=stop)
    assert releases(tmp_path) == 1
    run = trained(config(), tmp_path, resume=True)
    assert run.facts.privacy.releases == releases(tmp_path) == 6


class Crash(Exception):  # noqa: N818 - not of the code under test
    """The machine went off."""


def crash_after(rounds: int) -> Reporter:
    def on_round(done: int, loss: float) -> None:
        if done == rounds:
            raise Crash

    return Reporter(on_round=on_round, on_warning=lambda _: None)


def test_a_round_that_a_crash_lost_is_counted_and_counted_again(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trained(config(), tmp_path, reporter=crash_after(5))  # the newest checkpoint is of round 4
    assert releases(tmp_path) == 5
    run = trained(config(), tmp_path, resume=True)
    assert run.facts.privacy.releases == 7
    delta = run.facts.privacy.delta
    assert run.metrics[-1]["dp_epsilon"] == pytest.approx(epsilon(0.5, delta, 7, AtMost()))


def test_a_target_is_not_exceeded_for_a_crash(tmp_path: Path) -> None:
    cfg = config("privacy.noise=none", "privacy.epsilon=3")
    with pytest.raises(Crash):
        trained(cfg, tmp_path, reporter=crash_after(5))
    for _ in range(2):  # and not by trying again
        message = refusal(lambda: trained(cfg, tmp_path, resume=True))
        assert "privacy.epsilon=3 is spent after 6 releases, 1 of them" in message
    assert releases(tmp_path) == 6
    kept = fedaws.load(tmp_path)
    assert kept.facts.round == 5
    assert kept.facts.privacy.epsilon <= 3.0


def test_a_target_that_is_spent_keeps_the_best_round_so_far(tmp_path: Path) -> None:
    choosing = ["train.stop_on=strangers", "data.enroll=1", "train.evaluate_every=1", "train.checkpoint_every=100"]
    cfg, apart = config("privacy.noise=none", "privacy.epsilon=3", *choosing), federation_apart()
    with pytest.raises(Crash):
        fedaws.train(apart, config=cfg, folder=tmp_path, reporter=crash_after(3))
    refusal(lambda: fedaws.train(apart, config=cfg, folder=tmp_path, resume=True, reporter=quiet))
    tensors, facts = read_state(RunFolder(tmp_path).checkpoints()[-1])
    eers = [row["strangers_eer"] for row in RunFolder(tmp_path).metrics()]
    assert facts.round == len(eers) > 1
    assert float(tensors["best/eer"]) == min(eers)


def federation_apart() -> FederatedData:
    data = federation()
    assert isinstance(data.x, torch.Tensor)
    return from_arrays(data.x, data.y, strangers=8)


def test_what_is_spent_is_on_disk_before_the_round_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def no_noise(*_: object) -> None:
        written.append(releases(tmp_path))
        raise Crash

    monkeypatch.setattr("fedaws.training.protection.noised", no_noise)
    with pytest.raises(Crash):
        trained(config(), tmp_path)
    assert written == [1]


def test_a_lost_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trained(config(), tmp_path, reporter=crash_after(5))
    (tmp_path / LEDGER).unlink()
    assert "nobody knows what this run has spent" in refusal(lambda: trained(config(), tmp_path, resume=True))


def test_a_ledger_that_is_lost_before_the_first_checkpoint_is_missed_too(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trained(config(), tmp_path, reporter=crash_after(1))
    assert not RunFolder(tmp_path).checkpoints()
    (tmp_path / LEDGER).unlink()
    assert "nobody knows what this run has spent" in refusal(lambda: trained(config(), tmp_path, resume=True))


def test_a_run_begins_by_writing_that_it_has_spent_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr("fedaws.training.rounds.run_round", crash)
    with pytest.raises(Crash):
        trained(config(), tmp_path)
    written = json.loads((tmp_path / LEDGER).read_text())
    delta, cohorts = pytest.approx(PEOPLE**-1.1), "each client in every round, no amplification"
    terms = {"noise": 0.5, "clip": 0.1, "delta": delta, "people": PEOPLE, "cohorts": cohorts}
    assert written == {**terms, "releases": 0, "left_out": 0}


TERMS = Terms(noise=1.0, clip=0.1, delta=1e-3, people=PEOPLE, cohorts="all")


def ledger_text(**changes: object) -> str:
    return json.dumps({**TERMS.model_dump(), "releases": 3, "left_out": 0, **changes})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ledger_text(releases=-4), "releases"),
        (ledger_text(noise=2.0), "is of releases with noise=2.0, now it is 1.0"),
        (ledger_text(clip=0.2), "is of releases with clip=0.2, now it is 0.1"),
        (ledger_text(delta=1e-2), "is of releases with delta=0.01, now it is 0.001"),
        (ledger_text(cohorts="some"), "is of releases with cohorts=some, now it is all"),
        (ledger_text(people=7), "is of releases with people=7, now it is 40"),
        ("{", "JSON"),
        ('{"releases": 3}', "noise"),
    ],
)
def test_a_ledger_that_cannot_be_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / LEDGER).write_text(text)
    assert wanted in refusal(lambda: Ledger(tmp_path, TERMS).open(begun=True))


def test_a_ledger_that_is_older_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text(ledger_text())
    ledger = Ledger(tmp_path, TERMS)
    ledger.open(begun=True)
    ledger.check(3)
    assert "tells of 3 releases, the checkpoint of 4 rounds" in refusal(lambda: ledger.check(4))


def test_a_new_run_does_not_take_over_what_another_has_spent(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text(ledger_text())
    assert "has spent already" in refusal(lambda: Ledger(tmp_path, TERMS).open(begun=False))


@pytest.mark.parametrize("change", ["privacy.noise=0.4", "privacy.clip=0.2", "privacy.delta=0.1"])
def test_settings_edited_between_two_sittings_are_refused(tmp_path: Path, change: str) -> None:
    with pytest.raises(Crash):
        trained(config(), tmp_path, reporter=crash_after(3))
    (tmp_path / "config.toml").write_text(config(change).with_(data={"name": "own"}).to_toml())
    assert "cannot be priced together" in refusal(lambda: trained(config(change), tmp_path, resume=True))


# --- a limit on participations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["uniform", "poisson"])
def test_nobody_takes_part_more_often_than_the_limit(tmp_path: Path, sampling: str) -> None:
    cfg = config("clients.per_round=13", f"clients.sampling={sampling}", "privacy.participations=2")
    with pytest.raises(Crash):
        trained(cfg, tmp_path, reporter=crash_after(3))
    run = trained(cfg, tmp_path, resume=True)  # round 2 is run again, and counts again
    counts = read_tensors(tmp_path / PARTICIPATIONS)[0]["participations"]
    most = int(counts.max())
    assert most <= 2
    facts = run.facts.privacy
    assert facts.epsilon == pytest.approx(epsilon(0.5, facts.delta, most, AtMost(2)))


def limited(folder: Path) -> Ledger:
    ledger = Ledger(folder, TERMS, limited=True)
    ledger.open(begun=(folder / LEDGER).exists())
    return ledger


def counts_of(ledger: Ledger) -> list[int]:
    assert ledger.participations is not None
    return [int(count) for count in ledger.participations]


def test_counts_of_another_time_than_the_ledgers_are_refused(tmp_path: Path) -> None:
    ledger = limited(tmp_path)
    ledger.spend(torch.tensor([1, 3]))
    older = (tmp_path / PARTICIPATIONS).read_bytes()
    ledger.spend(torch.tensor([1]))
    assert counts_of(limited(tmp_path))[:4] == [0, 2, 0, 1]
    (tmp_path / PARTICIPATIONS).write_bytes(older)
    assert "is not of the 2 releases" in refusal(lambda: limited(tmp_path))
    write_tensors(tmp_path / PARTICIPATIONS, {"participations": torch.zeros(PEOPLE, dtype=torch.int32)}, {})
    assert "is not of the 2 releases" in refusal(lambda: limited(tmp_path))
    (tmp_path / PARTICIPATIONS).unlink()
    assert PARTICIPATIONS in refusal(lambda: limited(tmp_path))


def test_counts_that_a_crash_left_one_ahead_count(tmp_path: Path) -> None:
    ledger = limited(tmp_path)
    ledger.spend(torch.tensor([5]))
    before = (tmp_path / LEDGER).read_bytes()
    ledger.spend(torch.tensor([5]))
    (tmp_path / LEDGER).write_bytes(before)  # it is written second
    found = limited(tmp_path)
    assert (found.releases, counts_of(found)[5]) == (2, 2)


def test_a_limit_that_the_rounds_do_not_fit_into_is_refused() -> None:
    cfg = config("clients.per_round=20", "privacy.participations=2")  # 6 · 20 = 120 of at most 80
    assert "set rounds to 4" in refusal(lambda: trained(cfg))


def test_who_took_part_is_not_written_down_without_a_limit(tmp_path: Path) -> None:
    trained(config("clients.per_round=10", "clients.sampling=poisson"), tmp_path)
    assert not (tmp_path / PARTICIPATIONS).exists()


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["clients.weighting=examples"], "the accounting does not hold with clients.weighting=examples"),
        (["clients.sampling=examples"], "the accounting does not hold with clients.sampling=examples"),
        (["train.enroll=0.5"], "train.enroll=0.5"),
        (["train.last_step=ridge"], "train.last_step=ridge"),
        (["model.start_rows=means"], "model.start_rows=means"),
        (["defence.clip=median"], "defence.clip=median"),
        (["privacy.epsilon=2"], "set one of them to none"),
        (["privacy.clip=none"], "set privacy.clip"),
        (["privacy.noise=none", "privacy.delta=1e-5"], "privacy.delta has no effect without noise"),
        (["privacy.noise=none", "privacy.clip_quantile=0.5"], "privacy.clip_quantile has no effect without noise"),
        (["privacy.noise=none", "privacy.row_share=0.5"], "privacy.row_share has no effect without noise"),
        (["privacy.row_noise=0.5"], "privacy.noise or privacy.epsilon decides"),
        (["privacy.noise=none", "privacy.row_noise=0.5"], "it is for privacy.rows=private"),
        (["privacy.noise=none", "privacy.participations=3"], "privacy.participations has no effect without noise"),
        (["privacy.noise=none", "privacy.public_start=true"], "privacy.public_start has no effect without noise"),
        (["privacy.delta=1"], "privacy.delta"),
        (["privacy.noise=0"], "privacy.noise"),
    ],
)
def test_settings_that_break_the_accounting_are_refused(settings: list[str], reason: str) -> None:
    assert reason in refusal(lambda: config(*settings))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedaws", "moves a client's row by the others' rows"),
        ("agnostic", "no ε holds"),
        ("softmax", "trains all class embeddings"),
        ("contrastive", "trains all class embeddings"),
    ],
)
def test_methods_of_which_no_epsilon_holds_are_refused(method: str, reason: str, tmp_path: Path) -> None:
    cfg = Config().override([*PLAIN, f"method={method}"])
    assert reason in refusal(lambda: trained(cfg, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_rows_that_are_told_in_a_way_of_ones_own_are_refused(tmp_path: Path) -> None:
    private = config(*PRIVATE)
    method = method_of(private)
    assert method.own_spread is not None
    own = replace(method, name="own", own_spread=replace(method.own_spread, tell=tell_moments))
    assert "nobody knows how far" in refusal(lambda: trained(private, tmp_path / "run", method=own))
    assert not (tmp_path / "run").exists()


def test_rows_that_clients_of_a_class_share_are_refused(tmp_path: Path) -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    shared = from_arrays(x, torch.arange(12) % 3, clients_per_class=2, x_test=x, y_test=torch.arange(12) % 3)
    cfg = Config().override([*PLAIN, "method=positive-only"])
    assert "averages the rows of the clients of a class" in refusal(lambda: fedaws.train(shared, config=cfg))


@pytest.mark.parametrize("method", ["fixed", "positive-only"])
def test_methods_without_spreading_may_be_private(method: str) -> None:
    assert trained(Config().override([*PLAIN, f"method={method}"])).facts.privacy.releases == 2


def test_a_start_whose_cost_nobody_knows_is_refused(tmp_path: Path) -> None:
    first = trained(config("privacy.noise=none"), tmp_path / "first")
    for start in (first, first.theta, tmp_path / "first"):
        assert "set privacy.public_start=true" in refusal(partial(trained, config(), start=start))
    named = config(f"model.start={tmp_path / 'first'}")
    assert "set privacy.public_start=true" in refusal(lambda: trained(named, tmp_path / "second"))
    assert not (tmp_path / "second").exists()


def test_an_encoder_that_another_run_has_trained_is_such_a_start(tmp_path: Path) -> None:
    encoder, cfg = nn.Linear(6, 4), config()
    trained(config("privacy.noise=none"), encoder=encoder)
    assert "set privacy.public_start=true" in refusal(lambda: trained(cfg, tmp_path / "run", encoder=encoder))
    assert not (tmp_path / "run").exists()
    trained(config("privacy.public_start=true"), tmp_path / "run", encoder=encoder)
    again = trained(config("privacy.public_start=true"), tmp_path / "run", resume=True, encoder=encoder)
    assert again.facts.privacy.releases == 6


def test_a_run_goes_on_with_the_encoder_that_it_has_trained(tmp_path: Path) -> None:
    encoder = nn.Linear(6, 4)
    trained(config(), tmp_path, encoder=encoder)
    assert trained(config(), tmp_path, resume=True, encoder=encoder).facts.privacy.releases == 6


def test_a_start_that_is_said_to_be_public_is_taken(tmp_path: Path) -> None:
    first = trained(config("privacy.noise=none"))
    run = trained(config("privacy.public_start=true", "privacy.noise=0.1", "privacy.clip=1e-9"), start=first)
    for k, before in first.theta.items():
        torch.testing.assert_close(run.theta[k], before, atol=1e-6, rtol=0)
    assert run.config.privacy.public_start


# --- what goes with the model ---------------------------------------------------------------------------------------


def test_a_private_model_tells_nothing_of_the_data_without_noise(tmp_path: Path) -> None:
    run = trained(config(), tmp_path)
    for facts in (run.facts, fedaws.load(tmp_path).facts):
        assert (facts.data, facts.loss, facts.loss_sum, facts.seconds, facts.parts) == (None, 0, 0, 0, {})
    ordinary = trained(config("privacy.noise=none")).facts
    assert ordinary.data
    assert ordinary.loss
    assert ordinary.seconds
    assert ordinary.parts


def test_other_data_are_refused_when_a_private_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trained(config(), tmp_path, reporter=crash_after(3))
    again = partial(fedaws.train, spoilt(7, 0.0), config=config(), folder=tmp_path, resume=True, reporter=quiet)
    assert "was started with data=" in refusal(again)


# --- numbers that are not finite ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fixed", "positive-only"])
@pytest.mark.parametrize("runner", ["pooled", "stacked", "serial"])
def test_a_client_that_is_not_finite_is_left_out_and_counted(runner: str, method: str, tmp_path: Path) -> None:
    told: list[str] = []
    settings = [*PLAIN, f"method={method}", f"train.runner={runner}", "train.rounds=6", "train.evaluate_every=2"]
    cfg, reporter = Config().override(settings), Reporter(on_warning=told.append)
    run = fedaws.train(spoilt(7, torch.nan), config=cfg, folder=tmp_path, reporter=reporter)
    assert all(bool(p.isfinite().all()) for p in [run.W, *run.theta.values()])
    assert [row["left_out"] for row in run.metrics] == [2, 4, 6]
    assert json.loads((tmp_path / LEDGER).read_text())["left_out"] == 6
    assert sum("is not finite, and counts as zero" in line for line in told) == 1


def test_without_noise_such_a_client_ends_the_run() -> None:
    cfg = config("privacy.noise=none")
    assert "training diverged" in refusal(partial(fedaws.train, spoilt(7, torch.nan), config=cfg, reporter=quiet))


def test_losses_that_add_up_to_too_much_do_not_end_a_private_run() -> None:
    """Whether a run goes on is seen by all, and what is seen has noise."""
    cfg = Config().override([*PLAIN, "method=fixed"])
    method = method_of(cfg)
    own_loss = cast(OwnLoss, method.loss)

    def loss(embeddings: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return own_loss(embeddings, w) + 3e38  # of one person finite, of two no float32

    assert trained(cfg, method=replace(method, name="own", loss=loss)).facts.privacy.releases == 2


# --- told -----------------------------------------------------------------------------------------------------------


def warnings_of(cfg: Config, data: FederatedData | None = None, encoder: nn.Module | None = None) -> list[str]:
    told: list[str] = []
    fedaws.train(data or federation(), encoder, cfg, reporter=Reporter(on_warning=told.append))
    return told


def test_noise_that_drowns_the_signal_is_told() -> None:
    # 28 parameters, 40 people, z = 100: 100 · √28 / 40 = 13.
    assert any("the noise is 13 ×" in line for line in warnings_of(config("privacy.noise=100")))
    assert not any("the noise is" in line for line in warnings_of(config("privacy.noise=0.5")))


def test_an_encoder_that_is_clipped_client_by_client_is_told() -> None:
    encoder = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    told = warnings_of(config(), encoder=encoder)
    assert any("every client has a backward pass of its own" in line for line in told)


def test_several_clients_of_a_class_are_told_who_the_promise_is_for() -> None:
    y = torch.arange(4).repeat_interleave(6)
    data = from_arrays(torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), y, clients_per_class=2)
    assert any("ε holds for one client" in line for line in warnings_of(config(), data))
