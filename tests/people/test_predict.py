"""The likeliest classes of a file's examples, and W that stays on the disk."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import fedaws
from fedaws.errors import FedawsError
from fedaws.evaluate.half_rows import HalfRows
from fedaws.people.predict import predict, read_file
from fuzz.mutations import mutated
from helpers import refusal

Cli = Callable[..., Any]
X = sp.csr_matrix(np.random.default_rng(0).random((40, 12)).astype(np.float32).round(1))
LABELS = sp.csr_matrix(np.eye(5)[np.arange(40) % 5])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on sparse examples, and these as a matrix and as a text."""
    place = tmp_path_factory.mktemp("sparse")
    settings = ["model.name=bag", "model.hidden=[]", "model.crowding=0.5", "train.rounds=3"]
    config = fedaws.Config().override(settings)
    fedaws.train(fedaws.from_sparse(X, LABELS), config=config, folder=place / "run")
    sp.save_npz(place / "x.npz", X)
    rows = [" ".join(f"{c}:{v:g}" for c, v in zip(row.indices, row.data, strict=True)) for row in X]
    text = ["40 12 5\n", *(f"{i % 5} {row}\n" for i, row in enumerate(rows))]
    (place / "x.txt").write_text("".join(text))
    return place


@pytest.fixture
def run(folder: Path) -> fedaws.Run:
    return fedaws.load(folder / "run")


def test_predictions_are_those_of_identify_whatever_the_batch(folder: Path, run: fedaws.Run) -> None:
    wanted = run.identify(X, 3)
    for file, batch in (("x.npz", 7), ("x.txt", 1000), ("x.npz", 40)):
        found = list(predict(run, read_file(run, folder / file), 3, batch))
        assert [[int(guess.name) for guess in each] for each in found] == wanted.classes.tolist()
        scores = torch.tensor([[guess.score for guess in each] for each in found])
        torch.testing.assert_close(scores, wanted.scores)


def test_the_command_prints_a_line_for_each_example(folder: Path, run: fedaws.Run, cli: Cli) -> None:
    lines = cli("predict", folder / "run", folder / "x.txt", "--top", 2).out.splitlines()
    told = json.loads(cli("predict", folder / "run", folder / "x.npz", "--top", 2, "--json").out)["examples"]
    classes = run.identify(X, 2).classes.tolist()
    assert [[int(each.split()[0]) for each in line.split("\t")] for line in lines] == classes
    assert [[int(guess["name"]) for guess in each] for each in told] == classes


def test_classes_have_the_names_of_a_file(folder: Path, run: fedaws.Run, tmp_path: Path, cli: Cli) -> None:
    names = ["Shoes", "Red  hats", "Tea\tpots", "Ünder", "Shoes"]  # two products may be called alike
    shown = ["Shoes", "Red hats", "Tea pots", "Ünder", "Shoes"]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    wanted = [[shown[c] for c in row] for row in run.identify(X, 2).classes.tolist()]
    command = ("predict", folder / "run", folder / "x.npz", "--top", 2, "--names", tmp_path / "names.txt")
    told = json.loads(cli(*command, "--json").out)["examples"]
    assert [[guess["name"] for guess in each] for each in told] == wanted
    lines = cli(*command).out.splitlines()
    assert [[each.rpartition(" ")[0] for each in line.split("\t")] for line in lines] == wanted


def test_a_wrong_number_of_names_is_refused(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "names.txt").write_text("a\nb\n")
    told = refused("predict", folder / "run", folder / "x.npz", "--names", tmp_path / "names.txt")
    assert "names.txt has 2 lines for 5 classes; wanted one name per line" in told


def test_rows_without_features_are_told(folder: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "x.txt").write_text("3 12 5\n0 1:1\n1 \n2 3:0\n")
    told = cli("predict", folder / "run", tmp_path / "x.txt", "--json")
    assert json.loads(told.out)["rows_without_features"] == [1, 2]
    assert "warning: 2 of 3 rows have no features, the first is row 1" in told.err
    assert cli("predict", folder / "run", folder / "x.txt").err == ""


def test_rows_left_on_the_disk_rank_alike(folder: Path, run: fedaws.Run, tmp_path: Path, cli: Cli) -> None:
    path = run.save_half_rows(tmp_path / "rows.safetensors")
    small = fedaws.load(folder / "run", rows=path)
    whole, half = run.identify(X, 4), small.identify(X, 4)
    torch.testing.assert_close(half.scores, whole.scores, atol=2e-3, rtol=0)
    assert torch.equal(half.classes[:, 0], run.identify(X, index=HalfRows(path)).classes[:, 0])
    assert float((half.classes[:, 0] == whole.classes[:, 0]).float().mean()) > 0.9
    told = cli("predict", folder / "run", folder / "x.npz", "--rows", path, "--json").out
    assert [int(each[0]["name"]) for each in json.loads(told)["examples"]] == half.classes[:, 0].tolist()


def test_half_rows_are_read_in_tiles_and_equal_a_plain_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.evaluate.half_rows._TILE", 7)
    W = torch.nn.functional.normalize(torch.randn(50, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    data = fedaws.from_arrays(torch.eye(50), torch.arange(50))
    run = fedaws.train(data, config=fedaws.Config().override(["train.rounds=1", "model.embedding_dim=64"]))
    run.model.W.copy_(W)
    gone = run.without_class(3)
    rows = HalfRows(gone.save_half_rows(tmp_path / "rows"))
    z = gone.embed(torch.eye(50))
    scores = z @ W.half().float().T
    scores[:, 3] = -torch.inf
    wanted = scores.topk(5)
    found = rows.rank(z, 5)
    torch.testing.assert_close(found.scores, wanted.values)
    assert torch.equal(found.classes, wanted.indices)
    assert rows.rank(z, 1000).classes.shape == (50, 49)  # a removed class is never among them


def test_such_a_run_is_for_identifying_alone(folder: Path, run: fedaws.Run, tmp_path: Path) -> None:
    small = fedaws.load(folder / "run", rows=run.save_half_rows(tmp_path / "rows"))
    data = fedaws.from_sparse(X, LABELS)
    for action in (lambda: small.W, lambda: small.evaluate(data), lambda: small.save(tmp_path / "copy"), small.index):
        assert "left on the disk" in refusal(action)
    assert "5 classes" in repr(small)


def test_rows_of_another_model_are_refused(folder: Path, run: fedaws.Run, tmp_path: Path) -> None:
    path = run.save_half_rows(tmp_path / "rows")
    other = run.config.with_(seed=1)
    fedaws.train(fedaws.from_sparse(X, LABELS), config=other, folder=tmp_path / "other")
    assert "rows of another model" in refusal(lambda: fedaws.load(tmp_path / "other", rows=path))
    assert "no rows in half precision" in refusal(lambda: HalfRows(folder / "run" / "model" / "model.safetensors"))


def test_damaged_rows_are_used_or_refused_in_one_line(run: fedaws.Run, tmp_path: Path) -> None:
    path = run.save_half_rows(tmp_path / "rows")
    content, z = path.read_bytes(), run.embed(X[:2])
    for case in range(200):
        path.write_bytes(mutated(random.Random(f"rows {case}"), content))
        try:
            HalfRows(path).rank(z, 3)
        except FedawsError as error:
            told = str(error)
        else:
            told = "used"
        assert told.isprintable()


def test_other_features_than_the_models_are_refused(run: fedaws.Run, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "narrow.npz", X[:, :5])
    assert "trained on 12" in refusal(lambda: list(predict(run, read_file(run, tmp_path / "narrow.npz"), 1)))
