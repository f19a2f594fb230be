"""The text format of the Extreme Classification Repository, read as bytes in blocks.

    rows features labels          the header
    3,17 0:0.5 12:1.25            labels, then feature:value; a row may lack either (then it begins with a space)

Every byte that is no digit is a mark. What stands between two marks is told by these two alone, so a block is parsed by
a dozen passes over its marks, without a loop over rows or numbers. Of 63 MB like Amazon-670K's this takes 2.1 s,
scikit-learn's `load_svmlight_file` 9.0 s: 4.3 times as long (`benchmarks/xc_read.py`, two busy cores, best of three).
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaws.data.label_sets import Split
from fedaws.errors import FedawsError
from fedaws.files import LARGE, open_regular, reading
from fedaws.sparse import from_numpy

Ints = NDArray[np.int32]
Starts = NDArray[np.int64]

BLOCK = 1 << 20  # bytes: what the passes over a block leave for each other stays in the cache
_PAD = b"0" * 16  # before a block, so that the eight bytes before any place are there
_MOST = 99_999_999  # ids of more than eight digits are not read
_MANY = 10_000_000  # features or labels that any file may claim
_LONGEST = 1 << 24  # bytes of a line

_NEWLINE, _SPACE, _COMMA, _COLON, _DOT, _OTHER = range(6)
_KIND = np.full(256, _OTHER, dtype=np.uint8)
_KIND[list(b"\n ,:.")] = [_NEWLINE, _SPACE, _COMMA, _COLON, _DOT]
_KIND[list(b"\t\r")] = _SPACE

# What stands between two marks, by their kinds.
_BAD, _BLANK, _FIRST, _LABEL, _ID, _WHOLE, _INTEGER, _FRACTION = range(8)
_BETWEEN = np.full((6, 6), _BAD, dtype=np.uint8)
for _left, _right, _what in (
    (_NEWLINE, _NEWLINE, _FIRST),  # a label, or nothing
    (_NEWLINE, _SPACE, _FIRST),
    (_NEWLINE, _COMMA, _LABEL),
    (_COMMA, _COMMA, _LABEL),
    (_COMMA, _SPACE, _LABEL),
    (_COMMA, _NEWLINE, _LABEL),
    (_NEWLINE, _COLON, _ID),
    (_SPACE, _COLON, _ID),
    (_COLON, _SPACE, _WHOLE),
    (_COLON, _NEWLINE, _WHOLE),
    (_COLON, _DOT, _INTEGER),
    (_DOT, _SPACE, _FRACTION),
    (_DOT, _NEWLINE, _FRACTION),
    (_SPACE, _SPACE, _BLANK),
    (_SPACE, _NEWLINE, _BLANK),
):
    _BETWEEN[_left, _right] = _what

# A number in another notation, such as 1e-05: has a byte that is neither digit nor mark.
_ODD = re.compile(rb"(?<=:)[^\s,:]*[^\s,:.\d][^\s,:]*")


class Header(NamedTuple):
    """The first line of a file."""

    rows: int
    features: int
    labels: int


class _Part(NamedTuple):
    features: Ints
    values: NDArray[np.float32]
    features_per_row: Starts
    labels: Ints
    labels_per_row: Starts


def read_text(path: Path) -> Split:
    """All of a file, checked; a bad row is told with its line number."""
    with open_regular(path, LARGE) as file, reading(path):
        header = _header(path, file.readline(200))
        parts = list[_Part]()
        rows = 0
        for block in _blocks(path, file):
            parts.append(_parse(path, block, rows + 2, header))
            rows += len(parts[-1].labels_per_row)
            if rows > header.rows:
                break
    if rows != header.rows:
        more = " and more" if rows > header.rows else ""
        raise FedawsError(
            f"{path}: its first line says {header.rows:,} rows, but {rows:,}{more} follow; "
            "it was cut short or is not whole: get it anew"
        )
    features, values, per_row, labels, labels_per_row = map(np.concatenate, zip(*parts, strict=True))
    return Split(
        from_numpy(features, values, _starts(per_row), header.features),
        from_numpy(labels, None, _starts(labels_per_row), header.labels),
    )


def _starts(counts: Starts) -> Starts:
    return np.concatenate([np.zeros(1, np.int64), counts.cumsum(dtype=np.int64)])


def read_header(path: Path) -> Header:
    """How many rows, features and labels a file says it has."""
    with open_regular(path, LARGE) as file, reading(path):
        return _header(path, file.readline(200))


def _header(path: Path, line: bytes) -> Header:
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() and len(word) < 10 for word in words):
        shown = line[:60].decode("ascii", "replace").strip()
        raise FedawsError(f"{path}, line 1: got {shown!r}; wanted three numbers: rows, features, labels")
    header = Header(*map(int, words))
    most = widest(path.stat().st_size)
    if not all(header) or max(header.features, header.labels) > most:
        raise FedawsError(
            f"{path}, line 1: got {header.rows} rows, {header.features} features, {header.labels} labels; wanted some "
            f"of each, and at most {most:,} features and labels in a file of this size"
        )
    return header


def widest(size: int) -> int:
    """The features or labels that a file of so many bytes may claim: ten million, or as many.

    Memory is taken for every one of them, whether or not it occurs.
    """
    return min(_MOST, max(_MANY, size))


def _blocks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about so many bytes at a time; the last one gets its end if it has none."""
    rest = b""
    while piece := file.read(BLOCK):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
            if len(rest) > _LONGEST:
                raise FedawsError(f"{path}: a line of more than {_LONGEST:,} bytes; wanted a row on each line")
    if rest:
        yield rest + b"\n"


