"""`train`, `load` and the `Run` they give: resuming, loading, classifying, and what is refused."""

import copy
import errno
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import fedaws
from fedaws import Config, FederatedData, Reporter, Run
from fedaws.data import load_data
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from fedaws.training.session import Interrupted
from fedaws.training.train import initial_state
from fedaws.types import ServerState
from helpers import dense, refusal


def stopping_after(rounds: int) -> Reporter:
    """Asks the run to stop after so many rounds of this sitting, as Ctrl-C does."""
    seen: list[int] = []
    return Reporter(on_round=lambda done, loss: seen.append(done), should_stop=lambda: len(seen) >= rounds)


def interrupted(cfg: Config, folder: Path, rounds: int, **given: Any) -> None:
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=folder, resume=True, reporter=stopping_after(rounds), **given)


def bits(run: Run) -> dict[str, list[int]]:
    """All weights as integers: equal only if every bit is."""
    return {name: t.view(torch.int32).flatten().tolist() for name, t in {"W": run.W, **run.theta}.items()}


def rows(folder: Path) -> list[dict[str, float]]:
    """metrics.jsonl without the one column that a clock decides."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def own_data(classes: int = 3, **options: Any) -> FederatedData:
    rng = np.random.default_rng(0)
    y = np.arange(30) % classes
    x = (rng.normal(size=(30, 6)) + 5 * np.eye(6)[y]).astype(np.float32)
    return fedaws.from_arrays(x, y, **options)


# --- a run is a pure function of its configuration ------------------------------------------------------------------


def test_the_same_configuration_gives_the_same_bits(tiny: Config) -> None:
    assert bits(fedaws.train(config=tiny)) == bits(fedaws.train(config=tiny))


def test_another_seed_gives_other_weights(tiny: Config) -> None:
    assert bits(fedaws.train(config=tiny)) != bits(fedaws.train(config=tiny.override(["seed=1"])))


def test_training_leaves_the_callers_random_numbers_alone(tiny: Config) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fedaws.train(config=tiny)
    assert torch.rand(3).equal(expected)


def test_a_record_does_not_change_the_run(tiny: Config, tmp_path: Path) -> None:
    assert bits(fedaws.train(config=tiny)) == bits(fedaws.train(config=tiny, folder=tmp_path))


def test_rounds_are_evaluated_as_often_as_asked_and_at_the_end(tiny: Config) -> None:
    run = fedaws.train(config=tiny.override(["train.rounds=10"]))
    assert [row["round"] for row in run.metrics] == [4, 8, 10]


def test_a_row_has_the_mean_loss_since_the_row_before(tiny: Config) -> None:
    losses: list[float] = []
    run = fedaws.train(config=tiny, reporter=Reporter(on_round=lambda done, loss: losses.append(loss)))
    assert run.metrics[1]["loss"] == pytest.approx(sum(losses[4:8]) / 4)


# --- stopping and going on ------------------------------------------------------------------------------------------


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sittings=st.lists(st.integers(1, 6), min_size=1, max_size=4), momentum=st.sampled_from([0.0, 0.9]))
def test_a_run_stopped_anywhere_ends_with_the_same_bits(
    tiny: Config, tmp_path_factory: pytest.TempPathFactory, sittings: list[int], momentum: float
) -> None:
    cfg = tiny.override([f"server.momentum={momentum}", "clients.per_round=2", "train.rounds=25"])
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    expected = fedaws.train(config=cfg, folder=whole)
    for sitting in sittings:
        interrupted(cfg, parts, sitting)
    resumed = fedaws.train(config=cfg, folder=parts, resume=True)
    assert bits(resumed) == bits(expected)
    assert rows(parts) == rows(whole)
    assert [row["round"] for row in resumed.metrics] == [4, 8, 12, 16, 20, 24, 25]


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_the_optimisers_memory_is_resumed(tiny: Config, tmp_path: Path, optimizer: str) -> None:
    cfg = tiny.override([f"server.optimizer={optimizer}", "server.momentum=0.0", "server.lr=0.01"])
    interrupted(cfg, tmp_path, 7)
    assert bits(fedaws.train(config=cfg, folder=tmp_path, resume=True)) == bits(fedaws.train(config=cfg))


@pytest.mark.parametrize("method", ["positive-only", "fixed", "softmax", "fedavg"])
def test_every_method_can_be_resumed(tiny: Config, tmp_path: Path, method: str) -> None:
    cfg = tiny.override([f"method={method}"])
    interrupted(cfg, tmp_path, 7)
    assert bits(fedaws.train(config=cfg, folder=tmp_path, resume=True)) == bits(fedaws.train(config=cfg))


class Killed(BaseException):
    """Ends a run at once, as kill -9 does: no checkpoint, no clean-up of the run's own."""


