"""A user's mistake, told in one line: what, got, wanted, fix; and a doubt."""


class DeviceError(ValueError):
    """Something that can be mended; unprintable characters of what it quotes are shown, not obeyed.

    >>> print(DeviceError("got a" + chr(27) + "b"))
    got a\\x1bb
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class DeviceWarning(UserWarning):
    """A decision that is less sure than what was measured."""
