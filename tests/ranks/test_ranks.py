"""Any number of ranks gives the numbers of one process; a lost rank costs the rounds since the last checkpoint."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedaws import Config, from_arrays, load, train
from fedaws.config import from_toml
from fedaws.data import FederatedData
from fedaws.people.forget import forget
from fedaws.ranks import Ranks, own_examples
from fedaws.record.folder import RunFolder
from fedaws.tensor_files import read_safetensors
from rank_processes import refused_all, run_ranks, train_all, train_on, train_until_killed, train_until_wrong

DENSE = """
name = "dense"
[data]
name = "synthetic"
classes = 14
features = 6
examples_per_class = 10
overlap = 0.1
[model]
embedding_dim = 5
hidden = [8]
[clients]
per_round = 9
examples_per_step = 4
[server]
momentum = 0.9
average = 0.9
[train]
rounds = 5
evaluate_every = 5
checkpoint_every = 3
threads = 1
"""
SPARSE = """
name = "sparse"
[data]
name = "xc-synthetic"
scale = 0.0004
[model]
name = "bag"
embedding_dim = 8
hidden = []
[clients]
per_round = 40
examples_per_step = 1
sampling = "examples"
[server]
table_lr = 0.3
[spread]
regularizer = "nearest"
neighbors = 3
candidates = 60
remember = true
[train]
rounds = 5
evaluate_every = 5
checkpoint_every = 3
threads = 1
"""
CHANGES: dict[str, tuple[str, list[str]]] = {
    "eq. (6), all pairs": (DENSE, []),
    "eq. (6), mined among all": (DENSE, ["spread.neighbors=3"]),
    "eq. (7), mined among some": (DENSE, ["spread.regularizer=nearest", "spread.neighbors=2", "spread.candidates=8"]),
    "eq. (7), all pairs": (DENSE, ["spread.regularizer=nearest", "spread.neighbors=all"]),
    "softmax of scores": (DENSE, ["spread.regularizer=softmax", "spread.neighbors=4"]),
    "moments": (DENSE, ["spread.regularizer=moments"]),
    "rows of any length": (DENSE, ["model.normalize=false", "spread.neighbors=3", "clients.lr=0.05"]),
    "three local steps": (DENSE, ["clients.local_steps=3"]),
    "local Adam, one by one": (DENSE, ["clients.local_steps=2", "clients.optimizer=adam", "clients.lr=0.01",
                                       "train.runner=serial"]),
    "all examples, weighed by them": (DENSE, ["clients.examples_per_step=all", "clients.weighting=examples",
                                              "data.clients_per_class=3"]),
    "fewer clients than ranks": (DENSE, ["clients.per_round=1", "spread.regularizer=moments"]),
    "two classes a client": (DENSE, ["method=family"]),
    "enrolled": (DENSE, ["train.enroll=1.0", "data.clients_per_class=2"]),
    "a table, enrolled": (SPARSE, ["train.enroll=0.5", "train.rounds=2", "data.every_label=true"]),
    "rows start at means": (DENSE, ["model.start_rows=means", "data.num_classes=15"]),
    "a table, rows start at means": (SPARSE, ["model.start_rows=means", "train.rounds=2"]),
    "fixed rows": (DENSE, ["method=fixed"]),
    "positive-only": (DENSE, ["method=positive-only"]),
    "a table": (SPARSE, []),
    "a table under layers": (SPARSE, ["model.hidden=[8]", "model.residual=true", "train.rounds=3", "data.drop=0.3"]),
    "a table, fewer clients than ranks": (SPARSE, ["clients.per_round=1"]),
    "a table by plain steps, one by one": (SPARSE, ["server.table_optimizer=sgd", "train.runner=serial"]),
}  # fmt: skip
CONFIGS = {name: from_toml(text, "test.toml").override(changes) for name, (text, changes) in CHANGES.items()}
WORLDS = (1, 2, 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Every configuration, trained by one process, two ranks, three ranks."""
    folders = {world: tmp_path_factory.mktemp(f"world{world}") for world in WORLDS}
    train_all(CONFIGS, folders[1])
    for world in WORLDS[1:]:
        assert run_ranks(world, train_all, CONFIGS, folders[world]) == [0] * world
    return folders


