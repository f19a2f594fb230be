"""Sums behind masks: exact to the fixed-point step, or nothing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedaws.privacy import secure_sums
from fedaws.privacy.secure_sums import Entry, Masked, Round, decode, encode, join, split, step
from helpers import refusal

LAYOUT = [Entry("delta", (3, 4), 2.0), Entry("weight", (), 1.0), Entry("row", (5,), 1.0)]


@dataclass
class Cohort:
    """Nodes with keys and values, in one process."""

    about: Round
    keys: dict[str, X25519PrivateKey]
    values: dict[str, dict[str, np.ndarray]]

    @cached_property
    def public(self) -> dict[str, bytes]:
        return {name: key.public_key().public_bytes_raw() for name, key in self.keys.items()}

    def mask(self, name: str, about: Round | None = None) -> Masked:
        x = encode(self.values[name], LAYOUT, len(self.about.cohort))
        return secure_sums.mask(x, about or self.about, name, self.keys[name], self.public)

    def masked(self, names: Iterable[str]) -> dict[str, Masked]:
        return {name: self.mask(name) for name in names}

    def open(self, opener: str, sent: dict[str, Masked]) -> dict[str, bytes]:
        letters = {sender: masked.letters[opener] for sender, masked in sent.items()}
        return secure_sums.open_letters(letters, self.about, opener, self.keys[opener], self.public)

    def total(self, sent: dict[str, Masked], openers: Iterable[str]) -> dict[str, np.ndarray]:
        opened = {opener: self.open(opener, sent) for opener in openers}
        vectors = {name: masked.vector for name, masked in sent.items()}
        return decode(secure_sums.unmask(vectors, self.about, opened), LAYOUT, len(self.about.cohort))

    def error(self, found: dict[str, np.ndarray], names: Iterable[str]) -> float:
        """The largest difference to the plain sum, in half steps of all clients."""
        names, count = list(names), len(self.about.cohort)
        plain = {e.name: sum(self.values[n][e.name] for n in names) for e in LAYOUT}
        return max(
            float(np.abs(found[e.name] - plain[e.name]).max()) / (len(names) * step(e.bound, count) / 2) for e in LAYOUT
        )


def cohort_of(count: int, double: bool = True, threshold: int | None = None, seed: int = 0) -> Cohort:
    rng = np.random.default_rng(seed)
    names = tuple(sorted(f"node-{i}" for i in range(count)))
    values = {name: {e.name: rng.uniform(-e.bound, e.bound, e.shape) for e in LAYOUT} for name in names}
    about = Round("run", 7, names, threshold or count // 2 + 1, double, b"theta")
    return Cohort(about, {name: X25519PrivateKey.generate() for name in names}, values)


# --- the sum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "double"), [(2, True), (2, False), (3, True), (3, False), (10, True), (10, False), (100, True)]
)
def test_the_sum_is_the_plain_sum_to_the_fixed_point_step(count: int, double: bool) -> None:
    nodes = cohort_of(count, double)
    everybody = nodes.about.cohort
    found = nodes.total(nodes.masked(everybody), everybody if double else ())
    assert nodes.error(found, everybody) <= 1 + 1e-6


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_it_is_so_whoever_drops_out_before_either_trip(seed: int, double: bool) -> None:
    rng = np.random.default_rng(seed)
    nodes = cohort_of(int(rng.integers(3, 12)), double, seed=seed)
    count, threshold = len(nodes.about.cohort), nodes.about.threshold
    here = list(rng.permutation(nodes.about.cohort)[: rng.integers(threshold, count + 1)])
    openers = list(rng.permutation(here)[: rng.integers(threshold, len(here) + 1)])
    assert nodes.error(nodes.total(nodes.masked(here), openers), here) <= 1 + 1e-6


def test_a_node_that_answers_the_second_trip_only_helps_too() -> None:
    nodes = cohort_of(5)
    sent = nodes.masked(nodes.about.cohort[:3])
    assert nodes.error(nodes.total(sent, nodes.about.cohort[2:]), sent) <= 1 + 1e-6


def test_without_self_masks_a_full_cohort_needs_no_second_trip_and_a_smaller_one_does() -> None:
    about = cohort_of(4, double=False).about
    assert not secure_sums.needs_opening(about, about.cohort)
    assert secure_sums.needs_opening(about, about.cohort[:3])
    assert secure_sums.needs_opening(replace(about, double=True), about.cohort)


# --- below the threshold --------------------------------------------------------------------------------------------


def test_below_the_threshold_the_sum_is_refused_in_one_line() -> None:
    nodes = cohort_of(5)
    sent = nodes.masked(nodes.about.cohort)
    line = refusal(lambda: nodes.total(sent, nodes.about.cohort[:2]))
    assert line == "2 nodes opened their shares, wanted 3; the sum of 5 stays masked"


def test_any_three_of_five_shares_give_the_secret_and_no_two_do() -> None:
    """Two points of a parabola: the line through them meets 0 anywhere."""
    shares = {k: both[0] for k, both in enumerate(split([b"k" * 16, b"l" * 16], threshold=3, count=5), 1)}
    secret, prime = int.from_bytes(b"k" * 16, "big"), 2**130 - 5
    for three in combinations(shares, 3):
        assert join({k: shares[k] for k in three}) == b"k" * 16
    for i, j in combinations(shares, 2):
        line_at_zero = (j * shares[i] - i * shares[j]) * pow(j - i, -1, prime) % prime
        assert line_at_zero != secret


def test_a_share_says_nothing_of_the_secret() -> None:
    """The first shares of two secrets, halved into low and high: a thousand of each are as often high."""
    high = [sum(s > 2**129 for s in split([secret] * 1000, 2, 1)[0]) for secret in (bytes(16), b"\xff" * 16)]
    assert all(abs(count - 500) < 5 * 250**0.5 for count in high)  # five standard deviations of a coin's


@pytest.mark.parametrize("threshold", [0, 2, 5])
def test_a_threshold_of_half_or_less_or_of_more_than_all_is_refused(threshold: int) -> None:
    about = cohort_of(4).about
    assert "wanted more than half" in refusal(lambda: replace(about, threshold=threshold))


# --- what the server sees -------------------------------------------------------------------------------------------


def chi_square(numbers: np.ndarray) -> float:
    """Of the 256 values of every byte, against evenly many of each."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


