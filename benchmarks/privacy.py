"""Precision against ε: a first curve on generated data, with rows that nobody trains: θ is all that is released.

    OMP_NUM_THREADS=1 python benchmarks/privacy.py --json benchmarks/privacy.json

100 classes in 32 dimensions, each shared out among clients of 8 training examples: 1,000, 10,000 and 100,000 clients,
who take part by coins of their own. MLP 32-64-32 (4,192 parameters), 200 rounds, `fixed-spread`, Adam at the server;
the same settings for all; "no noise" clips too. They were chosen by a handful of tries on seed 0 with 10,000 clients.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import fedaws
from fedaws import Config, Reporter

TARGETS = (1.0, 2.0, 4.0, 8.0, None)
SIZES = {1_000: (100, 3), 10_000: (1_000, 3), 100_000: (2_000, 1)}  # people: clients of a round, seeds
SETTINGS = [
    *("method=fixed-spread", "data.name=synthetic", "data.classes=100", "model.hidden=[64]"),
    *("clients.sampling=poisson", "clients.examples_per_step=all", "clients.lr=1", "privacy.clip=0.1"),
    *("server.optimizer=adam", "server.lr=0.01", "train.rounds=200", "train.evaluate_every=200"),
]


def measure(people: int, per_round: int, target: float | None, seed: int) -> float:
    each = people // 100
    sizes = [f"data.clients_per_class={each}", f"data.examples_per_class={10 * each}", f"clients.per_round={per_round}"]
    asked = [] if target is None else [f"privacy.epsilon={target}"]
    cfg = Config().override([*SETTINGS, *sizes, *asked, f"seed={seed}"])
    run = fedaws.train(config=cfg, reporter=Reporter(on_warning=lambda _: None))
    return float(run.metrics[-1]["precision@1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a file for the figures")
    asked = parser.parse_args()
    rows = []
    for people, (per_round, seeds) in SIZES.items():
        for target in TARGETS:
            found = [measure(people, per_round, target, seed) for seed in range(seeds)]
            spread = stdev(found) if seeds > 1 else 0.0
            print(f"{people:>7,} people, ε = {target}: {100 * mean(found):.1f} ± {100 * spread:.1f} %", flush=True)
            figures = {"precision@1": round(mean(found), 3), "std": round(spread, 3), "seeds": seeds}
            rows.append({"people": people, "per_round": per_round, "epsilon": target, **figures})
            if asked.json:
                Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
