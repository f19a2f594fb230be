"""Speed of the XC text reader against scikit-learn's svmlight reader, and of the second start from the cache.

    python benchmarks/xc_read.py [FILE]

FILE is in the XC repository's format; without one, 60,000 rows like Amazon-670K's are generated. Ratios within one run.
"""

import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from common import best_times
from fedaws.data.sources.array_cache import cached
from fedaws.data.sources.xc import to_arrays, to_split
from fedaws.data.sources.xc_synthetic import xc_synthetic
from fedaws.data.sources.xc_text import read_text


def generate(folder: Path) -> Path:
    x, labels = xc_synthetic("amazon-670k", 60_000 / 490_449, 0, folder)[0]
    path = folder / "train.txt"
    with path.open("w") as file:
        file.write(f"{len(x)} {x.width} {labels.width}\n")
        for i in range(len(x)):
            row, values = x[i : i + 1], x[i : i + 1].values
            assert values is not None
            pairs = " ".join(f"{f}:{v:.6f}" for f, v in zip(row.indices.tolist(), values.tolist(), strict=True))
            file.write(f"{','.join(map(str, labels[i : i + 1].indices.tolist()))} {pairs}\n")
    return path


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else generate(Path(name))
        cache = Path(name) / "cache.safetensors"
        body = path.read_bytes().partition(b"\n")[2]
        width = int(path.open().readline().split()[1])

        def sklearn_reader() -> None:
            load_svmlight_file(io.BytesIO(body), multilabel=True, zero_based=True, n_features=width, dtype=np.float32)

        def from_cache() -> None:
            to_split(cached(cache, "benchmark", lambda: to_arrays(read_text(path))))

        readers = {"sklearn": sklearn_reader, "fedaws": lambda: read_text(path), "cache": from_cache}
        times = best_times(readers, turns=3)
    size = len(body) / 1e6
    print(f"load {os.getloadavg()[0]:.2f}; {path.name}, {size:.0f} MB, best of 3 turns")
    for reader, seconds in times.items():
        print(f"{reader:8s} {seconds:7.3f} s  {size / seconds:8.1f} MB/s  {times['sklearn'] / seconds:6.1f} x sklearn")


if __name__ == "__main__":
    main()