def killed(*_: object) -> None:
    raise Killed


def test_a_run_that_dies_between_checkpoints_writes_no_row_twice(tiny: Config, tmp_path: Path) -> None:
    def die(done: int, _loss: float) -> None:
        if done == 9:  # after the checkpoint of round 5 and the row of round 8
            raise Killed

    with pytest.raises(Killed):
        fedaws.train(config=tiny, folder=tmp_path / "killed", reporter=Reporter(on_round=die))
    assert [row["round"] for row in rows(tmp_path / "killed")] == [4, 8]
    resumed = fedaws.train(config=tiny, folder=tmp_path / "killed", resume=True)
    expected = fedaws.train(config=tiny, folder=tmp_path / "whole")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert bits(resumed) == bits(expected)


def test_a_run_that_dies_before_its_first_checkpoint_starts_again(tiny: Config, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fedaws.train(config=tiny, folder=tmp_path, reporter=Reporter(on_round=killed))
    assert bits(fedaws.train(config=tiny, folder=tmp_path, resume=True)) == bits(fedaws.train(config=tiny))


def test_a_run_that_dies_before_its_model_is_written_only_writes_it(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_model", killed)
        with pytest.raises(Killed):
            fedaws.train(config=tiny, folder=tmp_path)
    trained: list[int] = []
    run = fedaws.train(
        config=tiny, folder=tmp_path, resume=True, reporter=Reporter(on_round=lambda done, loss: trained.append(done))
    )
    assert trained == []
    assert RunFolder(tmp_path).finished
    assert run.metrics[-1]["round"] == 12


def test_a_finished_run_is_not_trained_again(tiny: Config, tmp_path: Path) -> None:
    first, trained = fedaws.train(config=tiny, folder=tmp_path), []
    again = fedaws.train(
        config=tiny, folder=tmp_path, resume=True, reporter=Reporter(on_round=lambda done, loss: trained.append(done))
    )
    assert trained == []
    assert bits(again) == bits(first)
    assert again.metrics == first.metrics


def test_a_stop_in_the_last_round_ends_the_run_as_usual(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path, reporter=stopping_after(12))
    assert run.metrics[-1]["round"] == 12


def test_a_stop_keeps_a_checkpoint_of_its_round(tiny: Config, tmp_path: Path) -> None:
    interrupted(tiny, tmp_path, 3)
    assert [path.stem for path in RunFolder(tmp_path).checkpoints()] == ["round-00000003"]


def test_training_time_adds_up_over_sittings(tiny: Config, tmp_path: Path) -> None:
    interrupted(tiny, tmp_path, 7)
    before = read_facts(tmp_path)["seconds"]
    run = fedaws.train(config=tiny, folder=tmp_path, resume=True)
    assert run.metrics[-1]["seconds"] >= round(before, 3)


def read_facts(folder: Path) -> dict[str, float]:
    return json.loads(read_tensors(RunFolder(folder).checkpoints()[-1])[1])


# --- what a resumed run refuses -------------------------------------------------------------------------------------


def resumption_refused(cfg: Config, folder: Path, **given: Any) -> str:
    return refusal(lambda: fedaws.train(config=cfg, folder=folder, resume=True, **given))


def test_a_folder_with_a_run_needs_resume(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny, folder=tmp_path)
    assert "already holds a run" in refusal(lambda: fedaws.train(config=tiny, folder=tmp_path))


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("seed=3", "seed=0, now it is 3"),
        ("spread.weight=3", "spread.weight=10.0, now it is 3.0"),
        ("train.rounds=20", "train.rounds=12, now it is 20"),
    ],
)
def test_changed_settings_are_refused(tiny: Config, tmp_path: Path, setting: str, part: str) -> None:
    interrupted(tiny, tmp_path, 7)
    message = resumption_refused(tiny.override([setting]), tmp_path)
    assert part in message
    assert "resume with the same settings" in message


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_foreign(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path)


