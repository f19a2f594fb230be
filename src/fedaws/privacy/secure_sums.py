r"""A sum that the server can read, of numbers that it cannot.

Each node i of a cohort has a vector x_i of fixed-point numbers modulo 2³² and sends

.. math:: y_i = x_i + \mathrm{PRG}(b_i) + \sum_{j > i} \mathrm{PRG}(s_{ij}) - \sum_{j < i} \mathrm{PRG}(s_{ij})

(Bonawitz et al., CCS 2017). In the sum of all y the pair masks cancel. s_ij is known to i and j alone: X25519 of
long-term keys that were exchanged beforehand, then HKDF bound to everything that the nodes must agree on (`Round`). The
self mask b_i is i's own. Beside y_i goes, to every node k of the cohort and readable by k alone, a Shamir share of b_i
and of each s_ij. Of those whose y arrived, the survivors, the server then needs the b_i, and the s_ij with those whose
y did not: any `threshold` nodes can give it their shares of these, and of nothing else.

Without self masks (`double=False`) a sum in which nobody is missing needs no second trip. No protocol can have that and
hide a node whose answer comes late, or that the server falsely reports missing: the answers of all give it the sum of
all, the second trip that of all but one, and the difference is that one.

A node may add a second vector z_i, of which only the sum over the *whole* cohort may ever be known. Its masks are
others, from the same secrets; those of its pairs are shared with nobody, so that nothing can lift them where one of the
cohort is missing.
"""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedaws.errors import FedawsError

Numbers = NDArray[np.uint32]
Keys = Mapping[str, bytes]
"""X25519 public keys by the nodes' names, 32 bytes each."""

_SEED = 16  # bytes of a mask's seed
_PRIME = 2**130 - 5  # of the shares' field; a seed fits below it
_SHARE = 17  # bytes of a share
_SLOT = 35  # bytes for a sum of 2²⁰ products of two shares
_NONCE = 12  # bytes


# --- fixed-point numbers --------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A part of the vector: an array of this shape, of numbers from −bound to bound."""

    name: str
    shape: tuple[int, ...]
    bound: float

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Layout = Sequence[Entry]
"""The vector's parts, in order."""


