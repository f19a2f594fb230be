"""A user's mistake, told in one line: what, got, wanted, fix."""


class FedawsError(ValueError):
    """Something the user can mend; the command line prints it as one line and exits with 2."""


class MissingData(FedawsError):  # noqa: N818 - said of the data, not of the mistake
    """The data are not where they are looked for; whoever runs several experiments may go on with the next."""