def test_a_masked_vector_of_zeros_looks_uniform() -> None:
    nodes = cohort_of(3, double=False)
    name = nodes.about.cohort[1]
    zeros = np.zeros(100_000, np.uint32)
    vector = secure_sums.mask(zeros, nodes.about, name, nodes.keys[name], nodes.public).vector
    assert chi2.ppf(1e-6, 255) < chi_square(vector) < chi2.ppf(1 - 1e-6, 255)


@pytest.mark.parametrize("colluding", [1, 2])
def test_all_but_two_that_collude_with_the_server_see_only_the_sum_of_the_two(colluding: int) -> None:
    """They lift their pair masks off a vector; the one that is left, with the other honest node, covers it."""
    nodes = cohort_of(2 + colluding, double=False)
    honest, dishonest = nodes.about.cohort[:2], nodes.about.cohort[2:]
    zeros = np.zeros(100_000, np.uint32)
    seen = []
    for name in honest:
        vector = secure_sums.mask(zeros, nodes.about, name, nodes.keys[name], nodes.public).vector
        for other in dishonest:  # what the other knows as well: their pair's seed
            secret = secure_sums._shared_secret(nodes.keys[other], name, nodes.public)
            seed = secure_sums._pair_seed(secret, nodes.about, name, other)
            secure_sums._add_mask(vector, seed, -secure_sums._sign(name, other))
        assert chi2.ppf(1e-6, 255) < chi_square(vector) < chi2.ppf(1 - 1e-6, 255)
        seen.append(vector)
    assert not (seen[0] + seen[1]).any()


def test_a_node_that_is_reported_missing_although_it_answered_stays_masked() -> None:
    """What the others open lifts the sum of the others, and not the vector that came all the same."""
    nodes = cohort_of(4)
    here, late = nodes.about.cohort[:3], nodes.about.cohort[3]
    sent, answered = nodes.masked(here), nodes.mask(late)
    opened = {opener: nodes.open(opener, sent) for opener in here}
    vectors = {name: masked.vector for name, masked in sent.items()}
    rest = secure_sums.unmask(vectors, nodes.about, opened)
    # All pair masks of the late one are told by now: lifted, what is left is x behind its self mask.
    for name in here:
        secret = secure_sums._shared_secret(nodes.keys[name], late, nodes.public)
        seed = secure_sums._pair_seed(secret, nodes.about, name, late)
        secure_sums._add_mask(answered.vector, seed, -secure_sums._sign(late, name))
    found = decode(answered.vector, LAYOUT, 4)
    assert nodes.error(decode(rest, LAYOUT, 4), here) <= 1 + 1e-6
    assert nodes.error(found, [late]) > 1e6


