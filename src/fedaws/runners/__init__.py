"""Three ways to run the clients of a round on one machine; they give the same numbers at different speeds."""

from fedaws.runners.choose import make_runner

__all__ = ["make_runner"]