def damage_shape(path: Path) -> None:
    change_tensors(path, W=torch.ones(7, 5))


def damage_nan(path: Path) -> None:
    change_tensors(path, W=torch.full((4, 5), torch.nan))


def damage_facts(path: Path) -> None:
    tensors, _ = read_tensors(path)
    write_tensors(path, tensors, {"round": 3})


def change_tensors(path: Path, **changes: torch.Tensor) -> None:
    _, facts = read_tensors(path)
    write_tensors(path, {**load_file(path), **changes}, json.loads(facts))


DAMAGES = [
    (damage_truncated, "is damaged"),
    (damage_empty, "is damaged"),
    (damage_foreign, "was not written by fedaws"),
    (damage_nan, "NaN or infinite values in 'W'"),
    (damage_facts, "its facts are wrong"),
]


@pytest.mark.parametrize(("damage", "part"), [*DAMAGES, (damage_shape, "'W' is torch.float32 (7, 5)")])
def test_an_unsound_checkpoint_is_refused_and_the_one_before_it_is_kept(
    tiny: Config, tmp_path: Path, damage: Callable[[Path], None], part: str
) -> None:
    interrupted(tiny, tmp_path, 7)  # checkpoints of rounds 5 and 7
    older, newest = RunFolder(tmp_path).checkpoints()
    damage(newest)
    message = resumption_refused(tiny, tmp_path)
    assert part in message
    assert str(newest) in message
    newest.unlink()
    assert older.exists()
    assert bits(fedaws.train(config=tiny, folder=tmp_path, resume=True)) == bits(fedaws.train(config=tiny))


def test_a_run_on_your_own_data_is_not_resumed_on_the_configured_data(tiny: Config, tmp_path: Path) -> None:
    interrupted(tiny, tmp_path, 7, data=load_data(tiny))
    assert "started with data.name=own, now it is synthetic" in resumption_refused(tiny, tmp_path)


