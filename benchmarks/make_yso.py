"""Make yso-finna-en, the titles and subjects of a library, from the public Annif corpora.

    git clone https://github.com/NatLibFi/Annif-corpora
    python benchmarks/make_yso.py Annif-corpora/subjects/yso-finna-en DEST/xc/yso-finna-en [--no-pool]

A file of that folder is a subject: its name, its words, then the titles that have it, one a line. Here a title is an
example and its subjects are its labels.

- A fifth of the titles is for testing, by the SHA-256 of the title: neither order nor other titles matter.
- Labels are the subjects with ten training titles or more; a title without any is left out.
- Features are words of two letters or more: TF-IDF of the words that stand in five training titles or more, unit rows.

Vocabulary and idf are counted over the pool of all training titles, which no client could do: they are meant as public
statistics of a language. `--no-pool` makes a version without any: each word is hashed to one of 2¹⁶ features (SHA-256),
weighted 1 + log(times in the title), unit rows; which words there are and how rare they are, nobody needs to know.
The folder's own checksum is compared with that of the version that was measured; other versions make other data.
"""

import argparse
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

LEAST_TITLES, LEAST_ROWS = 10, 5
BUCKETS = 2**16
MEASURED = "commit ce2469d of 2025-08-13"
CHECKSUM = "0be9c46f74305798adf324ac0fc341f81f73448b945280cd554b8768951e26ef"

WORD = re.compile(r"[^\W\d_]{2,}")
Weights = dict[int, float]


def digest(text: str) -> int:
    """A number of 64 bits that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def checksum(folder: Path) -> str:
    """SHA-256 of all names and contents."""
    total = hashlib.sha256()
    for place in sorted(folder.glob("*.txt")):
        total.update(f"{place.name} {hashlib.sha256(place.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def titles_of(folder: Path) -> dict[str, set[str]]:
    """The subjects of every title; after a subject's own first two lines each line is a title."""
    subjects: dict[str, set[str]] = defaultdict(set)
    for place in sorted(folder.glob("*.txt")):
        for line in place.read_text(encoding="utf-8").split("\n")[2:]:
            if title := " ".join(line.split()):
                subjects[title].add(place.stem)
    return subjects


def words_of(title: str) -> Counter[str]:
    """How often each word stands in a title."""
    return Counter(WORD.findall(title.lower()))


def unit(weights: Weights) -> Weights:
    """The same direction at length 1; without what would be written as zero."""
    length = math.sqrt(sum(w * w for w in weights.values())) or 1.0  # a word of every title weighs nothing
    return {feature: w / length for feature, w in sorted(weights.items()) if round(w / length, 4) > 0}


def pooled_features(titles: Iterable[str]) -> tuple[int, Callable[[str], Weights]]:
    """TF-IDF with the words and counts of these titles."""
    rows = Counter(word for title in titles for word in words_of(title))
    count = sum(1 for _ in titles)
    place = {word: i for i, word in enumerate(sorted(word for word, n in rows.items() if n >= LEAST_ROWS))}

    def features(title: str) -> Weights:
        counts = {word: n for word, n in words_of(title).items() if word in place}
        return unit({place[word]: (1 + math.log(n)) * math.log(count / rows[word]) for word, n in counts.items()})

    return len(place), features


def hashed_features(title: str) -> Weights:
    """The words of a title, each at a place that its hash gives."""
    weights: Weights = defaultdict(float)
    for word, n in words_of(title).items():
        weights[digest(word) % BUCKETS] += 1 + math.log(n)
    return unit(weights)


def write(place: Path, rows: list[tuple[list[int], Weights]], features: int, labels: int) -> None:
    """XC text: a line of sizes, then a line per example."""
    with place.open("w", encoding="utf-8") as out:
        out.write(f"{len(rows)} {features} {labels}\n")
        for own, weights in rows:
            cells = " ".join(f"{feature}:{weight:.4f}" for feature, weight in weights.items())
            out.write(f"{','.join(map(str, own))} {cells}\n")
    print(place.name, len(rows), features, labels, hashlib.sha256(place.read_bytes()).hexdigest())


def make(subjects: Mapping[str, set[str]], dest: Path, pool: bool = True) -> None:
    """Write train.txt and test.txt."""
    ordered = sorted(subjects, key=digest)
    parts = {"train": [t for t in ordered if digest(t) % 5], "test": [t for t in ordered if digest(t) % 5 == 0]}
    counts = Counter(subject for title in parts["train"] for subject in subjects[title])
    label = {subject: i for i, subject in enumerate(sorted(s for s, n in counts.items() if n >= LEAST_TITLES))}
    labels_of = {title: sorted(label[s] for s in subjects[title] if s in label) for title in ordered}
    labelled = {part: [title for title in titles if labels_of[title]] for part, titles in parts.items()}
    width, features = pooled_features(labelled["train"]) if pool else (BUCKETS, hashed_features)
    dest.mkdir(parents=True, exist_ok=True)
    for part, titles in labelled.items():
        rows = [(labels_of[title], weights) for title in titles if (weights := features(title))]
        write(dest / f"{part}.txt", rows, width, len(label))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--no-pool", action="store_true", help="no statistics over all titles")
    chosen = parser.parse_args()
    subjects = titles_of(chosen.folder)
    if not subjects:
        raise SystemExit(f"{chosen.folder}: no titles; wanted the folder subjects/yso-finna-en of Annif-corpora")
    if (found := checksum(chosen.folder)) != CHECKSUM:
        print(f"note: the folder's checksum is {found}, not that of {MEASURED}: figures will differ")
    make(subjects, chosen.dest, not chosen.no_pool)


if __name__ == "__main__":
    main()
