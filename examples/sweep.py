"""A sweep over λ and k, the two settings of the paper's Table 4, on held-out training examples.

    python examples/sweep.py [--weights 0.1 1 10 100] [--neighbors 1 3 9] [--rounds 300] [--seeds 2] [--set KEY=VALUE]…

Prints the mean precision@1 of each pair. With the bounded step (the default) λ hardly matters; try
`--set spread.bounded=false` for the paper's own step, and `--set spread.regularizer=margin` for eq. (6).
"""

import argparse
import statistics
import warnings

import fedaws


def held_out_precision(weight: float, neighbors: int, seed: int, settings: list[str]) -> float:
    """Of one run, in percent; a run that diverges has none right."""
    own = [f"spread.weight={weight}", f"spread.neighbors={neighbors}", f"seed={seed}"]
    config = fedaws.config.load("digits").override(["data.validation=0.25", *settings, *own])
    try:
        return 100 * fedaws.train(config=config).metrics[-1]["precision@1"]
    except fedaws.FedawsError as error:
        print(f"λ = {weight:g}, k = {neighbors}: {error}")
        return 0.0


def main() -> None:
    """Run the grid, print it as a table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--weights", type=float, nargs="+", default=[0.1, 1, 10, 100])
    arguments.add_argument("--neighbors", type=int, nargs="+", default=[1, 3, 9])
    arguments.add_argument("--rounds", type=int, default=300)
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    warnings.filterwarnings("ignore", "classes have collapsed")  # the table shows it
    settings = [f"train.rounds={given.rounds}", *given.set]
    print("λ \\ k " + "".join(f"{k:>8d}" for k in given.neighbors))
    for weight in given.weights:
        means = [
            statistics.fmean(held_out_precision(weight, k, seed, settings) for seed in range(given.seeds))
            for k in given.neighbors
        ]
        print(f"{weight:<6g}" + "".join(f"{value:8.1f}" for value in means), flush=True)


if __name__ == "__main__":
    main()