def test_a_run_with_your_own_encoder_is_not_resumed_with_a_built_one(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override(["model.hidden=[]"])
    interrupted(cfg, tmp_path, 7, encoder=nn.Sequential(nn.Flatten(), nn.Linear(6, 5)))
    assert "started with model.name=own, now it is mlp" in resumption_refused(cfg, tmp_path)


def test_a_finished_run_whose_metrics_were_lost_is_refused(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny, folder=tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert "metrics.jsonl has lost its rows" in resumption_refused(tiny, tmp_path)


# --- a full disk, a forbidden folder --------------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_and_keeps_the_checkpoints_so_far(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        reporter = Reporter(on_round=lambda done, loss: patch.setattr(os, "fsync", no_space) if done == 8 else None)
        message = refusal(lambda: fedaws.train(config=tiny, folder=tmp_path, reporter=reporter))
    assert "No space left on device" in message
    assert [path.stem for path in RunFolder(tmp_path).checkpoints()] == ["round-00000005"]
    assert not list(tmp_path.rglob("*.partial"))
    assert bits(fedaws.train(config=tiny, folder=tmp_path, resume=True)) == bits(fedaws.train(config=tiny))
    assert [row["round"] for row in rows(tmp_path)] == [4, 8, 12]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_a_folder_that_cannot_be_made_is_refused(tiny: Config, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in refusal(lambda: fedaws.train(config=tiny, folder=tmp_path / place))


# --- what only data and encoder together show -----------------------------------------------------------------------


def test_more_neighbours_than_candidates_are_refused(tiny: Config) -> None:
    cfg = tiny.override(["spread.regularizer=nearest", "spread.neighbors=4"])
    message = refusal(lambda: fedaws.train(config=cfg))
    assert "spread.neighbors=4 needs at least 5 candidates, got 4" in message
    assert "lower spread.neighbors or raise spread.candidates" in message


def test_neighbours_are_sought_among_the_candidates_only(tiny: Config) -> None:
    cfg = tiny.override(["spread.regularizer=nearest", "spread.neighbors=2", "spread.candidates=2"])
    assert "needs at least 3 candidates, got 2" in refusal(lambda: fedaws.train(config=cfg))


def test_methods_without_spreadout_do_not_care_about_neighbours(tiny: Config) -> None:
    cfg = tiny.override(["method=fixed", "spread.regularizer=nearest", "spread.neighbors=4"])
    assert fedaws.train(config=cfg).metrics


def test_a_margin_out_of_reach_is_warned_of(tiny: Config) -> None:
    # Four classes in five dimensions can all be 1 + 1/3 apart, and no further.
    with pytest.warns(UserWarning, match=r"spread.margin=1.5 is out of reach: 4 classes in 5 .* at most 1.333 apart"):
        fedaws.train(config=tiny.override(["spread.margin=1.5"]))


def test_a_margin_within_reach_is_not_warned_of(tiny: Config) -> None:
    fedaws.train(config=tiny.override(["spread.margin=1.33"]))  # a warning would be an error


def test_clients_of_two_classes_are_refused_where_a_client_must_have_one(tiny: Config) -> None:
    cfg = tiny.override(["data.classes_per_client=2"])
    assert "needs clients of one class" in refusal(lambda: fedaws.train(config=cfg))


def test_fedavg_trains_with_clients_of_two_classes(tiny: Config) -> None:
    run = fedaws.train(config=tiny.override(["method=fedavg"]))
    assert run.data is not None
    assert run.data.class_of.shape == (4, 2)
    first_classes = run.data.class_of[:, 0].repeat_interleave(run.data.num_examples)
    assert not run.data.y.equal(first_classes)


@pytest.mark.parametrize(("device", "part"), [("meta", "set train.device=cpu"), ("tpu9", "set train.device=cpu")])
def test_a_device_that_cannot_be_used_is_refused(tiny: Config, device: str, part: str) -> None:
    message = refusal(lambda: fedaws.train(config=tiny.override([f"train.device={device}"])))
    assert f"train.device={device} cannot be used" in message
    assert part in message


def test_a_collapse_is_warned_of_once(tiny: Config) -> None:
    warned: list[str] = []
    cfg = tiny.override(
        ["method=positive-only", "clients.lr=3", "data.overlap=2.0", "train.rounds=200", "train.evaluate_every=20"]
    )
    run = fedaws.train(config=cfg, reporter=Reporter(on_warning=warned.append))
    assert sum(row["max_cosine"] > 0.95 for row in run.metrics) > 1
    assert len(warned) == 1
    assert "classes have collapsed" in warned[0]
    assert "method=fedaws keeps them apart" in warned[0]


def test_a_run_that_diverges_is_stopped_without_a_model(tiny: Config, tmp_path: Path) -> None:
    steps = ["clients.lr=1e9", "server.lr=1e9", "model.normalize=false", "spread.weight=0"]
    message = refusal(lambda: fedaws.train(config=tiny.override(steps), folder=tmp_path))
    assert "training diverged" in message
    assert "lower clients.lr" in message
    assert not RunFolder(tmp_path).finished


@pytest.mark.parametrize("every", ["evaluate_every", "checkpoint_every"])
def test_a_step_to_infinity_leaves_neither_metrics_nor_checkpoint(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str
) -> None:
    # The loss of a round is measured before its step and does not show it.
    def to_infinity(state: ServerState, *_: object, **__: object) -> ServerState:
        return replace(state, round_num=state.round_num + 1, W=state.W * torch.inf, loss=0.5)

    monkeypatch.setattr("fedaws.training.rounds.run_round", to_infinity)
    cfg = tiny.override(["train.evaluate_every=9", "train.checkpoint_every=9", f"train.{every}=1"])
    assert "W is not finite in round 1" in refusal(lambda: fedaws.train(config=cfg, folder=tmp_path))
    assert RunFolder(tmp_path).metrics() == []
    assert RunFolder(tmp_path).checkpoints() == []


def test_a_class_without_clients_keeps_its_row(tiny: Config) -> None:
    cfg = tiny.override(["method=positive-only", "data.num_classes=6"])
    run = fedaws.train(config=cfg)
    start = initial_state(cfg, run.data, run.encoder).W  # type: ignore[arg-type]
    assert run.W[4:].equal(start[4:])
    assert not run.W[:4].isclose(start[:4]).all(1).any()


# --- the user's own encoder and data --------------------------------------------------------------------------------


def own_config(*more: str) -> Config:
    return Config().override(["train.rounds=20", "model.embedding_dim=4", "clients.examples_per_step=5", *more])


def own_encoder() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def test_an_encoder_of_your_own_is_trained() -> None:
    run = fedaws.train(own_data(), own_encoder(), own_config())
    assert run.metrics[-1]["precision@1"] > 0.9


def test_an_encoder_of_the_wrong_dimension_is_refused() -> None:
    message = refusal(lambda: fedaws.train(own_data(), nn.Linear(6, 3), own_config()))
    assert "gives (1, 3); wanted [examples, 4]" in message


def test_an_encoder_without_layers_is_an_encoder() -> None:
    run = fedaws.train(own_data(), nn.Sequential(), own_config("model.embedding_dim=6"))
    assert run.theta == {}
    assert list(run.encoder.children()) == []


def test_frozen_layers_stay_as_they_are() -> None:
    encoder = own_encoder()
    encoder[0].requires_grad_(False)
    before = encoder[0].weight.clone()
    run = fedaws.train(own_data(), encoder, own_config())
    assert set(run.theta) == {"2.weight", "2.bias"}
    assert encoder[0].weight.equal(before)


def with_batch_norm(**options: Any) -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **options), nn.Linear(8, 4))


@pytest.mark.parametrize("tracked", [True, False])
def test_a_batch_norm_that_was_never_trained_is_refused(tracked: bool) -> None:
    told = refusal(lambda: fedaws.train(own_data(), with_batch_norm(track_running_stats=tracked), own_config()))
    assert told.startswith("the encoder has BatchNorm that was never trained")


def test_a_pretrained_batch_norm_keeps_its_statistics_and_is_warned_of() -> None:
    encoder = with_batch_norm()
    encoder(torch.rand(20, 6))  # in training mode: its statistics are now of one batch
    mean = encoder[1].running_mean.clone()
    with pytest.warns(UserWarning, match="buffers"):
        fedaws.train(own_data(), encoder, own_config())
    assert encoder[1].running_mean.equal(mean)
    assert int(encoder[1].num_batches_tracked) == 1


def test_dropout_is_off_and_warned_of() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.Linear(8, 4)]
    with_dropout = nn.Sequential(layers[0], nn.Dropout(0.5), layers[1])
    without = nn.Sequential(copy.deepcopy(layers[0]), nn.Identity(), copy.deepcopy(layers[1]))
    plain = fedaws.train(own_data(), without, own_config())
    with pytest.warns(UserWarning, match="dropout"):
        run = fedaws.train(own_data(), with_dropout, own_config())
    assert bits(run) == bits(plain)
    assert with_dropout.training  # in the mode it came in


