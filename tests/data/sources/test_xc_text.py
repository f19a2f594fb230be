"""The reader of the XC repository's text format, against plain Python."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaws.data.label_sets import Split
from fedaws.data.sources import xc_text
from fedaws.data.sources.xc_text import read_text
from helpers import refusal

Row = tuple[list[int], list[tuple[int, float]]]


def by_a_loop(text: str) -> list[Row]:
    """The rows, by splitting strings."""
    rows: list[Row] = []
    for line in text.split("\n")[1:-1]:
        words = line.split(" ")
        labels = [int(label) for label in words[0].split(",")] if words[0] and ":" not in words[0] else []
        pairs = [word.split(":") for word in words if ":" in word]
        rows.append((labels, [(int(f), float(np.float32(v))) for f, v in pairs]))
    return rows


def rows_of(read: Split) -> list[Row]:
    rows: list[Row] = []
    for x, labels in zip(read.x.split(1), read.labels.split(1), strict=True):
        assert x.values is not None
        pairs = list(zip(x.indices.tolist(), x.values.tolist(), strict=True))
        rows.append((labels.indices.tolist(), pairs))
    return rows


def write(folder: Path, body: str, header: str | None = None) -> Path:
    path = folder / "train.txt"
    path.write_bytes(f"{header or f'{body.count(chr(10))} 100 50'}\n{body}".encode())
    return path


VALUES = ["1", "0", "0.4360", "12.5", ".5", "3.", "0.1234567890123456789", "123456789.25", "1e-05", "2.5E+3", "+0.5"]
VALUE = st.one_of(st.sampled_from(VALUES), st.floats(0, 1e6, width=32).map(repr))
LINE = st.tuples(
    st.lists(st.integers(0, 49), max_size=4).map(lambda labels: ",".join(map(str, labels))),
    st.lists(st.tuples(st.integers(0, 99), VALUE).map(lambda pair: f"{pair[0]}:{pair[1]}"), max_size=5),
).map(lambda parts: " ".join([parts[0], *parts[1]]))


@given(st.lists(LINE, min_size=1, max_size=12), st.sampled_from([16, 64, 1 << 20]))
def test_the_rows_are_those_of_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block: int
) -> None:
    path = write(tmp_path_factory.mktemp("xc"), "".join(f"{line}\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xc_text, "BLOCK", block)
        read = read_text(path)
    assert (read.x.width, read.labels.width) == (100, 50)
    expected = by_a_loop(path.read_text())
    for got, want in zip(rows_of(read), expected, strict=True):
        assert got[0] == want[0]
        assert [f for f, _ in got[1]] == [f for f, _ in want[1]]
        assert [v for _, v in got[1]] == pytest.approx([v for _, v in want[1]], rel=1.3e-7)  # the last bit of a float


def test_rows_without_labels_features_or_both_are_rows(tmp_path: Path) -> None:
    path = write(tmp_path, " 3:1 4:2\n7,8\n\n \n9 \n5:1\n")
    pairs = [[(3, 1.0), (4, 2.0)], [], [], [], [], [(5, 1.0)]]
    assert rows_of(read_text(path)) == list(zip([[], [7, 8], [], [], [9], []], pairs, strict=True))


def test_line_ends_of_windows_tabs_and_a_missing_last_one_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, "1 2:3\r\n4\t5:6  7:8\r\n9 1:1", header="3 100 50\r")
    assert rows_of(read_text(path)) == [([1], [(2, 3.0)]), ([4], [(5, 6.0), (7, 8.0)]), ([9], [(1, 1.0)])]


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        ("1 100:1", "100:1", "wanted a feature from 0 to 99"),
        ("1,50 3:1", "1,50", "wanted a label from 0 to 49"),
        ("123456789012 3:1", "123456789012", "wanted a label from 0 to 49"),
        ("1 3:-0.5", "3:-0.5", "wanted finite values, not below 0"),
        ("1 3:nan", "3:nan", "wanted finite values, not below 0"),
        ("1 3:inf", "3:inf", "wanted finite values, not below 0"),
        ("1 3:1e400", "3:1e400", "wanted finite values, not below 0"),
        ("1 3:1e39", "3:1e39", "in digits"),
        ("1 3:99999999999999999999", "3:99999999999999999999", "wanted a smaller value"),
        ("-1 3:1", "-1", "wanted labels such as 3,17"),
        ("1 -3:1", "-3:1", "wanted labels such as 3,17"),
        ("1.5 3:1", "1.5", "wanted labels such as 3,17"),
        ("1 3.5:1", "3.5:1", "wanted labels such as 3,17"),
        ("1 3:1.2.3", "3:1.2.3", "wanted labels such as 3,17"),
        ("1 3:", "3:", "wanted labels such as 3,17"),
        ("1 3:.", "3:.", "wanted labels such as 3,17"),
        ("1 :5", ":5", "wanted labels such as 3,17"),
        ("1 3:4:5", "3:4:5", "wanted labels such as 3,17"),
        ("1 3:4,5", "3:4,5", "wanted labels such as 3,17"),
        ("1,,2 3:4", "1,,2", "wanted labels such as 3,17"),
        (",1 3:4", ",1", "wanted labels such as 3,17"),
        ("1, 3:4", "1,", "wanted labels such as 3,17"),
        ("1 2 3:4", "2", "wanted labels such as 3,17"),
        ("1 3:4 5", "5", "wanted labels such as 3,17"),
        ("1 3:four", "3:four", "wanted labels such as 3,17"),
        ("1 3:1_0", "3:1_0", "wanted labels such as 3,17"),
        ("1 3:0x1", "3:0x1", "wanted labels such as 3,17"),
        ("eins 3:1", "eins", "wanted labels such as 3,17"),
        ("1 3:1\x00", "3:1\x00", "wanted labels such as 3,17"),
    ],
)
@pytest.mark.parametrize("block", [8, 1 << 20])
def test_a_bad_row_is_told_with_file_line_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, place: str, reason: str, block: int
) -> None:
    monkeypatch.setattr(xc_text, "BLOCK", block)
    path = write(tmp_path, f"1 2:0.5\n2,3 4:1 5:2\n{line}\n4 4:4\n")
    message = refusal(lambda: read_text(path))
    assert message.startswith(f"{path}, line 4: got {place!r}; ")
    assert reason in message


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "wanted three numbers"),
        ("3 4", "wanted three numbers"),
        ("3 4 x", "wanted three numbers"),
        ("3 -4 5", "wanted three numbers"),
        ("0 4 5", "wanted some of each"),
        ("3 0 5", "wanted some of each"),
        ("1,2 3:4", "wanted three numbers"),
        ("3 400000000 5", "at most 10,000,000"),
    ],
)
def test_a_bad_first_line_is_refused(tmp_path: Path, header: str, reason: str) -> None:
    path = tmp_path / "train.txt"
    path.write_text(f"{header}\n1 2:3\n")
    message = refusal(lambda: read_text(path))
    assert "line 1" in message
    assert reason in message


@pytest.mark.parametrize(
    ("rows", "said"), [(1, "says 1 rows, but 2 and more follow"), (3, "says 3 rows, but 2 follow")]
)
def test_more_or_fewer_rows_than_the_header_says_are_refused(tmp_path: Path, rows: int, said: str) -> None:
    assert said in refusal(lambda: read_text(write(tmp_path, "1 2:3\n4 5:6\n", f"{rows} 100 50")))


def test_a_tiny_file_may_not_claim_features_by_the_hundred_million(tmp_path: Path) -> None:
    message = refusal(lambda: read_text(write(tmp_path, "1 2:3\n", "1 99999999 99999999")))
    assert "at most 10,000,000 features and labels in a file of this size" in message


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "1" * (1 << 25), "1 5 5")
    assert "a line of more than 16,777,216 bytes" in refusal(lambda: read_text(path))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a plain file" in refusal(lambda: read_text(tmp_path / "pipe"))


def test_bytes_at_random_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    alphabet = np.frombuffer(b"0123456789 ,:.\n\r\t-e\xffx", dtype=np.uint8)
    for i in range(300):
        body = rng.choice(alphabet[: rng.integers(11, len(alphabet) + 1)], size=rng.integers(1, 60)).tobytes()
        path = tmp_path / f"{i}.txt"
        path.write_bytes(b"%d 100 50\n" % max(1, body.count(b"\n") + (not body.endswith(b"\n"))) + body)
        try:
            read = read_text(path)
        except Exception:
            assert str(path) in refusal(partial(read_text, path))
        else:
            assert (read.x.indices < 100).all()
            assert (read.labels.indices < 50).all()


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    assert "cannot read" in refusal(lambda: read_text(tmp_path / "none.txt"))
