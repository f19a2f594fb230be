"""Gives damaged files to the readers, in a process with little memory, and says what was not one clear line.

    python -m fuzz.worker FOLDER SEED CASES READER…

Prints a line of JSON before each case, so that whoever watches knows which one ended the process.
"""

import json
import random
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from types import FrameType

from fedaws import FedawsError
from fuzz.readers import READERS, Reader

MEMORY = 2 << 30  # bytes that a case may ask for, beyond what the libraries took
RESIDENT = 600 << 10  # kilobytes by which a case may raise the highest use so far
SECONDS = 10  # of processor time


class TooLong(BaseException):
    """A case that takes too long."""


def too_long(_: int, __: FrameType | None) -> None:
    raise TooLong


def main() -> None:
    place, seed, cases, *names = sys.argv[1:]
    warnings.simplefilter("error")
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    signal.signal(signal.SIGPROF, too_long)
    folders = {}
    for name in names:
        folders[name] = Path(place) / name.replace(" ", "-")
        folders[name].mkdir()
        READERS[name].make(folders[name])
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    for name in names:
        for case in range(int(cases)):
            print(json.dumps({"reader": name, "case": case}), flush=True)
            trouble = attempt(READERS[name], folders[name], random.Random(f"{seed} {name} {case}"))
            if trouble:
                print(json.dumps({"reader": name, "case": case, "trouble": trouble}), flush=True)


def attempt(reader: Reader, folder: Path, rng: random.Random) -> str | None:
    """One damaged file; None if it is read or refused in one line, with little memory and in time."""
    path = rng.choice(sorted(path for path in folder.glob(reader.files) if path.is_file()))
    sound = path.read_bytes()
    path.write_bytes(reader.damage(rng, sound))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        reader.read(folder)
        trouble = None
    except FedawsError as error:
        trouble = None if len(str(error).splitlines()) == 1 else f"not one line: {error}"
    except TooLong:
        trouble = f"more than {SECONDS} s: {traceback.format_exc()[-1500:]}"
    except BaseException:
        trouble = traceback.format_exc()[-1500:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_bytes(sound)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return trouble or (f"took {grown >> 10} MB" if grown > RESIDENT else None)


if __name__ == "__main__":
    main()