def _parse(path: Path, block: bytes, first_line: int, header: Header) -> _Part:
    """The rows of a block of whole lines."""
    data = np.frombuffer(_PAD + block, dtype=np.uint8)
    marks = np.flatnonzero((data - 48) > 9)  # wraps around below "0"
    kinds = _KIND[data[marks]]
    if (kinds == _OTHER).any():
        plain = _ODD.sub(_plain, block)
        if plain != block:
            return _parse(path, plain, first_line, header)
    left = np.concatenate([np.zeros(1, np.uint8), kinds[:-1]])  # a block begins after a newline
    begins = np.concatenate([[len(_PAD)], marks[:-1] + 1])
    lengths = marks - begins
    what = _BETWEEN.ravel()[left * np.uint8(6) + kinds]
    wrong = (what == _BAD) | ((what == _BLANK) != (lengths == 0)) & (what != _FIRST) & (what < _INTEGER)
    integers = np.flatnonzero(what == _INTEGER)  # each is followed by its fraction, as a dot stands nowhere else
    wrong[integers] |= lengths[integers] + lengths[np.minimum(integers + 1, len(lengths) - 1)] == 0
    if wrong.any():
        raise _refusal(path, block, first_line, int(marks[wrong.argmax()]) - len(_PAD))
    words = np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,))  # the eight bytes from any place on

    def ids(chosen: NDArray[np.int64], limit: int, name: str) -> Ints:
        numbers = _digits(words, marks[chosen], lengths[chosen])
        beyond = (numbers >= limit) | (lengths[chosen] > 8)
        if beyond.any():
            at = int(marks[chosen[beyond.argmax()]]) - len(_PAD)
            raise _refusal(path, block, first_line, at, f"wanted a {name} from 0 to {limit - 1}")
        return numbers.astype(np.int32)

    labels = np.flatnonzero((what == _LABEL) | ((what == _FIRST) & (lengths > 0)))
    features = np.flatnonzero(what == _ID)
    line_ends = np.flatnonzero(kinds == _NEWLINE)
    values = _values(words, marks, lengths, features + 1, what)
    if not np.isfinite(values).all():
        at = int(marks[features[np.isfinite(values).argmin()] + 1]) - len(_PAD)
        raise _refusal(path, block, first_line, at, "wanted a smaller value")
    return _Part(
        ids(features, header.features, "feature"),
        values,
        _per_row(features, line_ends),
        ids(labels, header.labels, "label"),
        _per_row(labels, line_ends),
    )


def _per_row(chosen: NDArray[np.int64], line_ends: NDArray[np.int64]) -> Starts:
    """How many of the chosen marks are in each row."""
    return np.diff(np.searchsorted(chosen, line_ends, side="right"), prepend=0)


def _digits(words: NDArray[np.uint64], ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The numbers that end before these places, of up to eight digits: pairs, fours and eights of digits at once."""
    # Little-endian: the last digit is the highest byte. What stands before the number is shifted out.
    drop = np.minimum(np.maximum(64 - 8 * lengths, 0), 63).astype(np.uint64)
    word = (words[ends - 8] >> drop << drop) & np.uint64(0x0F0F0F0F0F0F0F0F)
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (word * np.uint64(10_000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


_POWERS = 10.0 ** np.arange(17)


def _values(
    words: NDArray[np.uint64],
    marks: NDArray[np.int64],
    lengths: NDArray[np.int64],
    chosen: NDArray[np.int64],
    what: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """The numbers at these places: digits, and for those before a dot the digits after it."""
    values = _long(words, marks[chosen], lengths[chosen])
    dotted = np.flatnonzero(what[chosen] == _INTEGER)
    if len(dotted):
        after = chosen[dotted] + 1
        digits = np.minimum(lengths[after], 16)  # more do not show in a float
        fraction = _long(words, marks[after] - lengths[after] + digits, digits)
        values[dotted] = (values[dotted] * _POWERS[digits] + fraction) / _POWERS[digits]
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _long(words: NDArray[np.uint64], ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers of up to 16 digits; infinite beyond."""
    numbers = _digits(words, ends, lengths).astype(np.float64)
    long = np.flatnonzero(lengths > 8)
    if len(long):
        numbers[long] += 1e8 * _digits(words, ends[long] - 8, lengths[long] - 8)
        numbers[lengths > 16] = np.inf
    return numbers


def _plain(odd: re.Match[bytes]) -> bytes:
    """The same number in digits; whatever is none, or below zero, stays as it is and is refused."""
    try:
        number = float(odd[0])
    except ValueError:
        return odd[0]
    return b"%.16f" % number if 0 <= number < 1e16 and b"_" not in odd[0] else odd[0]


def _refusal(path: Path, block: bytes, first_line: int, mark: int, wanted: str | None = None) -> FedawsError:
    """What is wrong around a mark, with its line."""
    line = first_line + block.count(b"\n", 0, mark)
    start = block.rfind(b"\n", 0, mark) + 1
    end = block.find(b"\n", mark)
    text = block[start:end]
    word_start = max(text.rfind(b" ", 0, mark - start), text.rfind(b"\t", 0, mark - start)) + 1
    word = (text[word_start:].split() or [b""])[0][:40].decode("ascii", "replace")
    return FedawsError(f"{path}, line {line}: got {word!r}; {wanted or _wanted(word)}")


def _wanted(word: str) -> str:
    with suppress(ValueError):
        if not 0 <= float(word.partition(":")[2]) < float("inf"):
            return "wanted finite values, not below 0"
    return "wanted labels such as 3,17, then feature:value pairs such as 12:0.5, in digits"
