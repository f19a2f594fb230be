"""Secure sums: what a node's masks cost, beside the bare key stream that they cannot do without.

    OMP_NUM_THREADS=1 python benchmarks/secure_sums.py

The bare key stream is ChaCha20 of as many bytes as the pair masks have, in one call a peer, and nothing else.
"""

import os

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from common import best_times
from fedaws.privacy import secure_sums
from fedaws.privacy.secure_sums import Masked, Round
from fedaws.privacy.sum_keeper import threshold_of

SIZES = ((10, 15_144), (32, 15_144), (100, 100_000))


def keystream(peers: int, size: int) -> None:
    zeros = bytes(4 * size)
    for _ in range(peers):
        Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(zeros)


def measure(count: int, size: int, double: bool) -> str:
    names = tuple(sorted(f"node-{i}" for i in range(count)))
    keys = {name: X25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    about = Round("benchmark", 1, names, threshold_of(0.6, count), double, bytes(32))
    x, first = np.zeros(size, np.uint32), names[0]

    def mask(name: str) -> Masked:
        return secure_sums.mask(x, about, name, keys[name], public)

    sent = {name: mask(name) for name in names[count // 10 :]}  # a tenth are missing
    openers = list(sent)[: about.threshold]
    letters = {to: {sender: masked.letters[to] for sender, masked in sent.items()} for to in openers}
    opened = {to: secure_sums.open_letters(letters[to], about, to, keys[to], public) for to in openers}
    vectors = {name: masked.vector for name, masked in sent.items()}
    assert not secure_sums.unmask(vectors, about, opened).any()
    last = openers[-1]
    calls = {
        "stream": lambda: keystream(count - 1 + double, size),
        "mask": lambda: mask(first),
        "shares": lambda: secure_sums.split([bytes(16)] * count, about.threshold, count),
        "open": lambda: secure_sums.open_letters(letters[last], about, last, keys[last], public),
        "unmask": lambda: secure_sums.unmask(vectors, about, opened),
    }
    ms = {name: 1e3 * seconds for name, seconds in best_times(calls, turns=5).items()}
    sizes = 4 * size, count * secure_sums.letter_size(about)
    times = " | ".join(f"{ms[name]:.1f}" for name in ("mask", "open", "unmask"))
    parts = " | ".join(f"{100 * ms[name] / ms['mask']:.0f} %" for name in ("stream", "shares"))
    masks = "double" if double else "single"
    return f"| {count} × {size:,} | {masks} | {times} | {parts} | {sizes[0] / 1e3:.0f} + {sizes[1] / 1e3:.0f} kB |"


def main() -> None:
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.2f}; best of five, CPU time of one thread; a tenth of the nodes missing")
    print("| nodes × numbers | masks | a node: mask, ms | open, ms | server: unmask, ms | key stream | shares | sent |")
    print("|---|---|---|---|---|---|---|---|")
    for count, size in SIZES:
        for double in (True, False):
            print(measure(count, size, double), flush=True)


if __name__ == "__main__":
    main()