def test_without_self_masks_a_late_answer_is_the_difference_of_two_sums() -> None:
    """The price of a single trip, which no protocol can save; the page on Flower says so."""
    nodes = cohort_of(4, double=False)
    everybody, here = nodes.masked(nodes.about.cohort), nodes.about.cohort[:3]
    vectors = {name: masked.vector for name, masked in everybody.items()}
    some = {name: everybody[name] for name in here}
    opened = {opener: nodes.open(opener, some) for opener in here}
    both = secure_sums.unmask(vectors, nodes.about)
    rest = secure_sums.unmask({name: vectors[name] for name in here}, nodes.about, opened)
    assert nodes.error(decode(both - rest, LAYOUT, 4), nodes.about.cohort[3:]) <= 1 + 1e-6


def test_opened_shares_are_of_self_masks_and_of_pairs_with_the_missing_alone() -> None:
    about = cohort_of(5).about
    assert secure_sums.wanted(about, "node-0", ["node-0", "node-1", "node-2"]) == ["node-0", "node-3", "node-4"]
    single = replace(about, double=False)
    assert secure_sums.wanted(single, "node-0", ["node-0", "node-1", "node-2"]) == ["node-3", "node-4"]


# --- what must agree ------------------------------------------------------------------------------------------------


OTHERWISE: dict[str, Any] = {"told": b"another theta", "number": 8, "run": "another", "threshold": 4}


@pytest.mark.parametrize("field", OTHERWISE)
def test_one_node_that_is_told_otherwise_spoils_the_sum(field: str) -> None:
    nodes = cohort_of(4, double=False, threshold=3)
    sent = nodes.masked(nodes.about.cohort)
    sent["node-2"] = nodes.mask("node-2", replace(nodes.about, **{field: OTHERWISE[field]}))
    assert nodes.error(nodes.total(sent, ()), nodes.about.cohort) > 1e6


def test_shares_of_a_node_that_is_told_otherwise_cannot_be_opened() -> None:
    nodes = cohort_of(4)
    sent = nodes.masked(nodes.about.cohort)
    sent["node-2"] = nodes.mask("node-2", replace(nodes.about, told=b"another theta"))
    assert "the shares of node-2 are not for this node and round" in refusal(lambda: nodes.open("node-0", sent))


@pytest.mark.parametrize("damage", ["swapped", "replayed", "cut", "flipped", "empty"])
def test_damaged_swapped_and_replayed_shares_are_refused(damage: str) -> None:
    nodes = cohort_of(3)
    sent = nodes.masked(nodes.about.cohort)
    letters = {sender: masked.letters["node-0"] for sender, masked in sent.items()}
    right = letters["node-1"]
    old = nodes.mask("node-1", replace(nodes.about, number=6)).letters["node-0"]
    wrong = {
        "swapped": letters["node-2"],
        "replayed": old,
        "cut": right[:-1],
        "flipped": right[:-1] + bytes([right[-1] ^ 1]),
        "empty": b"",
    }
    letters["node-1"] = wrong[damage]
    line = refusal(lambda: secure_sums.open_letters(letters, nodes.about, "node-0", nodes.keys["node-0"], nodes.public))
    assert line.startswith("the shares of node-1")


def test_shares_that_do_not_belong_together_are_refused_or_give_another_secret() -> None:
    (first,), (second,), _ = split([b"k" * 16], threshold=2, count=3)
    assert join({1: first, 2: second}) == b"k" * 16
    assert "do not belong together" in refusal(lambda: join({1: 2**128, 2: 2**128}))


@pytest.mark.parametrize("cohort", [("b", "a"), ("a", "a", "b")])
def test_a_cohort_that_is_not_sorted_or_has_a_name_twice_is_refused(cohort: tuple[str, ...]) -> None:
    assert "sort them" in refusal(lambda: Round("run", 1, cohort, len(cohort), True, b""))


def test_no_two_different_rounds_have_one_digest() -> None:
    """Names are delimited: a name cannot take a letter from its neighbour."""
    about = Round("run", 1, ("a", "bc"), 2, True, b"theta")
    others = [
        replace(about, cohort=("ab", "c")),
        replace(about, cohort=("a", "b", "c")),
        replace(about, run="run1"),
        replace(about, number=11),
        replace(about, double=False),
        replace(about, told=b"thetb"),
    ]
    assert len({r.digest for r in [about, *others]}) == 7


# --- fixed-point numbers --------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=2), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_encoded_numbers_add_up_to_half_a_step_a_client(rows: list[list[float]], bound: float) -> None:
    layout, m = [Entry("x", (2,), bound)], len(rows)
    encoded = [encode({"x": np.array(row)}, layout, m) for row in rows]
    found = decode(np.sum(encoded, axis=0, dtype=np.uint32), layout, m)["x"]
    plain = np.clip(np.array(rows), -bound, bound).sum(0)
    assert np.abs(found - plain).max() <= m * step(bound, m) / 2 * (1 + 1e-6)


