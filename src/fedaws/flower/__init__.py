"""FedAwS over real devices: the mathematics of `fedaws.core`, carried by Flower.

Nothing here is imported before it is asked for: a client starts a process per message, and must start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaws.flower.federation import Federation, Member
    from fedaws.flower.strategy import FedAwS

__all__ = ["FedAwS", "Federation", "Member"]

_HOMES = {"FedAwS": "strategy", "Federation": "federation", "Member": "federation"}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(f"fedaws.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedaws.flower' has no attribute {name!r}")