def step(bound: float, clients: int) -> float:
    """The distance of two neighbouring fixed-point numbers: as many as so many clients' sum has room for in 32 bits.

    >>> step(1.0, 2) == 1 / (2**30 - 1)
    True
    """
    return bound / ((2**31 - 1) // clients)


def encode(values: Mapping[str, NDArray[np.floating]], layout: Layout, clients: int) -> Numbers:
    r"""One vector of all values, each clipped to its bound and rounded to its step: q = round(x / step) mod 2³².

    >>> encode({"x": np.array([1.0, -1.0, 9.0])}, [Entry("x", (3,), 1.0)], clients=2)
    array([1073741823, 3221225473, 1073741823], dtype=uint32)
    """
    parts = []
    for entry in layout:
        x = np.asarray(values[entry.name], np.float64)
        if x.shape != entry.shape or not np.isfinite(x).all():
            raise FedawsError(
                f"{entry.name} to be added up has shape {x.shape} or is not finite; wanted finite {entry.shape}"
            )
        clipped = np.clip(x.ravel(), -entry.bound, entry.bound)
        parts.append(np.rint(clipped / step(entry.bound, clients)).astype(np.int32))
    return np.concatenate(parts).view(np.uint32)


def decode(total: Numbers, layout: Layout, clients: int) -> dict[str, NDArray[np.float64]]:
    """The sums of so many clients' values; each is off by at most half a step a client.

    >>> layout = [Entry("x", (2,), 1.0)]
    >>> x = encode({"x": np.array([0.5, -1.0])}, layout, clients=2)
    >>> decode(x + x, layout, clients=2)["x"].round(6)
    array([ 1., -2.])
    """
    signed, at, found = total.view(np.int32).astype(np.float64), 0, {}
    for entry in layout:
        part = signed[at : at + entry.size].reshape(entry.shape)
        found[entry.name] = part * step(entry.bound, clients)
        at += entry.size
    return found


def length(layout: Layout) -> int:
    """How many numbers the vector has."""
    return sum(entry.size for entry in layout)


# --- what all agree on ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """What all nodes of one sum must have alike; whoever was told anything else has other masks."""

    run: str
    number: int  # never used twice
    cohort: tuple[str, ...]  # sorted names
    threshold: int  # nodes that must agree to open a sum
    double: bool  # masks of its own for each node, and so always a second trip
    told: bytes  # a digest of all else that the nodes were sent alike, θ first of all
    point: bytes = b""  # a digest of where it is asked, θ and the round: two sums there could differ by one node
    settings: bytes = b""  # a digest of how the nodes are to train

    def __post_init__(self) -> None:
        count = len(self.cohort)
        if list(self.cohort) != sorted(set(self.cohort)):
            raise FedawsError(f"a cohort of {count} names that are not sorted or not unlike each other; sort them")
        if not count < 2 * self.threshold <= 2 * count:  # below, a server could have two halves open different sums
            raise FedawsError(
                f"threshold={self.threshold} of a cohort of {count}; wanted more than half of it and at most all"
            )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of it all."""
        head = [self.run, str(self.number), str(self.threshold), str(self.double)]
        told = [part.hex() for part in (self.told, self.point, self.settings)]
        return joint_digest(text.encode() for text in (*head, *told, *self.cohort))

    def others(self, name: str) -> Iterator[str]:
        return (other for other in self.cohort if other != name)


def joint_digest(parts: Iterable[bytes]) -> bytes:
    """SHA-256 of several parts, of which none can lend bytes to its neighbour."""
    joint = hashlib.sha256()
    for part in parts:
        joint.update(len(part).to_bytes(8, "big"))
        joint.update(part)
    return joint.digest()


# --- keys and masks -------------------------------------------------------------------------------------------------


def _derived(secret: bytes, size: int, *info: bytes) -> bytes:
    return HKDF(SHA256(), size, salt=None, info=joint_digest([b"fedaws secure sums 1", *info])).derive(secret)


def _shared_secret(own: X25519PrivateKey, name: str, peers: Keys) -> bytes:
    return own.exchange(X25519PublicKey.from_public_bytes(peers[name]))


def _pair_seed(secret: bytes, about: Round, one: str, other: str, use: bytes = b"mask") -> bytes:
    return _derived(secret, _SEED, use, about.digest, *sorted([one.encode(), other.encode()]))


def _whole_seed(own_seed: bytes) -> bytes:
    """Of a node's self mask of its second vector, from that of its first."""
    return _derived(own_seed, _SEED, b"whole")


def _letter_key(secret: bytes, about: bytes, sender: str, receiver: str) -> ChaCha20Poly1305:
    """Of the shares from one node to another, in this round and direction alone."""
    return ChaCha20Poly1305(_derived(secret, 32, b"shares", about, sender.encode(), receiver.encode()))


def _add_mask(total: Numbers, seed: bytes, sign: int) -> None:
    """total ± PRG(seed), in place: ChaCha20's key stream as little-endian numbers."""
    cipher = Cipher(algorithms.ChaCha20(_derived(seed, 32, b"stream"), bytes(16)), mode=None).encryptor()
    stream = np.frombuffer(cipher.update(_zeros(total.nbytes)), "<u4")
    (np.add if sign > 0 else np.subtract)(total, stream, out=total)


@lru_cache(maxsize=1)
def _zeros(size: int) -> bytes:
    return bytes(size)


def _sign(one: str, other: str) -> int:
    """Of their pair's mask in the vector of the one."""
    return 1 if one < other else -1


# --- shares ---------------------------------------------------------------------------------------------------------


def split(secrets: Sequence[bytes], threshold: int, count: int) -> list[list[int]]:
    r"""Shamir's shares 1 … count of each secret: values of a random polynomial whose constant is the secret.

    .. math:: f(k) = \text{secret} + \sum_{e=1}^{t-1} a_e k^e \bmod p

    Any `threshold` of them tell the secret, fewer tell nothing. All secrets' polynomials are evaluated at once, each in
    a slot of its own of large integers.
    """
    first = _packed(int.from_bytes(secret, "big") for secret in secrets)
    coefficients = [first, *(_packed(_random_elements(len(secrets))) for _ in range(threshold - 1))]
    return [_unpacked(sum(map(mul, coefficients, _powers(k, threshold))), len(secrets)) for k in range(1, count + 1)]


def _random_elements(count: int) -> Iterator[int]:
    """Of the field; 32 random bytes modulo a prime of 130 bits are uniform but for 2⁻¹²⁶."""
    drawn = os.urandom(32 * count)
    return (int.from_bytes(drawn[at : at + 32], "big") % _PRIME for at in range(0, len(drawn), 32))


def _packed(values: Iterable[int]) -> int:
    return int.from_bytes(b"".join(value.to_bytes(_SLOT, "little") for value in values), "little")


def _unpacked(packed: int, count: int) -> list[int]:
    content = packed.to_bytes(_SLOT * count, "little")
    return [int.from_bytes(content[at : at + _SLOT], "little") % _PRIME for at in range(0, len(content), _SLOT)]


def join(shares: Mapping[int, int]) -> bytes:
    """The secret from shares by their numbers, by Lagrange's interpolation at 0.

    >>> secret = bytes(range(16))
    >>> shares = split([secret], threshold=2, count=3)
    >>> join({1: shares[0][0], 3: shares[2][0]}) == secret
    True
    """
    weights = _weights_at_zero(tuple(shares))
    value: int = sum(map(mul, weights, shares.values())) % _PRIME
    if value >= 1 << 8 * _SEED:
        raise FedawsError("shares of a mask do not belong together; a node has sent wrong ones")
    return value.to_bytes(_SEED, "big")


@lru_cache(maxsize=4096)
def _powers(k: int, count: int) -> list[int]:
    powers = [1]
    while len(powers) < count:
        powers.append(powers[-1] * k % _PRIME)
    return powers


@lru_cache(maxsize=16)
def _weights_at_zero(places: tuple[int, ...]) -> list[int]:
    def weight(k: int) -> int:
        others = [j for j in places if j != k]
        return math.prod(others) * pow(math.prod(j - k for j in others), -1, _PRIME) % _PRIME

    return [weight(k) for k in places]


# --- a node ---------------------------------------------------------------------------------------------------------


class Masked(NamedTuple):
    """What a node sends in the first trip."""

    vector: Numbers
    letters: dict[str, bytes]  # its shares for each node of the cohort, itself too, for nobody else's eyes
    whole: Numbers | None = None  # a second vector, whose sum over the whole cohort alone can be known


def mask(
    x: Numbers, about: Round, name: str, own: X25519PrivateKey, peers: Keys, whole: Numbers | None = None
) -> Masked:
    """The node's vectors behind their masks, and the shares with which others can lift those of the first."""
    secrets = {other: _shared_secret(own, other, peers) for other in about.cohort}
    seeds = {other: _pair_seed(secrets[other], about, name, other) for other in about.others(name)}
    masked = x.copy()
    for other, seed in seeds.items():
        _add_mask(masked, seed, _sign(name, other))
    if about.double:
        seeds[name] = os.urandom(_SEED)
        _add_mask(masked, seeds[name], 1)
    if whole is not None:
        whole = whole.copy()
        for other in about.others(name):
            _add_mask(whole, _pair_seed(secrets[other], about, name, other, b"whole"), _sign(name, other))
        if about.double:
            _add_mask(whole, _whole_seed(seeds[name]), 1)
    table = split([seeds[other] for other in _holders(about, name)], about.threshold, len(about.cohort))
    letters = {}
    for receiver, shares in zip(about.cohort, table, strict=True):
        content = b"".join(share.to_bytes(_SHARE, "big") for share in shares)
        nonce = os.urandom(_NONCE)
        key = _letter_key(secrets[receiver], about.digest, name, receiver)
        letters[receiver] = nonce + key.encrypt(nonce, content, None)
    return Masked(masked, letters, whole)


def _holders(about: Round, name: str) -> list[str]:
    """Whose seeds a node shares out: of its pairs, and under its own name that of its self mask."""
    return [other for other in about.cohort if about.double or other != name]


def letter_size(about: Round) -> int:
    """Bytes of one node's shares for another."""
    return _NONCE + _SHARE * (len(about.cohort) - (not about.double)) + 16


def open_letters(
    letters: Mapping[str, bytes], about: Round, name: str, own: X25519PrivateKey, peers: Keys
) -> dict[str, bytes]:
    """A node's shares of what lifts the masks of the sum of `letters`' senders, by the sender; of nothing else.

    Of a sender's self mask, or of its pairs with those who are missing; never of both for one node's vector. That it
    is done once a round is the caller's business.
    """
    opened = {}
    for sender, letter in letters.items():
        key = _letter_key(_shared_secret(own, sender, peers), about.digest, sender, name)
        try:
            content = key.decrypt(letter[:_NONCE], letter[_NONCE:], None)
        except (InvalidTag, ValueError):
            raise FedawsError(f"the shares of {sender} are not for this node and round, or damaged") from None
        shares = {holder: content[_SHARE * place :][:_SHARE] for place, holder in enumerate(_holders(about, sender))}
        opened[sender] = b"".join(shares[holder] for holder in wanted(about, sender, letters))
    return opened


def wanted(about: Round, sender: str, survivors: Iterable[str]) -> list[str]:
    """Of which of a survivor's seeds the server needs shares, by the holder: its own, and those with the missing."""
    here = set(survivors) - {sender}
    return [holder for holder in _holders(about, sender) if holder not in here]


# --- the server -----------------------------------------------------------------------------------------------------


def needs_opening(about: Round, survivors: Iterable[str]) -> bool:
    """Whether the sum of these needs a second trip."""
    return about.double or set(survivors) != set(about.cohort)


def unmask(
    vectors: Mapping[str, Numbers], about: Round, opened: Mapping[str, Mapping[str, bytes]] | None = None
) -> Numbers:
    """Σ x_i of those whose vectors arrived, from what nodes of the cohort have opened, by the opener and the sender.

    With fewer than `threshold` openers nothing can be told but that.
    """
    total = np.zeros_like(next(iter(vectors.values())))
    for vector in vectors.values():
        np.add(total, vector, out=total)
    if not needs_opening(about, vectors):
        return total
    for sender, holder, seed in _lifted(list(vectors), about, opened or {}):
        _add_mask(total, seed, -1 if holder == sender else -_sign(sender, holder))
    return total


def unmask_whole(
    wholes: Mapping[str, Numbers], about: Round, opened: Mapping[str, Mapping[str, bytes]] | None = None
) -> Numbers:
    """Σ z_i of the second vectors, from what was opened for the first ones of the whole cohort; of fewer, nothing."""
    if set(wholes) != set(about.cohort):
        raise FedawsError(f"{len(wholes)} of {len(about.cohort)} nodes; of their second vectors the sum stays masked")
    total = np.zeros_like(next(iter(wholes.values())))
    for vector in wholes.values():
        np.add(total, vector, out=total)
    if about.double:
        for _, _, seed in _lifted(list(wholes), about, opened or {}):
            _add_mask(total, _whole_seed(seed), -1)
    return total


def _lifted(
    survivors: list[str], about: Round, opened: Mapping[str, Mapping[str, bytes]]
) -> Iterator[tuple[str, str, bytes]]:
    """The seeds of the masks that stay in the sum of the survivors' vectors: (whose vector, with whom, seed)."""
    openers = sorted(opened)[: about.threshold]
    if len(openers) < about.threshold:
        raise FedawsError(
            f"{len(openers)} nodes opened their shares, wanted {about.threshold}; "
            f"the sum of {len(survivors)} stays masked"
        )
    places = {opener: 1 + about.cohort.index(opener) for opener in openers}
    for sender in survivors:
        for turn, holder in enumerate(wanted(about, sender, survivors)):
            at = slice(_SHARE * turn, _SHARE * (turn + 1))
            shares = {k: int.from_bytes(opened[opener][sender][at], "big") for opener, k in places.items()}
            yield sender, holder, join(shares)


def opened_size(about: Round, sender: str, survivors: Iterable[str]) -> int:
    """Bytes of what one node opens of one sender's."""
    return _SHARE * len(wanted(about, sender, survivors))
