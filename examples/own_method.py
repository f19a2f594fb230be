"""A method of your own: a client loss, a server regulariser with memory, a torch optimiser, a measure.

    python examples/own_method.py            # half a minute; writes runs/own-method and its report.html

Nothing of the package is edited. The run is stopped half-way and resumed, as after a kill, and ends with the same bits;
then the method is compared with FedAwS on the same data, three seeds each.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import fedaws
from fedaws.core.method import When
from fedaws.core.optimizers import from_torch
from fedaws.report.page import write_report
from fedaws.training.session import Interrupted
from fedaws.types import Memory


def pull(embeddings: Tensor, w: Tensor) -> Tensor:
    """The client's loss of each example: 1 − cos, linear where the paper's is a squared hinge."""
    return 1 - (embeddings * w).sum(-1)


def push_from_average(W: Tensor, classes: Tensor, when: When, rng: torch.Generator, memory: Memory) -> Memory:
    """The server's step: away from every row's own running average of its nearest other row."""
    scores = (W @ W.T).fill_diagonal_(-1)
    memory = {"nearest": memory["nearest"].lerp(W[scores.argmax(1)], 0.5)}
    W.copy_(F.normalize(W - 0.5 * when.factor * memory["nearest"], dim=1))
    return memory


def worst_class(model: fedaws.Model, test: fedaws.TestSet) -> float:
    """The share of right answers in the class that has the fewest."""
    assert isinstance(test.y, Tensor)
    right = model.rank(model.embed(test.x), k=1).classes[:, 0] == test.y
    return min(float(right[test.y == c].float().mean()) for c in test.y.unique())


MINE = fedaws.Method(
    name="pull-and-push",
    role="mine",
    rows="own",  # a client is sent its own row, and trains it
    loss=pull,
    spread=fedaws.Spread(push_from_average, init=lambda W: {"nearest": torch.zeros_like(W)}),
    server=from_torch(lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.01)),
)


def main() -> None:
    """Train, stop, resume, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/own-method"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()

    x, y = load_digits(return_X_y=True)
    data = fedaws.from_arrays(x / 16, y, validation=0.25)
    config = fedaws.Config().with_(name="own-method", train={"rounds": args.rounds, "checkpoint_every": 10})
    measures = {"worst class": worst_class}

    def run(**where: Any) -> fedaws.Run:
        return fedaws.train(data, config=config, method=MINE, measures=measures, **where)

    done: list[int] = []
    half = fedaws.Reporter(
        on_round=lambda number, _: done.append(number), should_stop=lambda: len(done) >= args.rounds // 2
    )
    try:
        run(folder=args.out / "resumed", resume=True, reporter=half)
    except Interrupted as stopped:
        print(f"{stopped}; going on")
    resumed, whole = run(folder=args.out / "resumed", resume=True), run()
    print("the same bits:", resumed.W.equal(whole.W) and all(whole.theta[k].equal(v) for k, v in resumed.theta.items()))

    found = fedaws.compare(
        [MINE, "fedaws", "fixed"],
        data,
        config=config,
        seeds=args.seeds,
        measures=measures,
        folder=args.out / "compared",
        resume=True,
    )
    print(found)
    print("report:", write_report([args.out / "compared"], args.out / "report.html"))


if __name__ == "__main__":
    main()
