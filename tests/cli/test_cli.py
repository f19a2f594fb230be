"""The command line as its users meet it: one clear line for a mistake, JSON alone on stdout, stopping and going on."""

import errno
import fcntl
import io
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import fedaws
from fedaws import Config
from fedaws.cli.common import configured
from fedaws.cli.console import Stop, _Pace
from fedaws.config import presets
from fedaws.record.folder import RunFolder

Cli = Callable[..., Any]
Refused = Callable[..., str]

FAST = ("-s", "train.rounds=4")
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["train", "digits", "-s", "foo.bar=1"], ["unknown key 'foo.bar'", "known here"]),
        (["train", "digits", "-s", "clients.per_round=foo"], ["got 'foo'; wanted a valid integer or 'all'"]),
        (["train", "digits", "-s", "train.rounds=0"], ["train.rounds: got 0"]),
        (["train", "digits", "-s", "spread.margin=3"], ["spread.margin: got 3", "less than or equal to 2"]),
        (["train", "digits", "-s", "method=foo"], ["no method 'foo'; there are fedaws, positive-only"]),
        (["train", "digits", "-s", "rounds"], ["wanted key=value"]),
        (
            ["train", "digits", "-s", "spread.regularizer=nearest", "-s", "spread.neighbors=10"],
            ["spread.neighbors=10 needs at least 11 candidates, got 10", "lower spread.neighbors"],
        ),
        (["train", "nope"], ["no preset 'nope'; there are amazon-670k, "]),
        (["train", "delicous"], ["no preset 'delicous'; did you mean 'delicious'? (or give the path of a .toml file)"]),
        (["train", "nope.toml"], ["nope.toml: No such file"]),
        (["train", "digits", "-s", "data.name=cifar"], ["no data set 'cifar'; did you mean 'cifar10'?"]),
        (
            ["train", "delicious", "-s", "data.name=shop"],
            ["no data set 'shop'; there are digits, ", "sounds or xc -s data.root=FOLDER"],
        ),
        (["train", "digits", "-s", "data.name=none.npz"], ["none.npz: No such file"]),
        (["train", "digits", "-s", "data.overlap=1"], ["data.overlap=1.0 has no effect on data.name=digits"]),
        (["compare", "digits", "-s", "model.norm=group"], ["model.norm=group has no effect on model.name=mlp"]),
        (["train", "digits", "-s", "train.device=warp"], ["train.device=warp cannot be used"]),
        (["train", "digits", "-s", f"model.embedding_dim={10**9}"], ["out of memory"]),
        (["train", "digits", "--resume"], ["no unfinished run of digits-fedaws", "--out"]),
        (["compare", "digits", "--methods", "fedaws,foo"], ["unknown method 'foo'", "positive-only"]),
        (["compare", "digits", "--methods", "fedaws", "--seeds", "0"], ["--seeds", "fedaws compare --help"]),
        (["evaluate", "nowhere"], ["nowhere is not a run folder"]),
        (["train"], ["Missing argument", "fedaws train --help"]),
        (["train", "digits", "--foo"], ["--foo", "fedaws train --help"]),
        (["trian"], ["No such command 'trian'", "fedaws --help"]),
    ],
    ids=lambda value: " ".join(value) if value[0] in ("train", "compare", "evaluate", "trian") else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(refused: Refused, args: list[str], parts: list[str]) -> None:
    message = refused(*args)
    for part in parts:
        assert part in message


def test_a_mistake_with_json_leaves_stdout_empty(refused: Refused) -> None:
    refused("train", "nope", "--json")


def test_an_unknown_key_in_a_file_is_told_with_the_files_name(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[spread]\nwieght = 3\n")
    message = refused("train", "bad.toml")
    assert "bad.toml: unknown key 'spread.wieght'; did you mean 'spread.weight'?" in message


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"x_train": X * np.nan}, "data.npz: x_train has NaN or infinite values"),
        ({"y_train": Y * 2}, "class 1 has no training example"),
        ({"y_train": Y.astype(float)}, "y_train is torch.float64; wanted integer labels"),
        ({"y_train": Y.astype(str)}, "y_train is an array of str_; wanted integer labels"),
        ({"y_train": Y - 1}, "negative label -1"),
        ({"y_test": Y.astype(object)}, "not a sound .npz file"),
        ({"x_test": None}, "has no x_test"),
        ({"x_test": X[:, :1]}, "make them equal"),
    ],
)
def test_unsound_data_is_one_line(refused: Refused, tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    arrays = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y} | changes
    np.savez(tmp_path / "data.npz", **{name: a for name, a in arrays.items() if a is not None})
    assert part in refused("train", "digits", "-s", "data.name=data.npz")