def test_an_encoder_in_training_mode_still_identifies_without_dropout() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    with warnings.catch_warnings(action="ignore"):
        run = fedaws.train(own_data(), encoder, own_config())
    x = own_data().x
    assert run.embed(x).equal(run.embed(x))


# --- loading --------------------------------------------------------------------------------------------------------


def test_a_loaded_model_classifies_as_the_trained_one_did(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path)
    loaded = fedaws.load(tmp_path)
    x = load_data(tiny).x_test
    assert loaded.identify(x, k=3).classes.equal(run.identify(x, k=3).classes)
    assert loaded.identify(x, k=3).scores.equal(run.identify(x, k=3).scores)
    assert loaded.metrics == run.metrics
    assert loaded.config == tiny


def test_a_loaded_model_measures_the_same_on_the_configured_data(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path)
    measured = fedaws.load(tmp_path).evaluate()
    assert measured == {name: run.metrics[-1][name] for name in measured}
    assert measured == run.evaluate()


def test_an_unfinished_run_loads_its_newest_checkpoint(tiny: Config, tmp_path: Path) -> None:
    interrupted(tiny, tmp_path, 7)
    assert fedaws.load(tmp_path).facts.round == 7


def test_class_names_come_back(tmp_path: Path) -> None:
    names = ("a", "bee", "ü")
    run = fedaws.train(own_data(class_names=names), config=own_config(), folder=tmp_path)
    assert run.class_names == names
    assert fedaws.load(str(tmp_path)).class_names == names


