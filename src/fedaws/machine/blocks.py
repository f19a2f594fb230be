"""How much is worked on at once, in numbers of four bytes: more falls out of a cache, less pays overhead too often."""

from collections.abc import Iterator

ROWS = 1_000_000  # of examples or of rows of W, gathered or changed: 4 MB
TILE = 4_000_000  # scores that are searched, added up or looked up: 16 MB, a last-level cache
SCORES = 8_000_000  # of a softmax, in the one buffer that is used again and again
STACKED = 4_000_000  # parameters of stacked clients
POOLED = 12_000_000  # what the forward pass of a block of pooled clients keeps for the backward one
EXAMPLES = 4_096  # the one limit in examples: what is summed up of their embeddings does not depend on their size


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `count`.

    >>> list(slices(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
