"""arXiv authors: who wrote this abstract? A data set of 248,544 classes, made of public metadata.

    git clone --bare https://github.com/staeiou/arxiv_archive
    python benchmarks/make_arxiv_authors.py arxiv_archive.git DIR/arxiv-authors

Writes train.txt and test.txt in the text format of the Extreme Classification Repository; `FEDAWS_DATA=DIR` finds them.
It takes 2 GB of memory and some minutes. Of the archive (at commit f043eb1) only files of up to 4 MiB are read, 265 of
404: the larger ones were not at hand when the set was first made. Each paper counts once; an author is a name without
accents and points. Test papers are a random fifth; authors have at least two training papers, papers at most 20
authors. An example is the tf-idf of a paper's words (those of the title count twice more), its 30 heaviest, at unit
length. It gives 552,480 training and 130,733 test rows, 69,814 features, 248,544 labels, 2.47 of them a row, 5.5 rows a
label; SHA-256 of train.txt begins with c3f1e775, of test.txt with df497140. The idf is pooled: public statistics, which
no client could have computed.
"""

import argparse
import csv
import io
import lzma
import math
import random
import re
import subprocess
import unicodedata
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FORMULA = re.compile(r"\$[^$]*\$|\\[a-zA-Z]+")  # between dollars, or a command of TeX
WORD = re.compile(r"[a-z]{2,}")
NOT_LETTERS = re.compile(r"[^a-z]+")
LARGEST = 4 << 20  # bytes of a file
LEAST_PAPERS, MOST_AUTHORS = 2, 20
RAREST, MOST_FREQUENT, HEAVIEST = 5, 0.05, 30  # papers with a word; share of papers with it; words of a paper


class Paper(NamedTuple):
    """Who wrote it, and how often it has which word, by the words' numbers."""

    authors: tuple[str, ...]
    words: "array[int]"
    counts: "array[int]"


def papers(git_dir: str, number: dict[str, int]) -> Iterator[Paper]:
    """Every paper once; the dump of 2020 before that of 2019. Words are numbered as they come."""
    seen, known = set[str](), dict[str, str]()
    for path, blob in sorted(_files(git_dir), key=lambda file: ("20190101" in file[0], file[0])):
        for row in csv.DictReader(io.StringIO(_text(git_dir, path, blob)), delimiter="\t"):
            if row["arxiv_id"] in seen:
                continue
            seen.add(row["arxiv_id"])
            names = re.sub(r"\s+", " ", row.get("author_text") or "").split(",")
            authors = {NOT_LETTERS.sub(" ", without_accents(name)).strip() for name in names}
            authors = {author for author in authors if " " in author and len(author) > 4}
            if 0 < len(authors) <= MOST_AUTHORS:
                words = Counter(_words(row.get("abstract")))
                for word in _words(row.get("title")):
                    words[word] += 2
                numbers = (number.setdefault(word, len(number)) for word in words)
                once = (known.setdefault(author, author) for author in sorted(authors))  # each name in memory once
                yield Paper(tuple(once), array("I", numbers), array("I", words.values()))


def without_accents(text: str) -> str:
    """Small letters without accents."""
    if text.isascii():
        return text.lower()
    letters = unicodedata.normalize("NFKD", text.lower())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _words(text: str | None) -> list[str]:
    return WORD.findall(FORMULA.sub(" ", without_accents(text or "")))


def _files(git_dir: str) -> list[tuple[str, str]]:
    """Paths and blobs; a blob that a partial clone lacks has no size."""
    command = _git(git_dir, "ls-tree", "-r", "-l", "HEAD")
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    files = []
    for about, path in (line.split("\t") for line in listing.splitlines()):
        _, _, blob, size = about.split()
        if ("per_category" in path or "per_year" in path) and size.isdigit() and int(size) <= LARGEST:
            files.append((path, blob))
    return files


def _text(git_dir: str, path: str, blob: str) -> str:
    raw = subprocess.run(_git(git_dir, "cat-file", "blob", blob), capture_output=True, check=True).stdout
    if path.endswith(".xz"):
        return lzma.decompress(raw).decode("utf8", "replace")
    archive = zipfile.ZipFile(io.BytesIO(raw))
    return archive.read(archive.namelist()[0]).decode("utf8", "replace")


def _git(git_dir: str, *words: str) -> list[str]:
    return ["git", f"--git-dir={git_dir}", *words]


def write(docs: list[Paper], number: dict[str, int], folder: Path) -> None:
    """Both parts."""
    rng = random.Random(20200101)
    tested = [rng.random() < 0.2 for _ in docs]
    counts = Counter(author for doc, test in zip(docs, tested, strict=True) if not test for author in doc.authors)
    label = {author: n for n, author in enumerate(sorted(a for a, count in counts.items() if count >= LEAST_PAPERS))}
    kept = [n for n, doc in enumerate(docs) if any(author in label for author in doc.authors)]
    train = [n for n in kept if not tested[n]]
    frequency = Counter(word for n in train for word in docs[n].words)
    enough, most = RAREST, MOST_FREQUENT * len(train)
    words = sorted(word for word, n in number.items() if enough <= frequency[n] <= most)
    feature = {number[word]: n for n, word in enumerate(words)}
    rarity = {n: math.log(len(train) / frequency[n]) for n in feature}
    folder.mkdir(parents=True, exist_ok=True)
    for part, wanted in (("train", False), ("test", True)):
        lines = []
        for doc in (docs[n] for n in kept if tested[n] == wanted):
            labels = sorted({label[author] for author in doc.authors if author in label})
            weights = _weights(doc, feature, rarity)
            if weights and labels:
                lines.append(",".join(map(str, labels)) + " " + " ".join(f"{n}:{value:.3f}" for n, value in weights))
        random.Random(0).shuffle(lines)
        head = f"{len(lines)} {len(words)} {len(label)}"
        (folder / f"{part}.txt").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
        print(part, head)


def _weights(doc: Paper, feature: dict[int, int], rarity: dict[int, float]) -> list[tuple[int, float]]:
    """The heaviest words by number, at unit length."""
    counted = zip(doc.words, doc.counts, strict=True)
    entries = [(feature[word], (1 + math.log(count)) * rarity[word]) for word, count in counted if word in feature]
    heaviest = sorted(sorted(entries, key=lambda entry: -entry[1])[:HEAVIEST])
    length = math.sqrt(sum(value**2 for _, value in heaviest)) or 1.0
    return [(n, value / length) for n, value in heaviest if round(value / length, 3) > 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("git_dir")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    csv.field_size_limit(10**9)
    number = dict[str, int]()
    write(list(papers(args.git_dir, number)), number, args.folder)


if __name__ == "__main__":
    main()
