"""Files are there whole or not at all, and are checked when read."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from fedaws import FedawsError
from fedaws.files import append_line, only_writer, write_bytes, write_text
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from helpers import refusal

TENSORS = {"W": torch.tensor([[0.1, 1e-30], [-0.0, 3e38]]), "theta/a.b": torch.arange(3.0)}


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


# --- writing --------------------------------------------------------------------------------------------------------


def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "file", "ünï")
    assert (tmp_path / "a" / "b" / "file").read_text(encoding="utf-8") == "ünï"


def test_a_full_disk_keeps_the_old_file_and_leaves_no_part_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", no_space)
    message = refusal(lambda: write_bytes(tmp_path / "file", b"new"))
    assert "file: No space left on device; make room" in message
    assert files_below(tmp_path) == {"file"}
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_interruption_while_writing_leaves_no_part_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "file", b"new")
    assert files_below(tmp_path) == set()


@pytest.mark.parametrize("write", [lambda p: write_bytes(p, b""), lambda p: append_line(p, "")])
def test_a_path_below_a_file_is_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "file").touch()
    message = refusal(lambda: write(tmp_path / "file" / "below"))
    assert "cannot write" in message
    assert "choose another folder" in message


def test_lines_are_added_at_the_end(tmp_path: Path) -> None:
    for line in ("one", "two"):
        append_line(tmp_path / "file", line)
    assert (tmp_path / "file").read_text() == "one\ntwo\n"


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    write_tensors(path, TENSORS, {"round": 3, "names": ["ü"]})
    return path


def test_tensors_come_back_with_the_same_bits(file: Path) -> None:
    tensors, facts = read_tensors(file)
    assert {k: t.view(torch.int32).tolist() for k, t in tensors.items()} == {
        k: t.view(torch.int32).tolist() for k, t in TENSORS.items()
    }
    assert facts == '{"round": 3, "names": ["\\u00fc"]}'


def test_transposed_tensors_come_back_as_they_look(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {"W": TENSORS["W"].T}, {})
    assert read_tensors(tmp_path / "t")[0]["W"].tolist() == TENSORS["W"].T.tolist()


def test_there_is_no_pickle_in_it(file: Path) -> None:
    assert b"\x80\x02" not in file.read_bytes()[:8]
    assert file.read_bytes()[8:9] == b"{"  # safetensors: eight bytes of length, then JSON


def test_a_file_cut_short_anywhere_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert "is damaged" in refusal(lambda: read_tensors(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: read_tensors(tmp_path / "none"))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a plain file" in refusal(lambda: read_tensors(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16])
def test_types_that_are_never_written_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    (tmp_path / "file").write_bytes(save({"W": torch.zeros(2, 2, dtype=dtype)}, {"format": "fedaws-1", "facts": "{}"}))
    assert "'W' is of the type" in refusal(lambda: read_tensors(tmp_path / "file"))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_every_type_and_shape_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(6).view(2, 3)[: shape[0] if shape else 1].to(dtype)
    tensor = tensor.new_ones(shape) if 0 in shape or not shape else tensor
    write_tensors(tmp_path / "file", {"a": tensor, "b": torch.ones(3, dtype=torch.uint8)}, {})
    read = read_tensors(tmp_path / "file")[0]
    assert read["a"].dtype == dtype
    assert read["a"].shape == shape
    assert read["a"].equal(tensor)
    assert read["b"].tolist() == [1, 1, 1]


def written(path: Path, header: object, data: bytes = b"") -> Path:
    """A safetensors file with this header."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def about(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"__metadata__": {"format": "fedaws-1"}, "W": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "header",
    [
        [],
        7,
        b"[" * 100_000,
        {"__metadata__": {"format": 1}},
        {"W": []},
        about(shape=[-1]),
        about(shape=[2]),
        about(shape=[True]),
        about(shape=[2**70]),
        about(shape=[2**40, 0, 2**40], offsets=(0, 0)),
        about(shape=[2**35], offsets=(0, 2**37)),
        about(offsets=(4, 8)),
        about(offsets=(0, 4, 8)),
        about(dtype=["F32"]),
        about(dtype="BOOL", shape=[4]),
        about() | {"V": about()["W"]},  # two in one place
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, header: object) -> None:
    path = written(tmp_path / "file", header, b"\x07abc")
    assert "is damaged" in refusal(lambda: read_tensors(path))


def test_tensors_that_do_not_fit_into_memory_are_refused_before_it_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "file", about(shape=[2**37], offsets=(0, 2**39)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 2**39)  # a hole: half a terabyte, none of it on the disk
    assert "does not fit into memory" in refusal(lambda: read_tensors(path))


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_somebody_elses_safetensors_are_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file(TENSORS, tmp_path / "other", metadata)
    assert "was not written by fedaws" in refusal(lambda: read_tensors(tmp_path / "other"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    write_tensors(tmp_path / "bad", {"W": torch.tensor([1.0, value])}, {})
    message = refusal(lambda: read_tensors(tmp_path / "bad"))
    assert "NaN or infinite values in 'W'" in message
    assert "fall back on an earlier one" in message


WHOLE = save(TENSORS, {"format": "fedaws-1", "facts": "{}"})


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=20))
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(WHOLE)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged)
    with suppress(FedawsError):
        read_tensors(path)


def test_a_second_process_is_refused_while_one_holds_the_folder(tmp_path: Path) -> None:
    with only_writer(tmp_path):
        assert "another process is training in" in refusal(lambda: only_writer(tmp_path).__enter__())
    with only_writer(tmp_path):  # free again
        pass


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml"])
def test_a_run_folder_with_a_pipe_or_an_endless_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path)
    readers: dict[str, Callable[[], object]] = {"metrics.jsonl": folder.metrics, "config.toml": folder.config}
    read = readers[name]
    os.mkfifo(tmp_path / name)
    refusal(read)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    refusal(read)


def test_what_is_written_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    tensors = TENSORS | {
        "bits": torch.tensor([True, False, True]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "number": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "turned": torch.arange(6).view(2, 3).T,
    }
    write_tensors(tmp_path / "file", tensors, {"a": 1})
    read = load_file(tmp_path / "file")
    assert read.keys() == tensors.keys()
    assert all(read[name].equal(tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors.items())
