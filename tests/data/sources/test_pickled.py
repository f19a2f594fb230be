"""Pickles of arrays are read as `pickle` reads them; nothing else in them is, and nothing ever runs."""

import io
import os
import pickle
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedaws.data.sources.pickled import PickleError, read_pickle

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def reason(content: bytes) -> str:
    with pytest.raises(PickleError) as refused:
        read_pickle(content)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def by_python_2(pixels: NDArray[np.uint8], labels: list[int]) -> bytes:
    """The instructions that Python 2 wrote for a batch: strings are bytes, and the array's content is one of them."""
    rows, columns = pixels.shape
    content = pixels.tobytes()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("
        + b"".join(b"K" + bytes([label]) for label in labels)
        + b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        + b"(K\x01K" + bytes([rows]) + b"M" + struct.pack("<H", columns) + b"\x86"
        + b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<I", len(content)) + content + b"tbu."
    )  # fmt: skip


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


# --- what it reads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4"])
def test_an_array_comes_back_as_it_was(protocol: int, order: Any, dtype: str) -> None:
    array = np.array(PIXELS, dtype=dtype, order=order)
    read = read_pickle(pickle.dumps({"data": array, "labels": [1, 2**40, -3]}, protocol))
    np.testing.assert_array_equal(read[b"data"], array)
    assert read[b"data"].dtype == array.dtype
    assert read[b"labels"] == [1, 2**40, -3]


def test_bytes_and_text_are_the_same_as_keys() -> None:
    assert read_pickle(pickle.dumps({b"labels": [1]}, 2)) == read_pickle(pickle.dumps({"labels": [1]}, 2))


def test_a_pickle_of_python_2_is_read() -> None:
    content = by_python_2(PIXELS, [7, 8, 9])
    assert pickle.loads(content, encoding="bytes")[b"labels"] == [7, 8, 9]  # it is one
    read = read_pickle(content)
    np.testing.assert_array_equal(read[b"data"], PIXELS)
    assert read[b"labels"] == [7, 8, 9]
    assert read[b"batch_label"] == b"training batch 1 of 5"


def test_an_array_is_a_view_of_the_file() -> None:
    array = np.zeros(10**7, dtype=np.uint8)
    content = pickle.dumps({"data": array}, 4)
    tracemalloc.start()
    read_pickle(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**5


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1),
            lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner),
            max_leaves=20,
        ),
    ),
    st.sampled_from([2, 3, 4]),
)
def test_plain_containers_are_read_as_pickle_reads_them(content: dict[str, Any], protocol: int) -> None:
    assert read_pickle(pickle.dumps(content, protocol)) == {key.encode(): value for key, value in content.items()}


# --- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("how", ["os.system", "eval", "exec", "numpy"])
def test_code_in_a_pickle_does_not_run(tmp_path: Path, protocol: int, how: str) -> None:
    sentinel = tmp_path / "ran"
    calls = {
        "os.system": Call(os.system, f"touch {sentinel}"),
        "eval": Call(eval, f"open({str(sentinel)!r}, 'w').close()"),
        "exec": Call(exec, f"open({str(sentinel)!r}, 'w').close()"),
        "numpy": Call(np.save, str(sentinel), PIXELS),
    }
    content = pickle.dumps({"data": PIXELS, "labels": calls[how]}, protocol)
    reason(content)
    assert not list(tmp_path.iterdir())
    pickle.loads(content)
    assert list(tmp_path.iterdir())  # so it would have run


def test_the_name_that_is_asked_for_is_told() -> None:
    assert "asks for 'posix.system', which arrays do not need" in reason(pickle.dumps(Call(os.system, "true"), 2))
    assert "asks for 'numpy.zeros'" in reason(pickle.dumps(Call(np.zeros, 3), 4))


@pytest.mark.parametrize(
    "content",
    [
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nU\x09touch rano.",  # OBJ
        b"cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"cnumpy\nndarray\nK\x09\x85R.",  # the known names, called otherwise than an array's reader does
        b"cnumpy\ndtype\nU\x01O\x85R.",
        b"cnumpy\ndtype\nK\x09\x85R.",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nmatrix\nK\x00\x85U\x01b\x87R.",
        b"\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
        b"c_codecs\nencode\nU\x02abU\x06rot_13\x86R.",
        b"}}b.",  # attributes of a dict
        b"\x82\x01.",  # a registered extension
        b"P7\n.",
        b"K\x07Q.",
    ],
)
def test_every_other_way_to_an_object_is_refused(content: bytes) -> None:
    reason(content)


def test_a_subclass_of_array_is_refused() -> None:
    content = pickle.dumps({"data": PIXELS.view(np.recarray)}, 2)
    assert "recarray" in reason(content)


def test_a_persistent_object_is_refused() -> None:
    class Persistent(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return "outside" if obj == 7 else None

    file = io.BytesIO()
    Persistent(file, 2).dump({"data": 7})
    assert "BINPERSID" in reason(file.getvalue())


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
VAST = b"\x8a\x06\x00\x00\x00\x00\x00\x01"  # 2⁴⁰


@pytest.mark.parametrize(
    "content",
    [
        b"}U\x04data" + RECONSTRUCT + VAST + b"\x85U\x01b\x87Rs.",  # an array of a terabyte
        b"}U\x04data" + RECONSTRUCT + b"K\x00\x85U\x01b\x87R(K\x01" + VAST + b"\x85" + BYTES + b"\x89U\x01xtbs.",
        b"}r\xff\xff\xff\xff.",  # a memo that would be a list of 2³² places
        b"}U\x01xT\xff\xff\xff\xffabcs.",  # strings of gigabytes
        b"}U\x01x\x96\x00\x00\x00\x00\x01\x00\x00\x00abcs.",
        b"}" + BYTES + b"K\x07\x85R.",
        b"}X\x00\x00\x01\x00" + b"a" * 65536 + b"q\x01](" + b"c_codecs\nencode\nh\x01U\x06latin1\x86R" * 2000 + b"es.",
    ],
)
def test_no_pickle_takes_more_memory_than_its_size_suggests(content: bytes) -> None:
    tracemalloc.start()
    with suppress(PickleError):
        read_pickle(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize("content", [pickle.dumps({"data": PIXELS, "labels": [1, 2, 3]}, 4), by_python_2(PIXELS, [1])])
def test_a_pickle_cut_short_anywhere_is_refused(content: bytes) -> None:
    for length in range(len(content)):
        assert "breaks off" in reason(content[:length])


def test_anything_but_a_dict_is_refused() -> None:
    assert "does not hold a dict" in reason(pickle.dumps([1, 2], 2))


@given(st.integers(0, 1), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=20))
def test_a_damaged_pickle_is_refused_or_read_but_never_crashes(which: int, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray([pickle.dumps({"data": PIXELS, "labels": [1, 2]}, 2), by_python_2(PIXELS, [1])][which])
    for place, value in changes:
        damaged[place % len(damaged)] = value
    with suppress(PickleError):
        assert isinstance(read_pickle(bytes(damaged)), dict)


@given(st.binary(max_size=60))
def test_bytes_at_random_never_crash(content: bytes) -> None:
    with suppress(PickleError):
        read_pickle(content)
