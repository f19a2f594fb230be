"""Ways to damage bytes: by chance, and by what readers are known to stumble over."""

import random
import re
from collections.abc import Callable

Mutation = Callable[[random.Random, bytearray], bytearray]

_NUMBERS = [
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"1" * 30,
    b"9" * 5000,
    b"2147483648",
    b"9223372036854775808",
    b"0.1",
    b"true",
]
_TOKENS = [
    b"[" * 2000,
    b"(" * 500,
    b'{"a":' * 200,
    b"\0",
    b"\xff\xfe",
    b"\n" * 100,
    b"null",
    b'"',
    b"'''",
    b"=",
    b"../" * 9,
]
_INTEGERS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x100000000, 2**63 - 1, 2**64 - 1]


def flip_bits(rng: random.Random, content: bytearray) -> bytearray:
    for _ in range(rng.choice([1, 1, 2, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def set_bytes(rng: random.Random, content: bytearray) -> bytearray:
    for _ in range(rng.choice([1, 2, 5, 20])):
        content[rng.randrange(len(content))] = rng.choice([0, 1, 0x20, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return content


def cut(rng: random.Random, content: bytearray) -> bytearray:
    return content[: rng.randrange(len(content))]


def drop(rng: random.Random, content: bytearray) -> bytearray:
    start = rng.randrange(len(content))
    del content[start : start + rng.choice([1, 4, 50])]
    return content


def repeat(rng: random.Random, content: bytearray) -> bytearray:
    start = rng.randrange(len(content))
    part = content[start : start + rng.choice([1, 8, 100])]
    content[start:start] = part * rng.choice([1, 2, 300])
    return content


def insert_token(rng: random.Random, content: bytearray) -> bytearray:
    start = rng.randrange(len(content))
    content[start:start] = rng.choice(_TOKENS)
    return content


def change_number(rng: random.Random, content: bytearray) -> bytearray:
    """Another number in place of one that is written in digits."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", bytes(content[:100_000])))
    if found:
        place = rng.choice(found)
        content[place.start() : place.end()] = rng.choice(_NUMBERS)
    return content


def set_integer(rng: random.Random, content: bytearray) -> bytearray:
    """Another number in place of one that is written in bytes, of either order."""
    size = rng.choice([1, 2, 4, 8])
    start = rng.randrange(max(1, len(content) - size))
    value = rng.choice(_INTEGERS) & ((1 << 8 * size) - 1)
    content[start : start + size] = value.to_bytes(size, rng.choice(["little", "big"]))
    return content


def swap_words(rng: random.Random, content: bytearray) -> bytearray:
    """One word of a text in place of another."""
    words = list(re.finditer(rb"\w+", bytes(content[:100_000])))
    if len(words) > 1:
        a, b = rng.sample(words, 2)
        content[a.start() : a.end()] = b[0]
    return content


ALL: list[Mutation] = [
    flip_bits, set_bytes, cut, drop, repeat, insert_token, change_number, set_integer, swap_words
]  # fmt: skip


def mutated(rng: random.Random, content: bytes) -> bytes:
    """The bytes with one to four damages."""
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        damaged = rng.choice(ALL)(rng, damaged or bytearray(b"0"))
    return bytes(damaged)
