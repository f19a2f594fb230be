"""What several test files need."""

from collections.abc import Callable

import pytest

from fedaws.errors import FedawsError


def refusal(action: Callable[[], object]) -> str:
    """The one line that a mistake is told as."""
    with pytest.raises(FedawsError) as refused:
        action()
    message = str(refused.value)
    assert "\n" not in message
    return message
