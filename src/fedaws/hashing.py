"""Random numbers without a state: the same (seed, client, epoch, …) gives the same number on every machine.

A client draws its batches from these, so a simulated client and a real one pick the same examples, and a resumed run
needs no saved generator.
"""

from typing import Final, Literal, get_args

import torch
from torch import Tensor

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_A: Final = 0xBF58476D1CE4E5B9
_MIX_B: Final = 0x94D049BB133111EB


Word = Literal[
    "audit",
    "augment",
    "batches",
    "class embeddings",
    "class features",
    "clients",
    "features",
    "joining",
    "newcomer",
    "one label",
    "round",
    "strangers",
    "synthetic",
    "validation",
    "xctest",
    "xctrain",
]
"""What the numbers are for. None begins another, so that (seed, word, numbers) has only one reading."""
_WORDS: Final = frozenset(get_args(Word))


def hash64(seed: int, word: Word, *numbers: int) -> int:
    """A 63-bit hash (splitmix64 over seed, letters and numbers), for seeding generators.

    >>> hash64(1, "batches") == hash64(1, "batches") != hash64(2, "batches")
    True
    """
    if word not in _WORDS:
        raise ValueError(f"hash64: got the word {word!r}; add it to Word, or use one of {', '.join(sorted(_WORDS))}")
    return fold(seed, *word.encode(), *numbers)


def fold(*numbers: int) -> int:
    """A 63-bit hash of numbers, each taken modulo 2⁶⁴."""
    state = 0
    for number in numbers:
        state = _mix((state ^ number & _MASK) + _GOLDEN & _MASK)
    return state >> 1


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * _MIX_A & _MASK
    z = (z ^ z >> 27) * _MIX_B & _MASK
    return z ^ z >> 31


def hash_tensor(key: int, *parts: Tensor) -> Tensor:
    """Non-negative 40-bit hashes, elementwise over broadcast int64 tensors."""
    state = torch.tensor(key, dtype=torch.int64)
    for part in parts:
        state = _mix_tensor((state ^ part) + _signed(_GOLDEN))
    return _shift(state, 24)


def _mix_tensor(z: Tensor) -> Tensor:  # int64 wraps around as uint64 does; only the shift needs its sign bits masked
    z = (z ^ _shift(z, 30)) * _signed(_MIX_A)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_B)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
