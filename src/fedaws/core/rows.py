r"""The rows of W and of whatever has a row a class, wherever they are: here, or shared out among processes.

Who reads or writes rows by their numbers (`W[ids]`, `W[ids] = rows`) need not ask. Who works on all rows says so by the
words below, which are next to nothing where all rows are here. Rows elsewhere answer in their own way, by the protocol
that PyTorch has for it (`__torch_function__`), and refuse every other operation: nothing can take a part for the whole.

All processes run the same program on the same numbers; only the rows that they have are not the same.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _word(function: Callable[Concatenate[Tensor, _P], _R]) -> Callable[Concatenate[Tensor, _P], _R]:
    """A function of W that rows elsewhere may answer in their own way."""

    @wraps(function)
    def ask(W: Tensor, /, *args: _P.args, **options: _P.kwargs) -> _R:
        if has_torch_function_unary(W):
            answer: _R = handle_torch_function(ask, (W,), W, *args, **options)
            return answer
        return function(W, *args, **options)

    return ask


@_word
def here(W: Tensor) -> Tensor:
    """The rows that this process has, to be read and changed in place."""
    return W


@_word
def whole(W: Tensor) -> Tensor:
    """All rows, to be read: for what looks at all pairs of them."""
    return W


@_word
def ids_of(W: Tensor, places: Tensor) -> Tensor:
    """The numbers of the rows at these places of `here(W)`."""
    return places


@_word
def places_of(W: Tensor, ids: Tensor) -> Tensor:
    """Where these rows are in `here(W)`; −1: elsewhere."""
    return ids


@_word
def summed(W: Tensor, part: Tensor) -> Tensor:
    """What each process has of a sum over rows, added up."""
    return part


@_word
def largest(W: Tensor, part: Tensor) -> Tensor:
    """The largest of what each process has, number by number."""
    return part


@_word
def own_part(W: Tensor, count: int) -> slice:
    """Which of so many questions this process is to answer."""
    return slice(0, count)


@_word
def put_together(W: Tensor, part: Tensor, count: int) -> Tensor:
    """All answers, from each process those of its `own_part`."""
    return part


@_word
def best_of(W: Tensor, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores [m, k], largest first, and their ids, of those that each process found among its rows."""
    return scores, ids


@_word
def kept_beside(W: Tensor, width: tuple[int, ...], fill: float, dtype: torch.dtype) -> Tensor:
    """A tensor with a row a class, this wide, kept where the rows of W are."""
    return torch.full((len(W), *width), fill, dtype=dtype, device=W.device)


@_word
def changed(W: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function that looks at each row by itself makes of the rows."""
    return change(W)


WORDS: tuple[Callable[..., Any], ...] = (
    here, whole, ids_of, places_of, summed, largest, own_part, put_together, best_of, kept_beside, changed,
)  # fmt: skip
"""All that rows elsewhere must answer, beside reading and writing rows by number."""


def gram(W: Tensor) -> Tensor:
    """Σ w wᵀ, [d, d].

    >>> gram(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor([[1.3600, 0.4800],
            [0.4800, 0.6400]])
    """
    rows = here(W)
    return summed(W, rows.T @ rows)


def total(W: Tensor) -> Tensor:
    """Σ w, [d].

    >>> total(torch.eye(2))
    tensor([1., 1.])
    """
    return summed(W, here(W).sum(0))