def tensors(folder: Path) -> dict[str, Tensor]:
    return read_safetensors(RunFolder(folder).model_file)[0]


def same(one: Path, other: Path, within: float = 1e-5) -> None:
    expected, got = tensors(one), tensors(other)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=within, rtol=within)


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestAgreement:
    @pytest.mark.parametrize("world", WORLDS[1:])
    @pytest.mark.parametrize("name", CONFIGS)
    def test_any_number_of_ranks_gives_the_same_model(self, runs: dict[int, Path], name: str, world: int) -> None:
        same(runs[1] / name, runs[world] / name)

    @pytest.mark.parametrize("name", CONFIGS)
    def test_any_number_of_ranks_gives_the_same_figures(self, runs: dict[int, Path], name: str) -> None:
        rows = [RunFolder(runs[world] / name).metrics() for world in WORLDS]
        for other in rows[1:]:
            for expected, got in zip(rows[0], other, strict=True):
                assert expected.keys() == got.keys()
                for key in expected.keys() - {"seconds"}:
                    assert math.isclose(expected[key], got[key], rel_tol=1e-3, abs_tol=1e-4), (key, expected, got)

    def test_there_is_one_folder_as_of_one_process(self, runs: dict[int, Path]) -> None:
        one, three = (runs[world] / "a table" for world in (1, 3))
        files = {world: {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
                 for world, folder in ((1, one), (3, three))}  # fmt: skip
        assert files[3] - files[1] == {
            Path(f"checkpoints/ranks/round-{r:08d}-{n}-of-3.safetensors") for r in (3, 5) for n in (1, 2)
        }
        assert files[1] <= files[3]

    def test_a_checkpoint_of_ranks_is_one_of_one_process(self, runs: dict[int, Path], tmp_path: Path) -> None:
        ours, theirs = (RunFolder(runs[world] / "a table") for world in (1, 3))
        theirs.model_file.rename(tmp_path / "model")  # then the newest checkpoint is loaded
        try:
            W = load(theirs.path).W
        finally:
            (tmp_path / "model").rename(theirs.model_file)
        torch.testing.assert_close(W, load(ours.path).W, atol=1e-5, rtol=1e-5)

    def test_each_rank_keeps_its_rows_only(self, runs: dict[int, Path]) -> None:
        folder, cfg = runs[3] / "a table", CONFIGS["a table"]
        classes = RunFolder(folder).load_model().W.shape[0]
        for rank in (1, 2):
            file = folder / f"checkpoints/ranks/round-{cfg.train.rounds:08d}-{rank}-of-3.safetensors"
            parts = read_safetensors(file)[0]
            assert parts.keys() == {"W", "theta/table", "tables/table", "spread/neighbors"}
            assert len(parts["W"]) == len(range(rank, classes, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [pytest.param("eq. (6), all pairs", marks=pytest.mark.slow), "a table"])
def test_a_killed_run_goes_on_with_fewer_ranks(runs: dict[int, Path], name: str, tmp_path: Path) -> None:
    cfg, folder = CONFIGS[name], tmp_path / "run"
    codes = run_ranks(3, train_until_killed, cfg, folder, "1", cfg.train.checkpoint_every + 1)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] == codes[2] == 2
    assert len(RunFolder(folder).checkpoints()) == 1
    said = "".join((tmp_path / f"run-{rank}.txt").read_text() for rank in (0, 2))
    assert said.count("error:") == 1
    assert "--resume" in said
    assert run_ranks(2, train_on, cfg, folder) == [0, 0]
    same(runs[1] / name, folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_process_goes_on_where_ranks_were_killed_and_ranks_where_it_was(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    name = "a table"
    cfg, folder = CONFIGS[name], tmp_path / "run"
    run_ranks(2, train_until_killed, cfg, folder, "1", cfg.train.checkpoint_every + 1)
    train(config=cfg, folder=folder, resume=True)
    same(runs[1] / name, folder)
    finished = RunFolder(folder)
    finished.checkpoints()[-1].unlink()
    finished.model_file.unlink()
    finished.details_file.unlink()
    assert run_ranks(2, train_on, cfg, folder) == [0, 0]
    same(runs[1] / name, folder)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_one_rank_finds_wrong_ends_all_and_is_told_once(tmp_path: Path) -> None:
    codes = run_ranks(3, train_until_wrong, CONFIGS["eq. (6), all pairs"], tmp_path / "run", "2")
    assert codes == [2, 2, 2]
    assert [(tmp_path / f"run-{rank}.txt").read_text() for rank in range(3)] == ["", "", "error: my disk is full\n"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_that_somebody_has_left_is_for_one_process(tmp_path: Path) -> None:
    cfg, folder = CONFIGS["eq. (6), all pairs"], tmp_path / "run"
    train(config=cfg.override(["train.rounds=1"]), folder=folder)
    forget(folder, "3")
    assert run_ranks(2, train_on, cfg.override(["train.rounds=1"]), folder) == [2, 2]
    assert "class 3 was removed" in "".join((tmp_path / f"run-{rank}.txt").read_text() for rank in range(2))


REFUSED = {
    "rows='all'": ["method=softmax"],
    "rows='private'": ["privacy.rows=private", "spread.regularizer=moments", "spread.center=false"],
    "privacy": ["privacy.clip=1.0"],
    "defence": ["defence.row_step=0.5"],
    "train.enroll": ["train.enroll=1.0", "method=family"],
    "train.last_step": ["train.last_step=ridge"],
    "clients.join": ["clients.join=[[3, [1]]]"],
    "clients.leave": ["clients.leave=[[3, [1]]]"],
    "model.crowding": ["model.crowding=0.5"],
    "model.start_rows": ["model.start_rows=means", "method=family"],
    "2 classes": ["data.classes=2", "clients.per_round=all"],
}
TOGETHER = ["train.last_step=ridge", "model.crowding=0.5", "privacy.clip=1.0"]


def test_what_ranks_cannot_do_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    cases = REFUSED | {"together": TOGETHER}
    configs = {name: from_toml(DENSE, "t").override(changes) for name, changes in cases.items()}
    assert run_ranks(3, refused_all, configs, tmp_path) == [0, 0, 0]
    for rank in range(3):
        lines = (tmp_path / f"refused-{rank}.txt").read_text().splitlines()
        assert [line.partition(":")[0] for line in lines] == list(cases)
        assert all("3 ranks cannot train yet with" in line for line in lines)
        fixes = (
            "privacy.clip=1.0 (leave it out); with train.last_step=ridge (set none); with model.crowding=0.5 (set 0: "
        )
        assert fixes in lines[-1]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def dense(data: FederatedData) -> Tensor:
    assert isinstance(data.x, Tensor)
    return data.x


def test_each_rank_has_the_examples_of_the_classes_whose_rows_it_has() -> None:
    x, y = torch.arange(12.0)[:, None], torch.arange(12) % 4
    data = from_arrays(x, y, clients_per_class=2)
    parts = [own_examples(data, Ranks(rank, 3)) for rank in range(3)]
    assert [part.y.unique().tolist() for part in parts] == [[0, 3], [1], [2]]
    assert sorted(torch.cat([dense(part) for part in parts])[:, 0].tolist()) == x[:, 0].tolist()
    for part in parts:
        assert part.num_examples.equal(data.num_examples)  # so that all ranks draw the same cohort
        assert part.available.equal(data.available)
        for client in part.own.available.tolist():  # the same examples in the same order
            mine, whole = (dense(d)[d.starts[client] : d.starts[client + 1]] for d in (part, data))
            assert mine.equal(whole)


def test_torchrun_speaks_with_one_voice(tmp_path: Path) -> None:
    config = tmp_path / "dense.toml"
    config.write_text(DENSE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "fedaws"]
    done = subprocess.run(
        [*command, "train", str(config), "--out", str(tmp_path / "run"), "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["rounds"] == 5
    assert done.stderr.count("round 5/5") == 1
    assert (tmp_path / "run" / "report.html").exists()


def test_a_config_has_nothing_of_ranks_in_it() -> None:
    assert "ranks" not in Config().to_toml()
