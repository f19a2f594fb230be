"""No damaged or hostile gallery gives a traceback, and none loses anybody: a value, or one clear line.

`make slow` tries 20,000; the seed is fixed, so that a failure comes again.
"""

import hashlib
import json
import random
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedaws.device import DeviceError, Gallery
from fuzz.mutations import mutated

DIGEST = "a" * 64
VALUES: list[Any] = [
    None, True, "", "x" * 300, -1, 0, 1, 2**70, 1e400, float("nan"), -0.5, 2.0, [], [[]], {}, "\ud800", "Bo", "a\nb"
]  # fmt: skip


def sound(folder: Path) -> bytes:
    gallery = Gallery(folder / "people", DIGEST, 4)
    for i, name in enumerate(("Ada", "Bo", "李雷")):
        gallery.enroll(name, np.eye(4)[[i]] + 0.1, threshold=0.5 if i else None)
    return (folder / "people").read_bytes()


def header_damaged(rng: random.Random, content: bytes) -> bytes:
    """The header damaged and its length put right."""
    (length,) = struct.unpack("<Q", content[:8])
    header = mutated(rng, content[8 : 8 + length])
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def checksum_right(rng: random.Random, content: bytes) -> bytes:
    """Facts or vectors changed by somebody who knows how they are checked."""
    (length,) = struct.unpack("<Q", content[:8])
    facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
    vectors = load(content)["vectors"].copy()
    match rng.randrange(6):
        case 0:
            vectors[rng.randrange(3), rng.randrange(4)] = rng.choice([float("nan"), float("inf"), 3e38, 0.0, 7.0])
        case 1:
            vectors = vectors[: rng.randrange(4)]
        case 2:
            vectors = vectors.astype(rng.choice(["<f8", "<f2", "<i4", "|u1"]))
        case 3:
            facts[rng.choice(["digest", "dim", "people"])] = rng.choice(VALUES)
        case 4:
            facts["people"][rng.randrange(3)] = rng.choice(VALUES)
        case _:
            facts["people"][rng.randrange(3)][rng.randrange(6)] = rng.choice(VALUES)
    text = json.dumps(facts)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checksum = hashlib.sha256(text.encode() + vectors.astype("<f4").tobytes()).hexdigest()
    return save(
        {"vectors": np.ascontiguousarray(vectors)}, {"format": "fedaws-gallery-1", "facts": text, "sha256": checksum}
    )


def attempt(path: Path, content: bytes) -> bool:
    """Whether it was read; refused, in one line, its bytes are as they were."""
    path.write_bytes(content)
    try:
        gallery = Gallery(path, DIGEST, 4)
        gallery.identify(np.ones(4), threshold=0.5)
        gallery.enroll("Eve", [[1.0, 2.0, 3.0, 4.0]])
        return True
    except DeviceError as error:
        told = str(error)
    assert told.isprintable()
    assert len(told) < 1000
    assert path.read_bytes() == content
    return False


def tried(folder: Path, cases: int) -> int:
    content = sound(folder)
    read = 0
    for case in range(cases):
        rng = random.Random(f"gallery {case}")
        damage = rng.choice([mutated, header_damaged, checksum_right])
        read += attempt(folder / "people", damage(rng, content))
    assert list(folder.iterdir()) == [folder / "people"]
    return read


def test_hundreds_of_damaged_galleries_are_refused_in_one_line(tmp_path: Path) -> None:
    assert tried(tmp_path, 600) < 200  # what is read was changed by who knows the checksum, and makes sense


@pytest.mark.slow
def test_thousands_of_damaged_galleries_are_refused_in_one_line(tmp_path: Path) -> None:
    tried(tmp_path, 20_000)


def test_any_single_flipped_bit_is_seen(tmp_path: Path) -> None:
    content = sound(tmp_path)
    (length,) = struct.unpack("<Q", content[:8])
    for place in range(8 + length, len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        assert not attempt(tmp_path / "people", bytes(flipped))