def test_your_own_encoder_must_be_given_again(tmp_path: Path) -> None:
    run = fedaws.train(own_data(), own_encoder(), own_config(), folder=tmp_path)
    assert "an encoder of your own" in refusal(lambda: fedaws.load(tmp_path))
    loaded = fedaws.load(tmp_path, own_encoder())
    assert loaded.embed(own_data().x).equal(run.embed(own_data().x))


def test_another_encoder_than_the_trained_one_is_refused(tmp_path: Path) -> None:
    fedaws.train(own_data(), own_encoder(), own_config(), folder=tmp_path)
    assert "do not fit the encoder" in refusal(lambda: fedaws.load(tmp_path, nn.Linear(6, 4)))


def test_your_own_data_is_not_silently_replaced_by_the_configured(tmp_path: Path) -> None:
    run = fedaws.train(own_data(), config=own_config(), folder=tmp_path)
    loaded = fedaws.load(tmp_path)
    message = refusal(loaded.evaluate)
    assert "data of your own" in message
    assert "evaluate(data)" in message
    assert loaded.evaluate(own_data()) == run.evaluate()


@pytest.mark.parametrize(("damage", "part"), [*DAMAGES, (damage_shape, None)])
def test_an_unsound_model_is_refused(
    tiny: Config, tmp_path: Path, damage: Callable[[Path], None], part: str | None
) -> None:
    fedaws.train(config=tiny, folder=tmp_path)
    damage(RunFolder(tmp_path).model_file)
    assert (part or "the data has 4 classes, the model 7") in refusal(lambda: fedaws.load(tmp_path).evaluate())


def test_class_embeddings_of_another_dimension_are_refused(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny, folder=tmp_path)
    change_tensors(RunFolder(tmp_path).model_file, W=torch.ones(4, 6))
    assert "do not fit the encoder" in refusal(lambda: fedaws.load(tmp_path))


def test_data_of_other_classes_are_refused(tmp_path: Path) -> None:
    run = fedaws.train(own_data(), config=own_config())
    assert "has 5 classes, the model 3" in refusal(lambda: run.evaluate(own_data(classes=5)))


# --- classifying ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Run:
    return fedaws.train(own_data(), config=own_config())


def test_identify_ranks_by_the_inner_product_with_each_class(run: Run) -> None:
    ranking = run.identify(run.data.x, k=3)
    scores = run.embed(run.data.x) @ run.W.T
    assert ranking.classes.equal(scores.argsort(dim=1, descending=True))
    torch.testing.assert_close(ranking.scores, scores.sort(dim=1, descending=True).values)


def test_embeddings_have_unit_length(run: Run) -> None:
    torch.testing.assert_close(run.embed(run.data.x).norm(dim=1), torch.ones(30))


@pytest.mark.parametrize("convert", [np.asarray, torch.Tensor.tolist, torch.Tensor.double, np.float64])
def test_examples_may_be_arrays_lists_or_tensors(run: Run, convert: Callable[[object], Any]) -> None:
    assert run.identify(convert(run.data.x)).classes.equal(run.identify(run.data.x).classes)


