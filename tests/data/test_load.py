"""The data sets that a configuration can name."""

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws import Config, FedawsError
from fedaws.data import load_data
from fedaws.data.load import _read_npz
from fedaws.data.sources.digits import digits
from fedaws.data.sources.synthetic import synthetic
from helpers import dense, refusal

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
GOOD: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X + 1, "y_test": Y}


def config(*settings: str) -> Config:
    return Config().override(settings)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.npz"
    np.savez(path, **GOOD)
    return path


# --- digits ---------------------------------------------------------------------------------------------------------


def test_the_digits_are_1797_of_ten_classes_a_quarter_held_out() -> None:
    x_train, y_train, x_test, y_test = digits()
    assert (len(x_train), len(x_test)) == (1347, 450)
    assert set(y_train) == set(y_test) == set(range(10))
    assert (x_train.min(), x_train.max()) == (0, 1)


def test_no_digit_is_both_trained_and_tested_on() -> None:
    x_train, _, x_test, _ = digits()
    assert not {row.tobytes() for row in x_train} & {row.tobytes() for row in x_test}


def test_the_test_digits_are_the_same_for_every_seed() -> None:
    assert load_data(config("seed=1")).x_test.equal(dense(load_data(config("seed=2")).x_test))


def test_fedavgs_clients_have_two_classes() -> None:
    data = load_data(config(), classes_per_client=2)
    for i in range(10):
        labels = data.y[data.starts[i] : data.starts[i + 1]].unique().tolist()
        assert labels == sorted([i, (i + 1) % 10])


def test_the_configuration_has_the_last_word_on_classes_per_client() -> None:
    data = load_data(config("data.classes_per_client=1"), classes_per_client=2)
    assert data.y.equal(data.class_of.repeat_interleave(data.num_examples))


def test_a_file_without_a_test_set_does_where_rows_are_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.eye(6, dtype=np.float32), y_train=np.arange(6) % 2)
    settings = (f"data.name={tmp_path / 'mine.npz'}", "model.hidden=[8]")
    assert load_data(config(*settings, "data.validation=2")).tested_on == "held-out"
    assert "has no x_test, y_test" in refusal(lambda: load_data(config(*settings)))


def test_the_settings_of_the_data_table_are_used() -> None:
    data = load_data(config("data.clients_per_class=3", "data.num_classes=12", "data.validation=100"))
    assert len(data.num_examples) == 36
    assert data.num_classes == 12
    assert (len(data.x), len(data.x_test)) == (1247, 100)


# --- synthetic ------------------------------------------------------------------------------------------------------


def test_synthetic_classes_have_the_asked_size_with_a_fifth_held_out() -> None:
    x, y, x_test, y_test = synthetic(classes=7, features=3, examples_per_class=10, overlap=0.5, seed=0)
    assert x.shape == (56, 3)
    assert torch.bincount(y).tolist() == [8] * 7
    assert torch.bincount(y_test).tolist() == [2] * 7
    assert x_test.shape == (14, 3)


def test_at_least_one_example_of_each_class_is_held_out() -> None:
    _, _, _, y_test = synthetic(classes=3, features=2, examples_per_class=2, overlap=0.1, seed=0)
    assert y_test.tolist() == [0, 1, 2]


def test_overlap_is_the_noise_as_a_share_of_the_distance_of_centres() -> None:
    x, y, _, _ = synthetic(classes=200, features=50, examples_per_class=50, overlap=0.3, seed=0)
    centres = torch.stack([x[y == c].mean(0) for c in range(200)])
    noise = (x - centres[y]).norm(dim=1).mean()
    apart = torch.pdist(centres).mean()
    assert float(noise / apart) == pytest.approx(0.3, rel=0.05)


def test_without_overlap_all_examples_of_a_class_are_equal() -> None:
    x, y, _, _ = synthetic(classes=3, features=2, examples_per_class=10, overlap=0.0, seed=0)
    assert len(x[y == 1].unique(dim=0)) == 1


def test_synthetic_data_are_a_function_of_the_seed() -> None:
    one, same, other = (synthetic(4, 3, 5, 0.5, seed)[0] for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)


# --- .npz -----------------------------------------------------------------------------------------------------------


def test_an_npz_file_is_read(good: Path) -> None:
    data = load_data(config(f"data.name={good}"))
    assert data.num_examples.tolist() == [2, 2, 2]
    assert data.x_test.tolist() == (X + 1).tolist()


def test_a_relative_path_starts_at_the_root(good: Path) -> None:
    assert load_data(config("data.name=good.npz", f"data.root={good.parent}")).num_classes == 3


