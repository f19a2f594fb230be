"""Several utterances at once: EER by the direction of their mean embedding, and by the mean of their scores.

    python benchmarks/asking.py

AudioMNIST as in benchmarks/strangers.py: `fedaws` by its first try and one seed, on the people held out of those who
train in each of the three splits, who are enrolled by five utterances. Prints a line of Markdown for one, three, five.
"""

import statistics
import warnings

import numpy as np
import torch

import fedaws
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import eer
from strangers import SETS, config, federation

ASKED = (1, 3, 5)


def by_scores(embeddings: np.ndarray, people: np.ndarray, ask: int) -> float:
    """EER where the scores of the examples that are asked about together are averaged."""
    z = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    enrolled = np.stack([z[people == person][:5].sum(0) for person in np.unique(people)])
    enrolled /= np.linalg.norm(enrolled, axis=1, keepdims=True)
    own, others = [], []
    for number, person in enumerate(np.unique(people)):
        later = z[people == person][5:]
        whole = later[: len(later) // ask * ask].reshape(-1, ask, z.shape[1])
        scores = (whole @ enrolled.T).mean(1)
        own.append(scores[:, number])
        others.append(np.delete(scores, number, axis=1).ravel())
    return eer(np.concatenate(own), np.concatenate(others))


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "spread.margin|this run sees")
    found = []
    for split in range(SETS["voices"].splits):
        data = federation("voices", split, 0)
        run = fedaws.train(data, None, config(SETS["voices"], "fedaws", 0, seed=0))
        assert data.strangers is not None
        z, people = run.embed(data.strangers.x).numpy(), data.strangers.people.numpy()
        pooled = [comparisons(z, people, ask=ask) for ask in ASKED]
        found.append([(eer(each.targets, each.nontargets), by_scores(z, people, each.ask or 1)) for each in pooled])
    for ask, splits in zip(ASKED, zip(*found, strict=True), strict=True):
        means = [100 * statistics.fmean(column) for column in zip(*splits, strict=True)]
        print(f"| {ask} | {means[0]:.1f} | {means[1]:.1f} |")


if __name__ == "__main__":
    main()
