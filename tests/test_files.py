"""Outside bytes: what is no plain file of a decent size is one line, and a write follows nobody's link."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedaws.files import (
    append_line,
    atomically,
    check_unpacked,
    only_writer,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    write_bytes,
    write_text,
)
from helpers import refusal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    return path


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_plain_file_is_opened_also_through_a_link(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    with open_regular(link, 5) as opened:
        assert opened.read() == b"12345"


def test_a_file_larger_than_wanted_is_refused_before_it_is_read(file: Path) -> None:
    assert refusal(lambda: open_regular(file, 4)) == f"{file} has 5 bytes; wanted at most 4"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a plain file" in refusal(lambda: open_regular(tmp_path / "pipe", 10))


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert "is not a plain file" in refusal(lambda: read_bytes(tmp_path / "endless"))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a plain file" in refusal(lambda: read_bytes(tmp_path))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert refusal(lambda: read_bytes(tmp_path / "no")) == f"cannot read {tmp_path / 'no'}: No such file or directory"


def test_a_name_with_a_zero_byte_is_told() -> None:
    assert "cannot read" in refusal(lambda: read_bytes(Path("a\0b")))


def test_a_file_that_does_not_say_its_size_is_read_up_to_the_limit() -> None:
    assert Path("/proc/self/status").stat().st_size == 0
    assert "has more than the 10 bytes" in refusal(lambda: read_bytes(Path("/proc/self/status"), 10))


def test_text_that_is_not_utf_8_is_told_with_its_place(file: Path) -> None:
    file.write_bytes(b"ab\xff")
    assert "it is not UTF-8 (invalid start byte at byte 2)" in refusal(lambda: read_text(file))
    assert read_text(file, errors="replace") == "ab\ufffd"


def test_json_is_read(file: Path) -> None:
    file.write_text('{"a": [1, null]}')
    assert read_json(file) == {"a": [1, None]}


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65])
def test_json_of_many_levels_is_refused(text: str) -> None:
    assert "beyond 64 levels" in refusal(lambda: parse_json(text, "it"))


def test_json_of_64_levels_is_read() -> None:
    parse_json("[" * 64 + "]" * 64, "it")


@pytest.mark.parametrize("text", ["", "{", "1" * 5000, b"\xff\xfe", b'"\xff"'])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    assert "it is no sound JSON" in refusal(lambda: parse_json(text, "it"))


def test_toml_is_read(file: Path) -> None:
    file.write_text("[a]\nb = [1, 2]\n")
    assert read_toml(file) == {"a": {"b": [1, 2]}}


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "[" * 65 + "]" * 65, "a = " + "9" * 5000, "a = b", "a."]
)
def test_what_is_no_sound_toml_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    assert "is no sound TOML" in refusal(lambda: read_toml(file))


def test_a_small_file_may_not_become_a_vast_one() -> None:
    limit = 256 * 2**20
    check_unpacked(Path("f"), 10, limit, "")
    message = refusal(lambda: check_unpacked(Path("f"), 10, limit + 1, "save it anew"))
    assert "f has 10 bytes and unpacks to 268,435,457; wanted at most 268,435,456 or 100 times its size" in message
    assert message.endswith("save it anew")
    check_unpacked(Path("f"), 3_000_000, 300_000_000, "")


def test_no_file_may_become_more_than_the_free_memory() -> None:
    assert "does not fit into memory" in refusal(lambda: check_unpacked(Path("f"), 2**50, 2**50, ""))


# --- writing --------------------------------------------------------------------------------------------------------


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_no_link_that_lies_in_wait_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".report.html.partial").symlink_to(victim)
    (folder / "report.html").symlink_to(victim)
    write_text(folder / "report.html", "new")
    assert victim.read_text() == "mine"
    assert not (folder / "report.html").is_symlink()


def test_a_new_name_is_on_the_disk_before_the_write_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the file's bytes, then, once it has its name, the folder."""
    order, real, replaced = list[str](), os.fsync, Path.replace

    def fsync(handle: int) -> None:
        order.append("folder" if os.fstat(handle).st_ino == tmp_path.stat().st_ino else "file")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("name"), replaced(self, to))[1])
    write_text(tmp_path / "file", "text")
    assert order == ["file", "name", "folder"]


def test_a_file_for_its_owner_is_nobody_elses_from_its_first_byte_on(tmp_path: Path) -> None:
    with atomically(tmp_path / "file", 0o600) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_the_name_under_which_a_file_is_written_is_never_the_same(tmp_path: Path) -> None:
    seen = set()
    for _ in range(5):
        with atomically(tmp_path / "file"):
            seen |= names(tmp_path)
    assert len(seen - {"file"}) == 5


def test_a_line_is_not_added_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "lines").symlink_to(victim)
    assert "cannot write" in refusal(lambda: append_line(tmp_path / "lines", "more"))
    assert victim.read_text() == "mine\n"


def test_a_line_after_one_that_a_crash_cut_short_is_a_line_of_its_own(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"round": 1}\n{"rou')
    append_line(lines, '{"round": 2}')
    append_line(lines, "ü")
    assert lines.read_text().splitlines() == ['{"round": 1}', '{"rou', '{"round": 2}', "ü"]


def test_a_line_into_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lines")
    assert "cannot write" in refusal(lambda: append_line(tmp_path / "lines", "more"))


def test_what_a_killed_process_left_is_removed_by_the_next_write_but_not_what_a_live_one_writes(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from fedaws.files import atomically\n"
        f"with atomically(pathlib.Path({str(tmp_path / 'file')!r})):\n    print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (live,) = names(tmp_path)
        write_bytes(tmp_path / "file", b"new")
        assert names(tmp_path) == {live, "file"}
        other.send_signal(signal.SIGKILL)
    write_bytes(tmp_path / "file", b"new")
    assert names(tmp_path) == {"file"}


def test_what_another_machine_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    for name, age in ((".file.elsewhere-1-a.partial", 3700), (".file.elsewhere-1-b.partial", 3500)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    (tmp_path / f".file.{platform.node()}-²-a.partial").touch()  # a name that is not one of ours
    write_bytes(tmp_path / "file", b"new")
    assert ".file.elsewhere-1-a.partial" not in names(tmp_path)
    assert ".file.elsewhere-1-b.partial" in names(tmp_path)


def test_many_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    troubles = list[BaseException]()

    def write(number: int) -> None:
        try:
            for _ in range(20):
                write_bytes(tmp_path / "file", bytes([number]) * 1000)
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not troubles
    assert names(tmp_path) == {"file"}
    assert len(set((tmp_path / "file").read_bytes())) == 1


def test_holding_a_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    with only_writer(tmp_path / "run"):
        assert names(tmp_path / "run") == set()
