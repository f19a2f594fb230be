"""How good is the row of somebody who joins after training? Nine digits and the tenth, 980 synthetic classes and 20.

    python benchmarks/newcomers.py [digits|synthetic]

A newcomer's row is the mean of five embeddings. Of their test examples: the mean cosine to it, the mean cosine to the
nearest other row, and the share that is identified.
"""

import argparse
from statistics import fmean

import torch
from torch import Tensor

import fedaws
from fedaws import Config, Reporter
from fedaws.data.load import load_data

Figures = tuple[float, float, float]
"""Cosine to the own row, to the nearest other, share identified."""


def newcomers(cfg: Config, leave_out: Tensor) -> list[Figures]:
    """Train without some classes, then add each of them by itself."""
    whole = load_data(cfg)
    assert isinstance(whole.x, Tensor)
    assert isinstance(whole.x_test, Tensor)
    assert isinstance(whole.y_test, Tensor)
    known = torch.tensor([c for c in range(whole.num_classes) if c not in leave_out.tolist()])
    number = torch.full((whole.num_classes,), -1).scatter(0, known, torch.arange(len(known)))
    train, test = number[whole.y] >= 0, number[whole.y_test] >= 0
    labels, test_labels = number[whole.y[train]], number[whole.y_test[test]]
    data = fedaws.from_arrays(whole.x[train], labels, whole.x_test[test], test_labels)
    run = fedaws.train(data, config=cfg, reporter=Reporter(on_warning=print))
    print(f"without {leave_out.tolist()}: {100 * run.metrics[-1]['precision@1']:.1f} % of the others", flush=True)
    five = [whole.x[whole.y == c][:5] for c in leave_out]
    tests = [whole.x_test[whole.y_test == c] for c in leave_out]
    return [row_of(run.with_class("new", x), test) for x, test in zip(five, tests, strict=True)]


def row_of(run: fedaws.Run, test: Tensor) -> Figures:
    """The figures of the last row."""
    cosines = run.embed(test) @ run.W.T
    own, other = cosines[:, -1], cosines[:, :-1].amax(1)
    return float(own.mean()), float(other.mean()), float((own > other).double().mean())


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("set", choices=["digits", "synthetic"])
    cfg = fedaws.config.load(arguments.parse_args().set).with_(train={"threads": 1})
    turns = [torch.tensor([c]) for c in range(10)] if cfg.name == "digits" else [torch.arange(980, 1000)]
    found = sorted(figures for turn in turns for figures in newcomers(cfg, turn))
    print("own cosine  nearest other  identified")
    for figures in [*found, tuple(map(fmean, zip(*found, strict=True)))]:
        print("      {:.2f}           {:.2f}        {:5.1%}".format(*figures))