@pytest.mark.parametrize("clients", [1, 2, 3, 1000, 2**16])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_does_not_wrap_around(clients: int, sign: int) -> None:
    layout = [Entry("x", (1,), 5.0)]
    largest = encode({"x": np.array([sign * 5.0])}, layout, clients)
    total = (largest.astype(np.uint64) * clients % 2**32).astype(np.uint32)
    assert decode(total, layout, clients)["x"][0] == pytest.approx(sign * 5.0 * clients)


def test_one_client_more_than_was_said_wraps_around() -> None:
    layout = [Entry("x", (1,), 1.0)]
    total = encode({"x": np.ones(1)}, layout, 4) * np.uint32(5)
    assert decode(total, layout, 4)["x"][0] == pytest.approx(5 - 2**32 / ((2**31 - 1) // 4), abs=1e-6)


def test_values_beyond_the_bound_are_cut_to_it() -> None:
    layout = [Entry("x", (3,), 2.0)]
    found = decode(encode({"x": np.array([9.0, -2.5, 1e30])}, layout, 1), layout, 1)["x"]
    np.testing.assert_allclose(found, [2.0, -2.0, 2.0])


@pytest.mark.parametrize("x", [np.array([np.nan]), np.array([np.inf]), np.zeros(2), np.zeros((1, 1))])
def test_what_is_not_finite_or_of_another_shape_is_not_added_up(x: np.ndarray) -> None:
    assert "wanted finite (1,)" in refusal(lambda: encode({"x": x}, [Entry("x", (1,), 1.0)], 2))


def test_sizes_on_the_wire_are_those_that_are_sent() -> None:
    for double in (True, False):
        nodes = cohort_of(5, double)
        sent = nodes.masked(nodes.about.cohort[:4])
        assert {len(letter) for m in sent.values() for letter in m.letters.values()} == {
            secure_sums.letter_size(nodes.about)
        }
        opened = nodes.open("node-4", sent)
        assert {s: len(o) for s, o in opened.items()} == {
            s: secure_sums.opened_size(nodes.about, s, sent) for s in sent
        }


# --- a second vector, of the whole cohort alone -----------------------------------------------------------------------


Opened = dict[str, dict[str, bytes]]


def second_vectors(double: bool, count: int = 4) -> tuple[Round, dict[str, Any], Callable[[Iterable[str]], Opened]]:
    """Nodes that add 1, 2, 3, … in a second vector: these vectors, and what some nodes open of their own sum."""
    names = tuple(f"n{i}" for i in range(count))
    keys = {name: X25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    about = Round("run", 7, names, count // 2 + 1, double, b"theta")
    x = np.zeros(3, np.uint32)
    sent = {
        name: secure_sums.mask(x, about, name, keys[name], public, np.full(5, i + 1, np.uint32))
        for i, name in enumerate(names)
    }

    def opened(survivors: Iterable[str]) -> Opened:
        letters = {name: {s: sent[s].letters[name] for s in survivors} for name in survivors}
        return {name: secure_sums.open_letters(letters[name], about, name, keys[name], public) for name in survivors}

    return about, {name: masked.whole for name, masked in sent.items()}, opened


@pytest.mark.parametrize("double", [True, False])
def test_the_sum_of_second_vectors_is_known_of_the_whole_cohort(double: bool) -> None:
    about, wholes, opened = second_vectors(double)
    total = secure_sums.unmask_whole(wholes, about, opened(about.cohort))
    assert total.tolist() == [1 + 2 + 3 + 4] * 5


def test_with_one_missing_nothing_that_was_opened_lifts_the_masks_of_second_vectors() -> None:
    """The attack: take all seeds that the second trip gives for all but one, and use each for either vector."""
    about, wholes, opened = second_vectors(double=True)
    fewer = {name: wholes[name] for name in about.cohort[1:]}
    shares = opened(fewer)
    assert "stays masked" in refusal(lambda: secure_sums.unmask_whole(fewer, about, shares))
    total = np.zeros(5, np.uint32)
    for vector in fewer.values():
        total += vector
    for sender, holder, seed in secure_sums._lifted(list(fewer), about, shares):
        use = secure_sums._whole_seed(seed) if holder == sender else seed
        secure_sums._add_mask(total, use, -1 if holder == sender else -secure_sums._sign(sender, holder))
    assert total.tolist() != [2 + 3 + 4] * 5
    assert len(set(total.tolist())) == 5  # a stream, and no constant


def test_below_the_threshold_the_second_vectors_of_all_stay_masked() -> None:
    about, wholes, opened = second_vectors(double=True)
    few = dict(list(opened(about.cohort).items())[:2])
    assert "2 nodes opened their shares, wanted 3" in refusal(lambda: secure_sums.unmask_whole(wholes, about, few))