def test_a_truncated_npz_is_one_line(refused: Refused, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    (tmp_path / "data.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:300])
    assert "not a sound .npz file" in refused("train", "digits", "-s", "data.name=data.npz")


@pytest.mark.parametrize("place", ["tiny.toml/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_one_line(refused: Refused, tiny_toml: Path, place: str) -> None:
    assert "cannot write" in refused("train", tiny_toml, "--out", place)


def test_a_full_disk_is_one_line(refused: Refused, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    assert "No space left on device; make room" in refused("train", tiny_toml, "--out", "run")


class FullOutput(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_stdout_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", FullOutput())
    code, _, err = cli("presets", "--json")
    assert (code, err) == (2, "error: No space left on device\n")


def test_a_margin_out_of_reach_only_warns(cli: Cli) -> None:
    margin = ("-s", "spread.regularizer=margin", "-s", "spread.margin=1.5")
    code, _, err = cli("train", "digits", *margin, *FAST)
    assert code == 0
    # Ten classes in 32 dimensions: a simplex, 1 + 1/9 apart.
    assert "warning: spread.margin=1.5 is out of reach: 10 classes in 32 dimensions can be at most 1.111 apart" in err


# --- runs and their folders -----------------------------------------------------------------------------------------


def test_a_run_is_saved_below_runs_under_a_new_number(cli: Cli, tiny_toml: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        assert f"saved in runs/tiny-fedaws-{number}\n" in cli("train", tiny_toml).err
    assert sorted(path.name for path in (tmp_path / "runs/tiny-fedaws-1").iterdir()) == [
        "checkpoints", "config.toml", "details.json", "made_with.json", "metrics.jsonl", "model", "report.html", "trace"
    ]  # fmt: skip


def test_runs_that_start_together_take_folders_of_their_own(cli: Cli, tiny_toml: Path, tmp_path: Path) -> None:
    (tmp_path / "runs/tiny-fedaws-1").mkdir(parents=True)  # the other one has got no further yet
    assert "saved in runs/tiny-fedaws-2\n" in cli("train", tiny_toml).err


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_run_that_cannot_start_leaves_no_folder(refused: Refused, tmp_path: Path, command: str) -> None:
    refused(command, "digits", "-s", "data.name=none.npz")
    assert not list((tmp_path / "runs").iterdir())


def test_a_folder_that_was_given_is_left_alone(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    refused("train", "digits", "-s", "data.name=none.npz", "--out", "mine")
    assert (tmp_path / "mine").exists()


def test_resume_without_a_folder_takes_the_unfinished_run_of_these_settings(cli: Cli, tiny_toml: Path) -> None:
    assert cli("train", tiny_toml).code == 0
    assert cli("train", tiny_toml, "-s", "seed=1").code == 0
    RunFolder(Path("runs/tiny-fedaws-1")).model_file.unlink()  # as if the first had been stopped
    assert "saved in runs/tiny-fedaws-1\n" in cli("train", tiny_toml, "--resume").err
    assert cli("train", tiny_toml, "--resume").code == 2  # both are finished now


def test_a_file_named_runs_is_one_line(refused: Refused, tiny_toml: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    assert "runs/tiny-fedaws-1: Not a directory" in refused("train", tiny_toml)


def test_a_folder_with_a_run_needs_resume(cli: Cli, refused: Refused, tiny_toml: Path) -> None:
    assert cli("train", tiny_toml, "--out", "run").code == 0
    message = refused("train", tiny_toml, "--out", "run")
    assert "run already holds a run; add --resume" in message


def test_a_finished_run_can_be_resumed(cli: Cli, tiny_toml: Path) -> None:
    first = json.loads(cli("train", tiny_toml, "--out", "run", "--json").out)
    assert json.loads(cli("train", tiny_toml, "--out", "run", "--json", "--resume").out) == first


def test_resuming_with_other_settings_is_one_line(cli: Cli, refused: Refused, tiny_toml: Path) -> None:
    cli("train", tiny_toml, "--out", "run")
    message = refused("train", tiny_toml, "--out", "run", "--resume", "-s", "clients.lr=0.5")
    assert "run was started with clients.lr=0.3, now it is 0.5; resume with the same settings" in message


def test_resuming_where_nothing_is_starts_and_says_so(cli: Cli, tiny_toml: Path) -> None:
    result = cli("train", tiny_toml, "--out", "new", "--resume")
    assert result.code == 0
    assert "no run in new yet: starting one" in result.err


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def damage_foreign(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path)


@pytest.mark.parametrize("damage", [damage_truncated, damage_foreign])
def test_unsound_weights_are_one_line_in_every_command(
    cli: Cli, refused: Refused, tiny_toml: Path, damage: Callable[[Path], None]
) -> None:
    cli("train", tiny_toml, "--out", "run")
    damage(RunFolder(Path("run")).checkpoints()[-1])
    assert "checkpoints/round-00000012.safetensors" in refused("train", tiny_toml, "--out", "run", "--resume")
    damage(RunFolder(Path("run")).model_file)
    assert "model.safetensors" in refused("evaluate", "run")


def test_a_run_on_your_own_data_is_not_evaluated_on_other_data(refused: Refused, tmp_path: Path, tiny: Config) -> None:
    fedaws.train(fedaws.from_arrays(X, Y), config=tiny, folder=tmp_path / "run")
    message = refused("evaluate", "run")
    assert "run was trained on data of your own" in message
    assert "fedaws.load(folder).evaluate(data)" in message


def test_a_run_with_your_own_encoder_is_not_evaluated_without_it(
    refused: Refused, tmp_path: Path, tiny: Config
) -> None:
    fedaws.train(encoder=torch.nn.Linear(6, 5), config=tiny, folder=tmp_path / "run")
    assert "encoder of your own" in refused("evaluate", "run")


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["data.name=mine.npz"], "mine"),
        (["data.name=mine.npz", "name=ours"], "ours"),
        (["data.name=digits"], "digits"),
    ],
)
def test_a_preset_on_other_data_takes_the_name_of_the_data(cli: Cli, settings: list[str], name: str) -> None:
    np.savez("mine.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    result = cli("train", "digits", *FAST, *(word for setting in settings for word in ("-s", setting)))
    assert f"saved in runs/{name}-fedaws-1\n" in result.err
    assert RunFolder(Path(f"runs/{name}-fedaws-1")).config().name == name


def test_pictures_give_the_name_of_their_folder() -> None:
    assert configured("digits", ["data.name=images", "data.root=some/faces"]).name == "faces"


def test_a_file_keeps_the_name_that_it_gives(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('name = "own"\n')
    assert configured(str(tmp_path / "own.toml"), ["data.name=images", "data.root=faces"]).name == "own"


# --- what is printed ------------------------------------------------------------------------------------------------


def test_train_prints_one_json_object_and_nothing_else_on_stdout(cli: Cli, tiny_toml: Path) -> None:
    code, out, err = cli("train", tiny_toml, "--json")
    found = json.loads(out)  # refuses anything beside one value
    assert code == 0
    assert (found["method"], found["rounds"], found["folder"]) == ("fedaws", 12, "runs/tiny-fedaws-1")
    assert 0 <= found["precision@1"] <= 1
    assert {"precision@3", "loss", "min_separation", "max_cosine", "positive_radius", "error_bound"} <= set(found)
    assert "round 12/12" in err


def test_compare_prints_one_json_object_with_every_method(cli: Cli, tiny_toml: Path, tmp_path: Path) -> None:
    out = cli("compare", tiny_toml, "--methods", "fixed,fedaws", "--seeds", 2, "--json", "--out", "both").out
    found = json.loads(out)
    assert list(found["methods"]) == ["fixed", "fedaws"]
    for measures in found["methods"].values():
        assert set(measures["precision@1"]) == {"mean", "std", "runs"}
        assert len(measures["precision@1"]["runs"]) == 2
    assert {"compare.json", "compare.png", "report.html"} <= {path.name for path in (tmp_path / "both").iterdir()}


def test_evaluate_prints_what_training_ended_with(cli: Cli, tiny_toml: Path) -> None:
    trained = json.loads(cli("train", tiny_toml, "--json", "--out", "run").out)
    evaluated = json.loads(cli("evaluate", "run", "--json").out)
    assert evaluated == {name: trained[name] for name in evaluated}
    assert {"precision@1", "loss", "error_bound"} <= set(evaluated)


def test_of_one_seed_there_is_no_deviation(cli: Cli, tiny_toml: Path) -> None:
    out = cli("compare", tiny_toml, "--methods", "fixed", "--json").out
    assert json.loads(out)["methods"]["fixed"]["precision@1"]["std"] is None


def test_a_report_that_could_not_be_written_is_not_said_to_be_anywhere(
    cli: Cli, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedaws.report.page.write_report", full)
    code, _, err = cli("train", tiny_toml)
    assert code == 0
    assert "no report: [Errno 28] No space left on device" in err
    assert "report: None" not in err


def test_presets_are_listed_with_a_line_each(cli: Cli) -> None:
    found = json.loads(cli("presets", "--json").out)
    assert list(found) == presets()
    assert all(found.values())
    assert all(name in cli("presets").out for name in presets())


COMMANDS = [
    ["train"], ["compare"], ["reproduce"], ["evaluate"], ["report"], ["tensorboard"], ["presets"],
    ["settings"],
    ["flower", "init"], ["flower", "up"],
]  # fmt: skip


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help_with_an_example(cli: Cli, command: list[str]) -> None:
    code, out, err = cli(*command, "--help")
    assert (code, err) == (0, "")
    assert "Usage: " in out
    assert ("Example: fedaws" in out) is bool(command)


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    assert cli().out == cli("--help").out


@pytest.mark.parametrize("command", [("train", "tiny.toml"), ("compare", "tiny.toml", "--methods", "fixed")])
def test_people_get_a_table(cli: Cli, tiny_toml: Path, command: tuple[str, ...]) -> None:
    code, out, _ = cli(*command)
    assert code == 0
    assert "precision@1" in out
    assert "│" in out


def test_without_a_terminal_progress_is_plain_lines_on_stderr(cli: Cli, tiny_toml: Path) -> None:
    lines = cli("train", tiny_toml).err.splitlines()
    pattern = r"fedaws on tiny  round \d+/12  \S+ rounds/s  loss \S+  P@1 \S+ %  max cos [+-]\S+(  \d+ s left)?"
    assert [bool(re.fullmatch(pattern, line)) for line in lines[:2]] == [True, True]  # the first row and the last
    assert [line.split()[0] for line in lines[2:]] == ["report:", "saved"]
    assert not re.search(r"[\x1b\r]", "".join(lines))


def test_colours_that_are_forced_in_a_log_do_not_bring_a_bar(
    cli: Cli, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaws.cli.console.err", Console(stderr=True, force_terminal=True))  # as with FORCE_COLOR=1
    assert "\r" not in cli("train", tiny_toml).err


def test_time_left_is_what_the_pace_so_far_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 100.0, 104.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    pace = _Pace("x")
    pace.start(20, 100)  # resumed after round 20; four seconds later at round 40, so 12 more for 60 rounds
    row = {"round": 40, "loss": 0.5, "seconds": 4.0}  # 40 rounds in four seconds of training, in two sittings
    assert pace.line(row) == "x  round 40/100  10 rounds/s  loss 0.5  12 s left"


def test_resuming_says_after_which_round(cli: Cli, tiny_toml: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stop, "__call__", lambda self: True)  # Ctrl-C in the first round
        cli("train", tiny_toml, "--out", "run")
    assert "goes on after" not in cli("train", tiny_toml, "--out", "other").err
    assert "fedaws on tiny  goes on after round 1/12\n" in cli("train", tiny_toml, "--out", "run", "--resume").err
    assert "fedaws on tiny  is done\n" in cli("train", tiny_toml, "--out", "run", "--resume").err


def test_the_rate_is_of_the_seconds_of_training(cli: Cli, tiny_toml: Path) -> None:
    result = cli("train", tiny_toml, "--out", "run", "--json")
    found = json.loads(result.out)
    (rate,) = re.findall(r"round 12/12  (\S+) rounds/s", result.err)
    assert float(rate) == pytest.approx(12 / found["seconds"], rel=0.01)


def test_a_second_signal_stops_at_once() -> None:
    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_stopping_at_once_is_one_line_and_130(cli: Cli, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedaws.cli.common.configuration.load", interrupt)
    code, out, err = cli("train", tiny_toml)
    assert (code, out) == (130, "")
    assert err == "error: stopped at once; the last checkpoint is kept\n"


# --- real processes: Ctrl-C, SIGTERM, kill -9 -----------------------------------------------------------------------

COMMAND = [sys.executable, "-c", "from fedaws.cli.main import main; main()"]
LONG = ("-s", "train.rounds=800", "-s", "train.checkpoint_every=20", "-s", "train.evaluate_every=100")


@contextmanager
def process(cwd: Path, *args: object) -> Iterator[subprocess.Popen[str]]:
    """`fedaws …` as a process of its own; it is gone when the block ends."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [*COMMAND, *map(str, args)], cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def wait_for(ready: Callable[[], object], running: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not ready():
        assert running.poll() is None, "ended too early"
        assert time.monotonic() < until
        time.sleep(0.002)


def newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoints/round-*")), default="")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Config) -> Path:
    """The same long run without any interruption."""
    folder = tmp_path_factory.mktemp("whole")
    fedaws.train(config=tiny.override(LONG[1::2]), folder=folder)
    return folder


def same_results(one: Path, other: Path) -> bool:
    """Whether weights, W and metrics are equal to the last bit, but for the clock."""
    files = [load_file(RunFolder(path).model_file) for path in (one, other)]
    assert files[0].keys() == files[1].keys()
    assert all(files[0][name].view(torch.int32).equal(files[1][name].view(torch.int32)) for name in files[0])
    metrics = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(p).metrics()] for p in (one, other)
    ]
    lines = [(path / "metrics.jsonl").read_text().count("\n") for path in (one, other)]
    return metrics[0] == metrics[1] and lines[0] == lines[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_the_run_with_a_checkpoint_and_resume_finishes_it(
    cli: Cli, tmp_path: Path, tiny_toml: Path, whole: Path, number: int, code: int
) -> None:
    with process(tmp_path, "train", tiny_toml, *LONG, "--out", "run", "--json") as running:
        wait_for(lambda: newest_checkpoint(tmp_path / "run"), running)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (code, "")
    stopped = re.fullmatch(r"stopped after round (\d+); go on with --resume --out run", err.splitlines()[-1])
    assert stopped
    assert newest_checkpoint(tmp_path / "run") == f"round-{int(stopped[1]):08d}.safetensors"
    assert "Traceback" not in err
    assert cli("train", tiny_toml, *LONG, "--out", "run", "--resume").code == 0
    assert same_results(tmp_path / "run", whole)


def test_a_comparison_stopped_by_ctrl_c_goes_on_with_resume(cli: Cli, tmp_path: Path, tiny_toml: Path) -> None:
    comparison = ("compare", tiny_toml, *LONG, "--methods", "fixed,positive-only", "--out", "both")
    with process(tmp_path, *comparison) as running:
        wait_for(lambda: newest_checkpoint(tmp_path / "both/positive-only-seed0"), running)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "go on with --resume --out both" in err.splitlines()[-1]
    first = (tmp_path / "both/fixed-seed0/model/model.safetensors").stat().st_mtime_ns
    code, out, err = cli(*comparison, "--resume", "--json")
    assert code == 0
    assert "fixed, seed 0  round" not in err  # read, not trained again
    assert "2/2 positive-only, seed 0  round 800/800" in err
    assert list(json.loads(out)["methods"]) == ["fixed", "positive-only"]
    assert (tmp_path / "both/fixed-seed0/model/model.safetensors").stat().st_mtime_ns >= first


def kill_in_the_middle(cwd: Path, delay: float, *args: object) -> None:
    """kill -9 some time after the process has saved its first checkpoint of this sitting."""
    before = newest_checkpoint(cwd / "run")
    with process(cwd, *args) as running:
        wait_for(lambda: newest_checkpoint(cwd / "run") > before, running)
        time.sleep(delay)
        assert running.poll() is None, "ended too early"
        running.send_signal(signal.SIGKILL)
        running.communicate()
    assert running.returncode == -signal.SIGKILL


def test_a_killed_run_is_resumed_to_the_same_bits(cli: Cli, tmp_path: Path, tiny_toml: Path, whole: Path) -> None:
    command = ("train", tiny_toml, *LONG, "--out", "run", "--resume")
    kill_in_the_middle(tmp_path, random.random() * 0.1, *command)
    assert cli(*command).code == 0
    assert same_results(tmp_path / "run", whole)


@pytest.mark.slow
def test_ten_kills_in_one_run_do_not_change_a_bit(cli: Cli, tmp_path: Path, tiny_toml: Path) -> None:
    long = ("-s", "train.rounds=8000", "-s", "train.checkpoint_every=7", "-s", "train.evaluate_every=11")
    command = ("train", tiny_toml, *long, "--out", "run", "--resume")
    for _ in range(10):
        kill_in_the_middle(tmp_path, random.random() * 0.3, *command)
    assert cli(*command).code == 0
    assert cli("train", tiny_toml, *long, "--out", "whole").code == 0
    assert same_results(tmp_path / "run", tmp_path / "whole")
    assert not list((tmp_path / "run").rglob("*.partial"))


# --- a terminal -----------------------------------------------------------------------------------------------------


def in_a_terminal(cwd: Path, columns: int, *args: object) -> tuple[int, str]:
    """`fedaws …` on a terminal of this width: exit code, and all that was written to it."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, *map(str, args)]
    with subprocess.Popen(command, cwd=cwd, env=environment, stdin=inside, stdout=inside, stderr=inside) as running:
        os.close(inside)
        written = b""
        with suppress(OSError):  # the process has ended
            while True:
                written += os.read(terminal, 65536)
        os.close(terminal)
    return running.returncode, written.decode()


def screen(written: str) -> tuple[list[str], bool]:
    """What a terminal shows in the end, line by line, and whether its cursor can be seen."""
    lines, row, column, visible = [""], 0, 0, True
    for part in re.findall(r"\x1b\[[?\d;]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part in ("\x1b[?25l", "\x1b[?25h"):
            visible = part.endswith("h")
        elif up := re.fullmatch(r"\x1b\[(\d+)A", part):
            row -= int(up[1])
        elif part.startswith("\x1b"):
            assert part.endswith("m"), f"unknown {part!r}"  # colours
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines, visible


BAR = (
    r"fedaws on digits +(?P<round>\d+)/700 +(?P<rate>[\d,.]+)/s +loss (?P<loss>[\d.e-]+) +"
    r"P@1 (?P<precision>[\d.]+) % +max cos (?P<cosine>[+-][\d.]+) +(?P<left>\d:\d\d:\d\d)"
)


def test_a_terminal_of_80_columns_shows_all_figures_and_is_left_in_order(tmp_path: Path) -> None:
    code, written = in_a_terminal(tmp_path, 80, "train", "digits", "-s", "train.rounds=700")
    assert code == 0
    drawn = [re.match(BAR, re.sub(r"\x1b\[[\d;]*m", "", frame)) for frame in written.split("\x1b[2K")]
    rounds = [int(found["round"]) for found in drawn if found]
    assert len(rounds) >= 2
    assert rounds == sorted(rounds)
    lines, visible = screen(written)
    assert visible
    assert lines[0].startswith("fedaws on digits  round 700/700")
    assert "fedaws on digits after 700 rounds" in lines[1]  # the bar is gone
    assert lines[-2:] == ["saved in runs/digits-fedaws-1", ""]
    assert all(len(line) <= 80 for line in lines[1:])


@pytest.mark.parametrize("command", ["train", "compare", "reproduce", "flower init"])
def test_help_says_what_is_required_or_default_in_plain_brackets(cli: Cli, command: str) -> None:
    told = cli(*command.split(), "--help").out
    assert "[required]" in told
    assert "\\[" not in told