def test_embedding_leaves_the_callers_array_alone(run: Run) -> None:
    x = run.data.x.numpy().copy()
    run.embed(x)
    assert (x == run.data.x.numpy()).all()


def test_a_single_example_comes_as_a_batch_of_one(run: Run) -> None:
    assert run.identify(run.data.x[:1]).classes.shape == (1, 1)
    assert "x is a single example of shape (6,)" in refusal(lambda: run.identify(dense(run.data.x)[0]))


def test_more_classes_than_there_are_gives_all(run: Run) -> None:
    assert run.identify(run.data.x, k=99).classes.shape == (30, 3)


@pytest.mark.parametrize("k", [0, -1])
def test_no_class_at_all_is_refused(run: Run, k: int) -> None:
    assert f"k={k}; wanted a whole number of classes, at least one" in refusal(lambda: run.identify(run.data.x, k=k))


@pytest.mark.parametrize(
    ("x", "part"),
    [
        (np.zeros((2, 5)), "does not take examples of shape (5,)"),
        (np.zeros((0, 6)), "at least one example"),
        (np.full((2, 6), np.nan), "NaN"),
        ("words", "wanted numbers"),
        (np.zeros((2, 6), dtype=np.uint8), "x is uint8, the model was trained on float32"),
    ],
)
def test_examples_that_do_not_fit_are_refused(run: Run, x: object, part: str) -> None:
    assert part in refusal(lambda: run.embed(x))


def test_a_model_of_bytes_wants_bytes(tmp_path: Path) -> None:
    data = own_data()
    x = (255 * torch.sigmoid(dense(data.x))).to(torch.uint8)
    fedaws.train(fedaws.from_arrays(x, data.y), config=own_config(), folder=tmp_path)
    loaded = fedaws.load(tmp_path)
    assert loaded.identify(x).classes.shape == (30, 1)
    assert "x is float32, the model was trained on uint8" in refusal(lambda: loaded.identify(x.float()))


def test_an_encoder_that_mixes_the_examples_of_a_batch_is_refused() -> None:
    cfg = Config().override(["train.rounds=2", "model.embedding_dim=6"])
    assert "mixes the examples" in refusal(lambda: fedaws.train(own_data(), _Centred(), cfg))


class _Centred(nn.Module):
    """Subtracts the batch's mean: each example sees the others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0) + 0.1) * self.scale


def test_divergence_without_normalisation_is_told_in_one_line() -> None:
    cfg = own_config("model.normalize=false", "clients.lr=1000000", "train.rounds=50")
    assert "training diverged" in refusal(lambda: fedaws.train(own_data(), own_encoder(), cfg))


def test_fedavg_of_clients_with_one_class_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="method=fedavg is method=softmax"):
        fedaws.train(own_data(), own_encoder(), own_config("method=fedavg"))


def test_a_layer_that_was_in_eval_mode_stays_there() -> None:
    encoder = own_encoder()
    encoder[1].eval()
    fedaws.train(own_data(), encoder, own_config("train.rounds=1"))
    assert [module.training for module in encoder] == [True, False, True]


def test_the_record_of_own_data_and_encoder_names_no_others_and_cannot_be_run_without_them(tmp_path: Path) -> None:
    encoder = nn.Linear(6, 4)
    fedaws.train(own_data(), encoder, own_config(), folder=tmp_path / "own")
    saved = fedaws.config.load(str(tmp_path / "own" / "config.toml"))
    assert (saved.data.name, saved.model.name) == ("own", "own")
    assert refusal(lambda: fedaws.train(config=saved)).startswith("data.name=own: the data were given in Python")
    told = refusal(lambda: fedaws.train(own_data(), config=saved))
    assert told.startswith("model.name=own: the encoder was given in Python")
    again = fedaws.train(own_data(), nn.Linear(6, 4), saved, folder=tmp_path / "own", resume=True)
    assert again.metrics == fedaws.load(tmp_path / "own", nn.Linear(6, 4)).metrics
