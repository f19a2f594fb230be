"""What each way to spread does to the model, and what it costs, where a cohort is a small part of the classes.

    python benchmarks/spreading.py [ROUNDS]

Generated data of WikiLSHTC-325K's shape, a twenty-fifth of it: 13,002 classes, 300 clients a round, the table of
features alone (d = 128), k = 10; tested on 4,000 held-out training rows. 300 rounds by default, each line in about 4 to
14 seconds of one core. Moments are taken every 10 rounds (auto) where nothing else is said.
"""

import sys
import warnings

import torch

import fedaws
from common import clock
from fedaws.core.mining import nearest

SETTINGS = """
data.name=xc-synthetic data.like=wikilshtc-325k data.scale=0.04 data.validation=4000
model.name=bag model.embedding_dim=128 model.hidden=[]
clients.per_round=300 clients.sampling=examples clients.examples_per_step=1 clients.lr=1.0 clients.class_lr=0.5
server.optimizer=adam server.lr=0.001 server.table_lr=0.3
spread.regularizer=nearest spread.weight=0.1 spread.neighbors=10 spread.center=true spread.whiten=true
train.schedule=linear
""".split()  # noqa: SIM905
VARIANTS = {
    "all classes": "spread.candidates=all",
    "1,024 and what is remembered": "spread.candidates=1024 spread.remember=true",
    "256 and what is remembered": "spread.candidates=256 spread.remember=true",
    "1,024": "spread.candidates=1024",
    "256": "spread.candidates=256",
    "none: moments every round": "spread.regularizer=moments spread.every=1",
    "none: moments every 10 rounds (auto)": "spread.regularizer=moments",
    "none: moments every 40 rounds": "spread.regularizer=moments spread.every=40",
    "all classes, no moments": "spread.candidates=all spread.center=false spread.whiten=false",
    "1,024 and what is remembered, no moments": "spread.candidates=1024 spread.remember=true spread.center=false "
    "spread.whiten=false",
    "1,024, no moments": "spread.candidates=1024 spread.center=false spread.whiten=false",
}


def nearest_cosine(W: torch.Tensor) -> float:
    """The mean cosine of a class and its nearest one, over every ninth class."""
    some = torch.arange(0, len(W), 9)
    return float((W[some] * W[nearest(W, some, None, 1).squeeze(1)]).sum(1).mean())


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    warnings.filterwarnings("ignore", "classes have collapsed")  # some of 13,002 always lie close together
    print("| mined among | P@1 | P@3 | P@5 | PSP@1 | cosine to the nearest class | seconds |\n" + "|---" * 7 + "|")
    for name, settings in VARIANTS.items():
        ends = [f"train.rounds={rounds}", f"train.evaluate_every={rounds}"]
        started = clock()
        run = fedaws.train(config=fedaws.Config().override([*SETTINGS, *settings.split(), *ends]))
        seconds, last = clock() - started, run.metrics[-1]
        figures = [f"{last[key]:.3f}" for key in ("precision@1", "precision@3", "precision@5", "psp@1")]
        print(f"| {name} | {' | '.join(figures)} | {nearest_cosine(run.W):.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
