"""A user's mistake, told in one line: what, got, wanted, fix."""


class FedawsError(ValueError):
    """Something the user can mend; the command line prints it as one line and exits with 2."""
