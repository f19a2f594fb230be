"""A door that opens to voices: enrol from a folder of recordings, verify, reject strangers, remove. It needs no torch.

    python examples/door.py phone recordings --strangers strangers --threshold 0.6

`phone` is by `fedaws export`; `recordings` and `strangers` have a folder for each person, of wav, flac or ogg files.
Of everybody's recordings the last two knock at the door (measure the threshold by `fedaws trials … --ask 2`); the
others enrol. docs/tutorial-door.md tells the whole story.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedaws.device import Device, DeviceError
from fedaws.device.sound import SUFFIXES

KNOCKS = 2  # recordings that are heard together: surer than one


def people(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Everybody's name and recordings."""
    for each in sorted(folder.iterdir()):
        files = sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES) if each.is_dir() else []
        if files:
            yield each.name, files


def heard(device: Device, files: list[Path]) -> Any:
    """All that is said in some recordings, [n, samples]."""
    return np.concatenate([device.read(file) for file in files])


def enrol(device: Device, folder: Path) -> None:
    """Let everybody in the folder in from now on; a set that does not hold together is refused."""
    for name, files in people(folder):
        try:
            person = device.enroll(name, heard(device, files[:-KNOCKS]))
            print(f"{name} is enrolled by {person.count} examples")
        except DeviceError as refused:
            print(f"not enrolled: {refused}")


def knock(device: Device, files: list[Path], threshold: float | None) -> str | None:
    """Whom the door opens to; None: it stays shut."""
    return device.identify(heard(device, files[-KNOCKS:]), threshold, margin=0.02)


def main() -> None:
    """Enrol, open, stay shut, forget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phone", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--strangers", type=Path, help="who must stay outside")
    parser.add_argument("--threshold", type=float, help="by default what was measured and exported")
    parser.add_argument("--gallery", type=Path, default=Path("door.safetensors"), help="where who is enrolled is kept")
    args = parser.parse_args()

    device = Device.load(args.phone, args.gallery)
    enrol(device, args.recordings)

    known = [(name, files) for name, files in people(args.recordings) if name in device.gallery]
    answers = [(name, knock(device, files, args.threshold)) for name, files in known]
    for name, answer in answers:
        print(f"{name} knocks: {'the door stays shut' if answer is None else f'come in, {answer}'}")
    print(f"{sum(name == answer for name, answer in answers)} of {len(answers)} come in by their own name")

    if args.strangers:
        passed = [(name, knock(device, files, args.threshold)) for name, files in people(args.strangers)]
        for name, answer in passed:
            print(f"a stranger ({name}) knocks: {'the door stays shut' if answer is None else f'come in, {answer}'}")
        print(f"{sum(answer is None for _, answer in passed)} of {len(passed)} strangers stay outside")

    first, files = known[0]
    says = device.verify(first, heard(device, files[-KNOCKS:]), args.threshold)
    print(f"is this {first}? {'yes' if says else 'no'}")
    for name, _ in known:
        device.remove(name)
    print(f"all are removed; {first} knocks: {knock(device, files, args.threshold) or 'the door stays shut'}")


if __name__ == "__main__":
    main()
