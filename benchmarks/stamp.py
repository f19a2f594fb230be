"""Stamp a published figure with the fingerprint of the code that made it, where that is older than fingerprints.

    python benchmarks/stamp.py table1 cifar10-resnet8 fedaws,fixed --commit e7331b7 [--results docs/results]

The commit's `src` is unpacked beside, computes the fingerprint of the figure's configuration, and goes away. Where
today's code comes to the same, the figure is no longer called stale.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src/fedaws/experiments/fingerprint.py"


Job = tuple[str, list[str]]
"""A preset, and settings as after -s."""


def by_this_code(jobs: list[Job]) -> list[list[float]]:
    """The fingerprints by whatever `fedaws` is imported."""
    import fedaws  # noqa: PLC0415 - perhaps an older one
    from fedaws import config  # noqa: PLC0415

    for place, name in (("fedaws.training.session", "Reporter"), ("fedaws.training.train", "train")):
        if (
            importlib.util.find_spec(place.rpartition(".")[0]) is None
        ):  # it stood elsewhere, but everybody could have it
            sys.modules[place] = types.ModuleType(place)
            setattr(sys.modules[place], name, getattr(fedaws, name))
    spec = importlib.util.spec_from_file_location("fingerprint", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [module.fingerprint(config.load(preset).override(settings)) for preset, settings in jobs]


def by_commit(commit: str, jobs: list[Job]) -> list[list[float]]:
    """The fingerprints by the code of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        older = os.environ | {"PYTHONPATH": str(Path(folder) / "src")}
        words = [sys.executable, __file__, "--inside"]
        done = subprocess.run(words, env=older, input=json.dumps(jobs), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{commit} cannot: {done.stderr.strip().splitlines()[-1]}")
        found: list[list[float]] = json.loads(done.stdout)
        return found


def main() -> None:
    """Stamp, and write the page again."""
    from fedaws.experiments.paper_tables import load_table  # noqa: PLC0415 - of today's code
    from fedaws.experiments.results import marked, read_results, write_results  # noqa: PLC0415

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("table", "rows", "methods"):
        arguments.add_argument(name)
    arguments.add_argument("--commit", required=True)
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    table, results = load_table(given.table), read_results(given.results / f"{given.table}.json")
    cells = [
        (row, method, ours)
        for row in given.rows.split(",")
        for method in given.methods.split(",")
        if (ours := results["rows"][row]["methods"].get(method, {}).get("ours"))
    ]
    jobs = [
        (table.rows[row].preset, [*table.rows[row].settings, *ours["settings"], f"method={method}"])
        for row, method, ours in cells
    ]
    for (_, _, ours), found in zip(cells, by_commit(given.commit, jobs), strict=True):
        ours["fingerprint"] = found
        ours["versions"] = {"commit": given.commit} | ours["versions"]
    write_results(marked(table, results), given.results)
    for row, method, ours in cells:
        print(row, method, "stale" if ours["stale"] else "as today's code")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(by_this_code(json.load(sys.stdin))))
    else:
        main()