def test_without_a_root_it_is_looked_for_in_fedaws_data(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAWS_DATA", str(good.parent))
    assert load_data(config("data.name=good.npz")).num_classes == 3


@pytest.mark.parametrize("elsewhere", [None, "/nowhere"])
def test_a_file_that_lies_here_is_found_first(
    good: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str | None
) -> None:
    monkeypatch.delenv("FEDAWS_DATA", raising=False)
    if elsewhere:
        monkeypatch.setenv("FEDAWS_DATA", elsewhere)
    monkeypatch.chdir(good.parent)
    assert load_data(config("data.name=good.npz")).num_classes == 3


def test_the_root_comes_before_fedaws_data(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAWS_DATA", str(good.parent / "elsewhere"))
    assert load_data(config("data.name=good.npz", f"data.root={good.parent}")).num_classes == 3


def test_an_absolute_path_needs_no_root(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAWS_DATA", "/nowhere")
    assert load_data(config(f"data.name={good}")).num_classes == 3


def test_the_home_folder_may_be_written_as_a_tilde(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(good.parent))
    assert load_data(config("data.name=~/good.npz")).num_classes == 3


def test_an_unknown_data_set_names_the_known_ones_and_the_ways_of_own_data() -> None:
    told = refusal(lambda: load_data(config("data.name=shop")))
    assert (
        "there are digits, synthetic, cifar10, cifar100, audiomnist, images, sounds, delicious, yso-finna-en, " in told
    )
    for way in ("data.name=FILE.npz", "data.name=images, sounds or xc -s data.root=FOLDER", "fedaws.train(data)"):
        assert way in told


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "none.npz: No such file" in refusal(lambda: load_data(config(f"data.name={tmp_path}/none.npz")))


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "half.npz", x_train=X, y_train=Y)
    message = refusal(lambda: load_data(config(f"data.name={tmp_path}/half.npz")))
    assert "half.npz has no x_test, y_test; wanted the arrays x_train, y_train, x_test, y_test" in message


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", **GOOD | {"y_train": Y.astype(object)})
    message = refusal(lambda: load_data(config(f"data.name={tmp_path}/objects.npz")))
    assert "not a sound .npz file" in message
    assert "all of numbers" in message


def test_one_nameless_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, X)
    assert "not a sound .npz file (File is not a zip file)" in refusal(
        lambda: load_data(config(f"data.name={tmp_path}/array.npz"))
    )


def test_an_array_beyond_memory_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**15, 2)})
    with zipfile.ZipFile(tmp_path / "vast.npz", "w") as vast:
        for part in GOOD:
            vast.writestr(f"{part}.npy", header.getvalue())
    message = refusal(lambda: load_data(config(f"data.name={tmp_path}/vast.npz")))
    assert "x_train has 0 bytes, wanted 8,000,000,000,000,000" in message


def test_a_file_that_unpacks_to_a_hundred_times_its_size_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        for part in GOOD:
            with bomb.open(f"{part}.npy", "w", force_zip64=True) as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (100, 2**20)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(100):
                    member.write(bytes(2**20))
    tracemalloc.start()
    message = refusal(lambda: load_data(config(f"data.name={tmp_path}/bomb.npz")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "unpacks to 419,430,400; wanted at most 268,435,456 or 100 times its size" in message
    assert peak < 10**6


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_numpy_never_writes_are_refused(tmp_path: Path, packing: int) -> None:
    with zipfile.ZipFile(tmp_path / "odd.npz", "w", packing) as odd:
        for part, array in GOOD.items():
            content = io.BytesIO()
            np.save(content, array)
            odd.writestr(f"{part}.npy", content.getvalue())
    message = refusal(lambda: load_data(config(f"data.name={tmp_path}/odd.npz")))
    assert "x_train is packed in a way that NumPy never does" in message


def test_a_message_about_junk_gives_no_advice_of_numpys(tmp_path: Path) -> None:
    (tmp_path / "junk.npz").write_bytes(b"junk" * 100)
    assert "pickle" not in refusal(lambda: load_data(config(f"data.name={tmp_path}/junk.npz")))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    assert "is not a plain file" in refusal(lambda: load_data(config(f"data.name={tmp_path}/pipe.npz")))


def test_settings_are_named_as_settings(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **GOOD)
    settings = config(f"data.name={tmp_path}/good.npz", "data.num_classes=2")
    assert "raise data.num_classes to" in refusal(lambda: load_data(settings))


def test_held_out_examples_stand_in_for_the_test_set_of_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **GOOD | {"x_test": X + 100})
    data = load_data(config(f"data.name={tmp_path}/good.npz", "data.validation=1", "data.num_classes=9"))
    assert float(data.x_test.max()) < 100
    assert data.tested_on == "held-out"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    assert "is not a plain file" in refusal(lambda: load_data(config(f"data.name={tmp_path}/folder.npz")))


def test_nan_in_a_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "nan.npz", **GOOD | {"x_test": X * np.nan})
    assert f"{tmp_path}/nan.npz: x_test has NaN" in refusal(lambda: load_data(config(f"data.name={tmp_path}/nan.npz")))


def archive(save: Callable[..., None]) -> bytes:
    content = io.BytesIO()
    save(content, **GOOD)
    return content.getvalue()


PLAIN, COMPRESSED = archive(np.savez), archive(np.savez_compressed)


@pytest.mark.parametrize("content", [PLAIN, COMPRESSED], ids=["plain", "compressed"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cut.npz"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert "not a sound .npz file" in refusal(lambda: _read_npz(path))


@given(st.sampled_from([PLAIN, COMPRESSED]), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=20))
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(content)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(damaged)
    with suppress(FedawsError):
        assert len(_read_npz(path)) == 4
