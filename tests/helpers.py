"""What several test files need."""

from collections.abc import Callable

import pytest
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.sparse import SparseRows


def refusal(action: Callable[[], object]) -> str:
    """The one line that a mistake is told as."""
    with pytest.raises(FedawsError) as refused:
        action()
    message = str(refused.value)
    assert "\n" not in message
    return message


def dense(rows: Tensor | SparseRows) -> Tensor:
    """Examples or labels that are known to be a tensor."""
    assert isinstance(rows, Tensor)
    return rows
