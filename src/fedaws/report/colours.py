"""The colour of a method: the same in every report and plot, and never that of another method beside it."""

import zlib
from collections.abc import Collection
from itertools import count

PALETTE = ("#0068a8", "#c94f00", "#00805d", "#a8437f", "#8a6100", "#5a46b8", "#50555b", "#a32638")
"""The colours on white, for plots; style.css has the same as --c0 to --c7. Dashes tell lines apart without colours."""

_KNOWN = {"fedaws": 0, "positive-only": 1, "fixed": 2, "softmax": 3, "contrastive": 4, "triplet": 5, "fedavg": 6}
_RARE = (7, 4, 5, 6)  # an own method takes these first: those that most comparisons leave free
_COMMON = (3, 2, 1, 0)


def colour_of(method: str, among: Collection[str]) -> int:
    """The number of a method's colour beside the other methods of a page, whatever their order.

    A number below 8 is a place in `PALETTE`. Beyond 8 methods colours come again with other dashes.

    >>> colour_of("fixed", ["mine", "fixed"]), colour_of("mine", ["mine", "fixed"]) == colour_of("mine", ["mine"])
    (2, True)
    """
    if method in _KNOWN:
        return _KNOWN[method]
    taken = {_KNOWN[name] for name in among if name in _KNOWN}
    for name in sorted({*among, method} - _KNOWN.keys()):
        number = _first_free(name, taken)
        if name == method:
            return number
        taken.add(number)
    raise AssertionError("a method is among itself")


def _first_free(name: str, taken: set[int]) -> int:
    """Where to look first is the name's own, so that it rarely depends on the other methods."""
    first = zlib.crc32(name.encode()) % len(_RARE)
    choices = [*_RARE[first:], *_RARE[:first], *_COMMON]
    free = [number for number in choices if number not in taken]
    return free[0] if free else next(number for number in count(len(PALETTE)) if number not in taken)
