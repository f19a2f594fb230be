"""`fedaws` and `python -m fedaws`: Ctrl-C is quiet from the first moment on, also while torch loads."""

import sys


def main() -> None:
    """Entry point of the command line."""
    try:
        from fedaws.cli.main import main as run  # noqa: PLC0415 - the import is the long part

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
