"""A user's mistake, told in one line: what, got, wanted, fix."""


class FedawsError(ValueError):
    """Something the user can mend; the command line prints it as one line and exits with 2.

    What it quotes may be anybody's: ends of lines and a terminal's commands are shown, not obeyed.

    >>> print(FedawsError("got a" + chr(27) + "b"))
    got a\\x1bb
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class MissingData(FedawsError):  # noqa: N818 - said of the data, not of the mistake
    """The data are not where they are looked for; whoever runs several experiments may go on with the next."""
