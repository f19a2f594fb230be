"""Sets of the XC repository: where they are found, their cache, and pairs of .npz."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedaws import Config, FederatedData, from_sparse
from fedaws.cli.common import configured
from fedaws.data import load_data
from fedaws.data.label_sets import Split, inverse_propensities, one_label
from fedaws.data.sources import xc
from fedaws.data.sources.xc import to_arrays, to_split
from fedaws.data.sources.xc_synthetic import scaled, xc_synthetic
from fedaws.record.folder import RunFolder
from fedaws.sparse import SparseRows, from_dense, from_lists
from helpers import refusal

TRAIN = "4 6 3\n0,2 1:0.5 3:1\n1 0:2\n 5:1\n2 4:0.25\n"
TEST = "2 6 3\n0,1 1:1\n2 5:3\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDAWS_DATA", raising=False)


def put(folder: Path, train: str = TRAIN, test: str = TEST, names: tuple[str, str] = ("train.txt", "test.txt")) -> Path:
    folder.mkdir(parents=True)
    (folder / names[0]).write_text(train)
    (folder / names[1]).write_text(test)
    return folder


def load(*settings: str) -> FederatedData:
    return load_data(Config().override(settings))


def dense(x: object) -> list[list[float]]:
    assert isinstance(x, SparseRows)
    rows: list[list[float]] = x.to_dense().tolist()
    return rows


# --- where they are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["xc/delicious", "delicious", "Delicious", "xc/Delicious.bow", "."])
def test_a_set_is_found_below_the_root(tmp_path: Path, place: str) -> None:
    put(tmp_path / "data" / place)
    data = load("data.name=delicious", f"data.root={tmp_path / 'data'}")
    assert dense(data.x_test) == [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 3]]
    assert dense(data.y_test) == [[1, 1, 0], [0, 0, 1]]


def test_a_set_is_found_by_the_environment_and_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "env" / "Amazon-670K", names=("amazon_train.txt", "amazon_test.txt"))
    put(tmp_path / "home" / "fedaws" / "xc" / "wikilshtc-325k")
    monkeypatch.setenv("FEDAWS_DATA", str(tmp_path / "env"))
    assert load("data.name=amazon-670k").num_classes == load("data.name=wikilshtc-325k").num_classes == 3


def test_a_set_that_is_not_there_is_told_with_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    message = refusal(lambda: load("data.name=amazoncat-13k", f"data.root={tmp_path}"))
    assert "manikvarma.org" in message
    assert f"put train.txt and test.txt into {tmp_path / 'amazoncat-13k'}" in message


def test_a_folder_of_ones_own_is_read_as_it_is(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    assert load("data.name=xc", f"data.root={folder}").num_classes == 3
    assert "set data.root" in refusal(lambda: load("data.name=xc"))
    (folder / "test.txt").unlink()
    told = refusal(lambda: load("data.name=xc", f"data.root={folder}"))
    assert "has no test.txt, nor X.tst.npz and Y.tst.npz; add its test part, or set data.validation=0.2" in told


def test_rows_may_be_held_out_where_there_is_no_test_part(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    settings = ("data.name=xc", f"data.root={folder}", "data.validation=1")
    with_test = load(*settings)
    (folder / "test.txt").unlink()
    without = load(*settings)
    assert without.tested_on == "held-out"
    assert (len(without.x_test), len(without.y)) == (1, len(with_test.y))
    assert dense(without.x_test) == dense(with_test.x_test)


def test_labels_have_the_names_in_a_file_beside_them(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    (folder / "labels.txt").write_text("Shoes\n\nShoes\n", encoding="utf-8")
    assert load("data.name=xc", f"data.root={folder}").class_names == ("Shoes #0", "#1", "Shoes #2")
    (folder / "labels.txt").write_text("Shoes\n", encoding="utf-8")
    told = refusal(lambda: load("data.name=xc", f"data.root={folder}"))
    assert told.endswith("labels.txt has 1 lines for 3 classes; wanted one name per line")


def test_parts_of_two_sets_are_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", test="1 7 3\n0 1:1\n")
    message = refusal(lambda: load("data.name=xc", f"data.root={folder}"))
    assert "training part of 6 features, test part of 7" in message


def test_bad_rows_of_the_test_part_are_told_with_their_place(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", test="1 6 3\n3 1:1\n")
    message = refusal(lambda: load("data.name=xc", f"data.root={folder}"))
    assert message == f"{folder / 'test.txt'}, line 2: got '3'; wanted a label from 0 to 2"


# --- other data under a set's name ----------------------------------------------------------------------------------

SMALL = ("-s", "train.rounds=2", "-s", "clients.per_round=2", "-s", "spread.neighbors=1", "-s", "train.threads=1")


def put_npz(folder: Path) -> Path:
    folder.mkdir()
    for part, rows in (("trn", 5), ("tst", 3)):
        rng = np.random.default_rng(rows)
        x = rng.random((rows, 6)) * (rng.random((rows, 6)) < 0.6) + np.eye(rows, 6)
        sp.save_npz(folder / f"X.{part}.npz", sp.csr_matrix(x))
        sp.save_npz(folder / f"Y.{part}.npz", sp.csr_matrix(np.eye(rows, 4)))
    return folder


@pytest.mark.parametrize(
    ("fill", "numbers"), [(put, "4 rows, 6 features and 3 labels"), (put_npz, "5 rows, 6 features and 4 labels")]
)
def test_other_data_under_a_sets_name_are_recorded_as_ones_own(
    tmp_path: Path, cli: Callable[..., Any], fill: Callable[[Path], Path], numbers: str
) -> None:
    folder = fill(tmp_path / "shop")
    done = cli("train", "delicious", "-s", f"data.root={folder}", *SMALL, "--out", "run")
    assert done.code == 0, done.err
    assert f"{folder} has {numbers}; delicious has 12,920, 500 and 983: taken as data of your own" in done.err
    cfg = RunFolder(Path("run")).config()
    assert (cfg.name, cfg.data.name, cfg.data.root) == ("shop", "xc", str(folder))
    report = Path("run/report.html").read_text(encoding="utf-8")
    assert "shop, a folder of your own (xc)" in report


def test_the_set_itself_keeps_its_name_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(tmp_path / "elsewhere")
    monkeypatch.setitem(xc.SETS, "delicious", replace(xc.SETS["delicious"], train=4, features=6, labels=3))
    cfg = configured("delicious", [f"data.root={folder}"])
    assert (cfg.name, cfg.data.name) == ("delicious", "delicious")


# --- the cache ------------------------------------------------------------------------------------------------------


def test_the_second_start_does_not_read_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("data.name=xc", f"data.root={put(tmp_path / 'mine')}")
    first = load(*settings)
    monkeypatch.setattr(xc, "read_text", lambda path: pytest.fail("read again"))
    second = load(*settings)
    assert dense(second.x) == dense(first.x)
    assert second.y.equal(first.y)


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    settings = ("data.name=xc", f"data.root={folder}")
    load(*settings)
    (folder / "test.txt").write_text("1 6 3\n2 1:9\n")
    assert dense(load(*settings).x_test) == [[0, 9, 0, 0, 0, 0]]
    (folder / "test.txt").write_text("1 6 3\n2 1:8\n")  # of the same size
    os.utime(folder / "test.txt", ns=(1, 1))
    assert dense(load(*settings).x_test) == [[0, 8, 0, 0, 0, 0]]


# --- .npz -----------------------------------------------------------------------------------------------------------


def test_pairs_of_npz_are_read(tmp_path: Path) -> None:
    folder = put_npz(tmp_path / "mine")
    data = load("data.name=xc", f"data.root={folder}")
    torch.testing.assert_close(
        torch.tensor(dense(data.x_test)), torch.tensor(sp.load_npz(folder / "X.tst.npz").toarray(), dtype=torch.float32)
    )
    assert dense(data.y_test) == np.eye(3, 4).tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"indices": np.full(5, 9)}, "has in row 0 the column 9, wanted 0 to 3"),
        ({"data": np.array([1, 1, -1, 1, 1.0])}, "has in row 2 the value -1, wanted finite ones, not below 0"),
        ({"data": np.array([1, 1, 1, np.nan, 1.0])}, "has in row 3 the value nan, wanted finite ones"),
        ({"indptr": np.array([0, 1, 2, 3, 4, 9])}, "its rows do not end where its 5 entries do"),
        ({"indptr": np.array([0, 3, 2, 3, 4, 5])}, "a row ends before it begins"),
        ({"indptr": np.array([0, 1, 2, 3, 5])}, "it has 5 row starts for 5 rows"),
        ({"shape": np.array([0, 4])}, "it has 6 row starts for 0 rows"),
        ({"format": np.array("csc")}, "wanted csr"),
        ({"format": np.array(["csr", "csr"])}, "wanted csr"),
        ({"shape": np.array([5.0, 4.0])}, "not whole numbers"),
        ({"shape": np.array([5, 4, 1])}, "not whole numbers"),
        ({"shape": np.array(["5", "4"])}, "not whole numbers"),
        ({"shape": np.array([5, 2**40])}, "1,099,511,627,776 columns"),
        ({"shape": np.array([5, -4])}, "-4 columns"),
        ({"indptr": np.array([0, 2**63, 2**64 - 1, 3, 4, 5], dtype=np.uint64)}, "its rows do not end where"),
        ({"indptr": np.array(5)}, "not lists"),
        ({"indices": np.zeros(5)}, "not whole numbers"),
        ({"indices": np.zeros((5, 1), int)}, "not lists"),
        ({"data": np.array(["a"] * 5)}, "not lists of real numbers"),
        ({"data": np.ones(5, complex)}, "not lists of real numbers"),
        ({"data": np.frombuffer(b"\x01\0\0\0\0\0\xf0\x7f" * 5)}, "in row 0 the value nan"),
        ({"data": np.full(5, 1e300)}, "in row 0 the value inf"),
        ({"data": np.array([{}] * 5)}, "not a sound sparse matrix"),
    ],
)
def test_a_bad_matrix_is_told_in_one_line(tmp_path: Path, change: dict[str, np.ndarray], said: str) -> None:
    folder = put_npz(tmp_path / "mine")
    path = folder / "Y.trn.npz"
    good: dict[str, Any] = {"format": np.array("csr"), "shape": np.array([5, 4]), "data": np.ones(5)}
    good |= {"indices": np.array([0, 1, 2, 3, 0]), "indptr": np.arange(6)}
    np.savez(path, **good | change)
    message = refusal(lambda: load("data.name=xc", f"data.root={folder}"))
    assert str(path) in message
    assert said in message


def test_a_truncated_matrix_is_told_in_one_line(tmp_path: Path) -> None:
    folder = put_npz(tmp_path / "mine")
    whole = (folder / "X.trn.npz").read_bytes()
    (folder / "X.trn.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a sound sparse matrix" in refusal(lambda: load("data.name=xc", f"data.root={folder}"))


# --- one label for training, all for testing ------------------------------------------------------------------------


def test_every_training_example_lies_with_a_client_of_one_of_its_labels() -> None:
    rng = torch.Generator().manual_seed(0)
    sets = [sorted({int(c) for c in torch.randint(9, (4,), generator=rng)}) for _ in range(200)]
    x = from_dense(torch.eye(200))  # example i has feature i
    data = from_sparse(x, from_lists(sets, 9))
    for client in range(9):
        own = data.x[int(data.starts[client]) : int(data.starts[client + 1])].indices.tolist()
        assert all(client in sets[i] for i in own)
    assert sorted(data.x.indices.tolist()) == list(range(200))
    assert data.y.equal(data.class_of.repeat_interleave(data.num_examples))


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_with_every_label_an_example_lies_with_the_clients_of_all_its_labels(validation: float) -> None:
    rng = torch.Generator().manual_seed(0)
    sets = [sorted({int(c) for c in torch.randint(9, (4,), generator=rng)}) for _ in range(60)]
    sets[7] = []
    x = torch.eye(60)
    x[8] = 0  # no features: nobody's
    twice = [labels + labels[:1] for labels in sets]  # a label that a row names twice counts once
    data = from_sparse(from_dense(x), from_lists(twice, 9), every_label=True, validation=validation)
    held_out = set(data.x_test.indices.tolist()) if validation else set()
    for client in range(9):
        own = data.x[int(data.starts[client]) : int(data.starts[client + 1])].indices.tolist()
        assert sorted(own) == [i for i in range(60) if client in sets[i] and i != 8 and i not in held_out]
    assert data.y.equal(data.class_of.repeat_interleave(data.num_examples))


def test_data_of_one_label_per_example_have_no_every_label() -> None:
    said = refusal(lambda: load_data(Config().override(["data.every_label=true"])))
    assert "data.every_label: digits has one label per example" in said


def test_labels_are_drawn_uniformly_and_from_the_seed() -> None:
    sets = from_lists([[3, 5, 7]] * 30_000, 9)
    drawn = one_label(sets, seed=1)
    assert torch.bincount(drawn, minlength=9)[[3, 5, 7]].tolist() == pytest.approx(
        [10_000] * 3, abs=350
    )  # 4 deviations
    assert one_label(sets, seed=1).equal(drawn)
    assert not one_label(sets, seed=2).equal(drawn)


def test_examples_without_labels_or_features_are_not_trained_on_but_tested_on() -> None:
    x = from_dense(torch.tensor([[1.0, 0], [0, 1], [0, 0], [2, 2]]))
    data = from_sparse(x, from_lists([[0], [], [1], [1]], 3))
    assert dense(data.x) == [[1, 0], [2, 2]]
    assert data.available.tolist() == [0, 1]
    assert len(data.x_test) == 4


def test_scipy_matrices_with_explicit_zeros_have_no_such_labels() -> None:
    labels = sp.csr_matrix((np.array([1, 0, 1]), np.array([0, 1, 2]), np.array([0, 2, 3])), shape=(2, 3))
    assert dense(from_sparse(sp.csr_matrix(np.eye(2)), labels).y_test) == [[1, 0, 0], [0, 0, 1]]


def test_held_out_examples_keep_their_sets_and_are_not_trained_on() -> None:
    sets = [[i % 3, 3] for i in range(40)]
    data = from_sparse(from_dense(torch.eye(40)), from_lists(sets, 4), validation=0.25)
    held_out = data.x_test
    assert isinstance(held_out, SparseRows)
    assert len(held_out) == 10
    assert not set(held_out.indices.tolist()) & set(data.x.indices.tolist())
    for i in range(10):
        row = data.y_test[i : i + 1]
        assert sorted(row.indices.tolist()) == sets[int(held_out[i : i + 1].indices[0])]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((torch.eye(3), from_lists([[0]], 2)), "x is a Tensor; wanted a scipy sparse matrix"),
        ((from_dense(torch.eye(3)), from_lists([[0]], 2)), "x has 3 rows, labels 1"),
        ((from_dense(torch.eye(3)), from_lists([[0], [0], [2]], 2)), "in row 2 the column 2, wanted 0 to 1"),
        ((from_dense(-torch.eye(2)), from_lists([[0], [1]], 2)), "in row 0 the value -1"),
        ((from_dense(torch.eye(2)), from_lists([[], []], 2)), "no training example has both"),
        ((from_dense(torch.eye(2)), from_lists([[0], [0]], 1)), "only one class"),
    ],
)
def test_unsound_parts_are_refused(parts: tuple[object, object], said: str) -> None:
    assert said in refusal(lambda: from_sparse(*parts))


def test_the_propensity_of_a_label_by_hand() -> None:
    # A = 0.5, B = 2, N = e³: C = 2 √3; n = 1: 1 + 2 √3 / √3 = 3, n = 10: 1 + 2 √3 / √12 = 2
    weights = inverse_propensities(torch.tensor([1, 10]), round(np.e**3), 0.5, 2.0)
    assert weights.tolist() == pytest.approx([3, 2], abs=0.01)


def test_a_part_of_the_test_rows_is_the_same_for_every_seed(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", test="9 6 3\n" + "".join(f"0 1:{i + 1}\n" for i in range(9)))
    settings = ("data.name=xc", f"data.root={folder}", "data.test_examples=4")
    first, second = load(*settings, "seed=1"), load(*settings, "seed=2")
    assert len(first.x_test) == 4
    assert dense(first.x_test) == dense(second.x_test)


# --- the generator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", list(xc.SETS))
def test_generated_data_have_the_shape_of_their_model(tmp_path: Path, like: str) -> None:
    scale = 3000 / xc.SETS[like].train
    shape = scaled(xc.SETS[like], scale)
    train, test = xc_synthetic(like, scale, 0, tmp_path)
    assert train.x.shape == (3000, shape.features)
    assert train.labels.shape == (3000, shape.labels)
    assert len(test.x) == len(test.labels) == shape.test
    assert float(train.labels.counts.double().mean()) == pytest.approx(shape.labels_per_example, rel=0.05)
    assert float(train.x.counts.double().mean()) == pytest.approx(shape.features_per_example, rel=0.1)
    for part in train:  # no label and no feature twice in an example
        pairs = part.row_of_each * part.width + part.indices
        assert len(pairs.unique()) == len(pairs)


def test_the_public_shapes_are_those_of_the_papers_table() -> None:
    amazon = xc.SETS["amazon-670k"]
    assert (amazon.features, amazon.labels, amazon.train, amazon.test) == (135_909, 670_091, 490_449, 153_025)
    assert amazon.train * amazon.labels_per_example / amazon.labels == pytest.approx(3.99, abs=0.005)
    assert scaled(amazon, 1.0) == amazon


def test_label_frequencies_have_a_long_tail(tmp_path: Path) -> None:
    train, _ = xc_synthetic("amazoncat-13k", 0.02, 0, tmp_path)
    counts = torch.bincount(train.labels.indices, minlength=train.labels.width).sort(descending=True).values
    assert int(counts[: len(counts) // 10].sum()) > 0.4 * int(counts.sum())
    assert int(counts[0]) > 20 * int(counts[len(counts) // 2])


def test_generated_data_are_a_function_of_the_seed(tmp_path: Path) -> None:
    a, b, c = (xc_synthetic("delicious", 0.05, seed, tmp_path)[0] for seed in (1, 1, 2))
    assert a.x.indices.equal(b.x.indices)
    assert not a.x.indices[:100].equal(c.x.indices[:100])


def test_a_model_is_there_to_be_learnt(tmp_path: Path) -> None:
    # Nearest centroid, far above the most frequent label's share.
    train, test = xc_synthetic("yso-finna-en", 0.01, 0, tmp_path)
    x, y = (torch.nn.functional.normalize(part.x.to_dense(), dim=1) for part in (train, test))
    labels, wanted = train.labels.to_dense(), test.labels.to_dense()
    best = (y @ torch.nn.functional.normalize(labels.T @ x, dim=1).T).argmax(1)
    hits = float(wanted[torch.arange(len(best)), best].mean())
    assert hits > 3 * float(wanted.mean(0).max())
    assert hits > 0.3


def test_large_generated_data_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.data.sources.xc_synthetic._LARGE", 1000)
    first, _ = xc_synthetic("delicious", 0.05, 0, tmp_path)
    monkeypatch.setattr("fedaws.data.sources.xc_synthetic.generate", lambda *args: pytest.fail("made again"))
    assert xc_synthetic("delicious", 0.05, 0, tmp_path)[0].x.indices.equal(first.x.indices)


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    assert "wanted one of delicious" in refusal(lambda: load("data.name=xc-synthetic", "data.like=imagenet"))


def test_a_cache_that_claims_billions_of_labels_is_refused_before_memory_is_taken() -> None:
    one = SparseRows(torch.tensor([0, 1], dtype=torch.int32), None, torch.tensor([0, 1, 2]), 2)
    arrays = to_arrays(Split(replace(one, values=torch.ones(2)), one))
    told = refusal(lambda: to_split(arrays | {"widths": np.array([2, 2**31 - 1])}))
    assert told == "2,147,483,647 columns; wanted at most 10,000,000 for so few entries"
