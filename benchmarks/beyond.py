"""What rounds with 10⁷ and 10⁸ classes would take, on paper, from constants measured here; and how well the same
arithmetic tells what was measured at two sizes.

    python benchmarks/beyond.py [--measure] [--ranks FILE …]

`--measure` takes the constants anew, one thread, a minute of CPU time; `--ranks` are figures of `benchmarks/ranks.py`
(its `--json`) to check against. Both are kept in docs/results/beyond.json, of which docs/results/beyond.md is made.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from common import best_times
from fedaws.config import Config, load
from fedaws.core import algorithm, spreadout
from fedaws.core.attendance import attendance_of
from fedaws.core.embedding_tables import step_table_
from fedaws.core.methods import method_of
from fedaws.data import load_data
from fedaws.machine.memory import keep_freed_memory, return_freed_memory
from fedaws.models import build_encoder
from fedaws.ranks import Ranks, own_examples
from fedaws.runners import make_runner
from fedaws.runners.common import ClientData
from fedaws.training.train import initial_state

PLACE = Path(__file__).parents[1] / "docs/results/beyond.json"
K, CANDIDATES = 10, 2_048
CORES, BUSY, NETWORK_SHARE = 32, 0.8, 0.8  # of a machine on paper: not measured
_DRAWN = ("a client drawn", "a candidate drawn", "a class there")
AMAZON = {"classes": 670_091, "features": 135_909, "examples": 490_449, "entries": 75.7}


@dataclass(frozen=True)
class Setting:
    """A run on N processes, each with so many cores and a wire of so many bytes a second (0: loopback, measured)."""

    classes: int
    features: int
    examples: int  # of all clients
    entries: float  # of an example
    cohort: int
    ranks: int
    dim: int = 512
    hidden: int = 1024
    cores: float = 1.0
    wire: float = 0.0

    @property
    def weights(self) -> int:
        """Of the dense layers."""
        return self.dim * self.hidden + self.hidden**2 + self.hidden * self.dim


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def memory_gb(s: Setting, c: dict[str, float]) -> dict[str, float]:
    """What a process has in its rounds, by part."""
    rows, n = 4 * s.dim, s.ranks
    parts = {
        "W": s.classes * rows / n,
        "remembered neighbours": s.classes * 4 * K / n,
        "table": s.features * (rows + 4) / n,
        "examples": s.examples * (8 * s.entries + c["bytes an example"]) / n,
        "facts of every client": s.classes * c["bytes a client"],
        "a round's buffers": 8 * s.cohort * rows + 5 * 4 * s.weights + c["bytes of a pass"],
        "Python and PyTorch": c["bytes of a process"],
    }
    return {name: size / 1e9 for name, size in parts.items()}


def megabytes(s: Setting) -> dict[str, float]:
    """What a process receives in a round, by part (one example a client, the paper's encoder)."""
    if s.ranks == 1:
        return {}
    rows, elsewhere = 4 * s.cohort * s.dim, (s.ranks - 1) / s.ranks
    parts = {
        "rows sent and trained": 2 * rows * elsewhere,
        "dense layers": 2 * 4 * s.weights * elsewhere,
        "bags: features, sums, gradients": (8 * s.entries * s.cohort / s.ranks + 2 * rows) * elsewhere,
        "mining: candidates, queries, lists": (4 * CANDIDATES * s.dim + rows + 4 * s.cohort * 14 * K) * elsewhere,
        "pair sums": 2 * rows * elsewhere,
    }
    return {name: size / 1e6 for name, size in parts.items()}


def seconds(s: Setting, c: dict[str, float]) -> dict[str, float]:
    """What a round takes a process, by part."""
    n, cores, flops = s.ranks, s.cores, c["flop a second"] * s.cores
    every = max(1, round(s.classes / (4 * s.cohort)))
    received = 1e6 * sum(megabytes(s).values())
    return {
        "clients": s.cohort * c["a client"] / n / cores,
        "mining and pairs": s.cohort * c["a class mined"] / n / cores,
        "table and layers": (s.cohort * c["a client's table rows"] / n + s.weights * c["a weight's step"]) / cores,
        "centring, its share": 3 * 4 * s.classes * s.dim / n / c["bytes a second"] / min(cores, 8) / every,
        "whitening too, its share": 4 * s.classes * s.dim**2 / n / flops / every,
        "drawing clients and candidates": s.classes
        * (c["a client drawn"] + c["a candidate drawn"] + c["a class there"]),
        "messages": received / s.wire if s.wire else received * c["a byte on loopback"],
    }


# --- the constants ----------------------------------------------------------------------------------------------------


def process_bytes() -> float:
    (own,) = re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(own) * 1024.0


def measured() -> dict[str, float]:
    """All constants, on one thread: seconds, bytes."""
    torch.set_num_threads(1)
    keep_freed_memory()
    found = {"bytes of a process": process_bytes()}
    found |= _hardware() | _clients() | _draws() | {"a byte on loopback": _loopback()}
    return found


def _hardware() -> dict[str, float]:
    a, b, out = torch.randn(1000, 512), torch.randn(4000, 512), torch.empty(1000, 4000)
    far, numbers = torch.randn(100_000, 512), torch.randn(2_000_000)
    m, v = numbers.clone(), numbers.square()
    times = best_times(
        {
            "product": lambda: torch.mm(a, b.T, out=out),
            "stream": lambda: far.mul_(1.0),
            "adam": lambda: numbers - 1e-3 * m.lerp_(numbers, 0.1) / (v.lerp_(numbers.square(), 0.001).sqrt() + 1e-8),
        },
        turns=3,
    )
    return {
        "flop a second": 2 * 1000 * 4000 * 512 / times["product"],
        "bytes a second": 2 * far.nbytes / times["stream"],
        "a weight's step": times["adam"] / len(numbers),
    }


def _configured() -> Config:
    more = ["data.name=xc-synthetic", "data.scale=0.03", "data.test_examples=50", "clients.per_round=1000"]
    return load("amazon-670k").override([*more, "train.schedule=constant"])


def _clients() -> dict[str, float]:
    """Amazon-670K's shape × 0.03: what a client, a mined class and an example cost does not depend on how many are."""
    cfg = _configured()
    data = load_data(cfg)
    return_freed_memory()
    encoder, method = build_encoder(cfg.model, data.x.shape[1:], cfg.seed), method_of(cfg)
    state = initial_state(cfg, data, encoder, shared=True)
    run_clients, rng = make_runner(cfg, method, data, encoder), torch.Generator().manual_seed(0)
    cohort = algorithm.sample_clients(data.available, cfg.clients, rng, data.num_examples)
    sent = algorithm.broadcast(state, cohort)
    (update,) = run_clients(sent)
    table, of_table, squares = state.theta["table"].clone(), update.delta["table"], dict[str, torch.Tensor]()
    W = torch.nn.functional.normalize(torch.randn(131_072, 512), dim=1)
    classes = torch.randperm(len(W))[:1000].sort().values
    known = torch.randint(len(W), (len(W), K), dtype=torch.int32)
    before = process_bytes()
    times = best_times(
        {
            "pass": lambda: list(run_clients(sent)),
            "table": lambda: step_table_("table", table, of_table, squares, cfg.server, 1.0),
            "mined": lambda: spreadout.spread_(
                W, classes, cfg.spread, 1.0, rng, moments_due=False, memory={spreadout.NEIGHBORS: known}
            ),
        },
        turns=3,
    )
    share = own_examples(data, Ranks(0, 1))
    owners = [vars(share), vars(ClientData(cfg, method, share.own)), vars(ClientData(cfg, method, share.own)._plan)]
    owners.append(vars(attendance_of(cfg, data.num_classes)))
    tensors = {id(t): t for owner in owners for t in owner.values() if isinstance(t, torch.Tensor)}
    of_clients = [t for t in tensors.values() if t.shape[:1] in {(len(data.class_of),), (len(data.class_of) + 1,)}]
    of_examples = [t for t in tensors.values() if t.shape[:1] == (len(data.y),)]
    return {
        "a client": times["pass"] / 1000,
        "a client's table rows": times["table"] / 1000,
        "a class mined": times["mined"] / 1000,
        "bytes of a pass": max(0.0, process_bytes() - before),
        "bytes a client": sum(t.nbytes for t in of_clients) / len(data.class_of),
        "bytes an example": 8 + sum(t.nbytes for t in of_examples) / len(data.y),
    }


def _draws(count: int = 1_000_000) -> dict[str, float]:
    cfg, rng = _configured(), torch.Generator().manual_seed(0)
    clients, examples = torch.arange(count), torch.ones(count)
    there = attendance_of(cfg, count)
    times = best_times(
        {
            "a client drawn": lambda: algorithm.sample_clients(clients, cfg.clients, rng, examples),
            "a candidate drawn": lambda: spreadout.sample_candidates(cfg.spread, count, rng, clients.device),
            "a normal number": lambda: torch.randn(count, generator=rng),
            "a class there": lambda: [bool(there.present(1).all()) for _ in range(3)],
        },
        turns=2,
    )
    return {name: seconds / count for name, seconds in times.items()}


def _loopback() -> float:
    """CPU seconds a byte received, in all-gathers of 8 MB between two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, __file__, "--talk"]
    two = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    return max(float(process.communicate()[0]) for process in two)


def talk() -> None:
    """One of the two processes."""
    dist.init_process_group("gloo")
    part = torch.zeros(1_000_000)
    whole = [torch.empty_like(part) for _ in range(2)]
    dist.all_gather(whole, part)
    began = time.process_time()
    for _ in range(10):
        dist.all_gather(whole, part)
    print((time.process_time() - began) / (10 * part.nbytes))
    dist.destroy_process_group()


# --- the page ---------------------------------------------------------------------------------------------------------


def checks(results: dict[str, Any]) -> list[str]:
    """Told and measured, at the sizes of `benchmarks/ranks.py`."""
    lines = [
        "| classes | processes | CPU s a round: told | measured | | memory MB: told | measured | |",
        "|---" * 8 + "|",
    ]
    for run in results["ranks"]:
        for name, ranks in (("one", 1), ("rank", run["ranks"])):
            sizes = {key: round(run["scale"] * AMAZON[key]) for key in ("classes", "features", "examples")}
            s = Setting(**sizes, entries=AMAZON["entries"], cohort=4_000, ranks=ranks)
            told = sum(v for part, v in seconds(s, results["constants"]).items() if not part.startswith("whitening"))
            memory = 1e9 / 2**20 * sum(memory_gb(s, results["constants"]).values())
            cpu, held = run["cpu"][name], run["RssAnon MB"][name]
            lines.append(
                f"| {s.classes:,} | {ranks} | {told:.2f} | {cpu:.2f} | {told / cpu:.2f} "
                f"| {memory:,.0f} | {held:,.0f} | {memory / held:.2f} |"
            )
    return lines


def on_paper(classes: int, cohort: int, machines: int, gigabits: float) -> Setting:
    """Five examples a class and a million features; a machine is one process."""
    return Setting(
        classes, 1_000_000, 5 * classes, AMAZON["entries"], cohort, machines,
        cores=CORES * BUSY, wire=NETWORK_SHARE * gigabits * 1e9 / 8,
    )  # fmt: skip


_PAGE = """# Ten and a hundred million classes, on paper

Nobody has run this. `python benchmarks/beyond.py` multiplies constants that were measured on one thread of a busy
machine, and says below how far the same arithmetic is off where it was run. Examples are of Amazon-670K's kind (76 of a
million features, the paper's encoder, d = 512, one example a client and round), five for each class. A machine is one
process on {cores} cores, {busy:.0%} of which are of use, and {wire:.0%} of its wire: these three are assumed.

## The constants

{constants}

## Told and measured

The rounds of `benchmarks/ranks.py`. Messages over loopback cost CPU time and no wire; memory is a process's own.

{checks}

Received by a rank of two in a round of 2,000 clients, 13,402 classes: told {told:.1f} MB, counted 25.7 (once, by a
script that is not kept). So add a quarter to a half to what is told of memory, and up to a third to time at many
classes, whose rows are further away than a cache; where the memory goes that the arithmetic leaves out was not traced.

## Memory of a machine, GB

{memory}

## What a machine receives in a round, MB

{received}

The same at 10⁸: a round's bytes do not depend on the number of classes.

## Milliseconds a round

{times}

## What breaks first, and what would mend it

1. **Drawing.** Clients and candidates are drawn by a random number for every class, on every rank and one core:
   {draw7:.2f} s a round at 10⁷, {draw8:.1f} s at 10⁸. Drawing numbers and leaving out those that came before takes time
   by the cohort alone and follows the same law; it changes which clients a seed draws.
2. **Facts of every client on every rank**, {client:.0f} bytes each: {facts:.0f} GB at 10⁸. A rank needs those of its
   own clients; only the numbers of examples have to be known everywhere, and by such a draw not even these.
3. **Examples, not W, are the largest part**: {examples:.0f} GB on each of 16 machines at 10⁸, against {rows:.0f} of W.
   They are only read: a cache sorted by client, and mapped, would leave them on the disk. Today each rank reads the
   whole set when it starts, and keeps its part.
4. **The wire.** On 16 machines with 25 Gbit/s messages are {share:.0%} of a round's time beside drawing. [clients, d]
   reaches every machine seven times; half precision for what only mining reads, and pair sums to the rows' owners
   alone, would save about a third.
5. **Exact mining** of 65,536 classes among 10⁸ takes {exact:,.0f} s on 16 machines: nothing for CPUs. Mining among what
   is remembered takes {mined:.0f} ms.
6. **W⁰** is drawn by every rank from one generator: {start7:.0f} s at 10⁷, {start8:.0f} s at 10⁸. A generator for each
   block of rows would share it out.
"""


def page(results: dict[str, Any]) -> str:
    """docs/results/beyond.md."""
    c = results["constants"]
    large = on_paper(10**8, 65_536, 16, 25)
    memory, times = memory_gb(large, c), seconds(large, c)
    drawing = times.pop("drawing clients and candidates")
    sizes = [on_paper(classes, 65_536, machines, 25) for classes in (10**7, 10**8) for machines in (1, 4, 16)]
    sent = [on_paper(10**7, cohort, machines, 25) for cohort in (4_000, 65_536) for machines in (4, 16)]
    return _PAGE.format(
        cores=CORES,
        busy=BUSY,
        wire=NETWORK_SHARE,
        constants="\n".join(
            ["| | |", "|---|---|", *(f"| {name} | {_shown(name, value)} |" for name, value in c.items())]
        ),
        checks="\n".join(checks(results)),
        memory=_table(sizes, lambda s: memory_gb(s, c), "classes / machines", lambda s: f"{_power(s)} / {s.ranks}"),
        received=_table(sent, megabytes, "clients / machines", lambda s: f"{s.cohort:,} / {s.ranks}"),
        times=_table(
            [on_paper(*setting) for setting in _SETTINGS],
            lambda s: {name: 1000 * v for name, v in seconds(s, c).items()},
            "classes / clients / machines / Gbit/s",
            lambda s: f"{_power(s)} / {s.cohort:,} / {s.ranks} / {s.wire * 8e-9 / NETWORK_SHARE:.0f}",
        ),
        told=sum(megabytes(Setting(13_402, 2_718, 9_809, AMAZON["entries"], 2_000, 2)).values()),
        draw7=drawing / 10,
        draw8=drawing,
        client=c["bytes a client"],
        facts=memory["facts of every client"],
        examples=memory["examples"],
        rows=memory["W"],
        share=times["messages"] / sum(times.values()),
        exact=2 * 65_536 * 10**8 * 512 / (16 * c["flop a second"] * CORES * BUSY),
        mined=1000 * times["mining and pairs"],
        start7=10**7 * 512 * c["a normal number"],
        start8=10**8 * 512 * c["a normal number"],
    )


_SETTINGS = (
    (10**7, 4_000, 1, 25),
    (10**7, 4_000, 4, 25),
    (10**7, 65_536, 4, 25),
    (10**7, 65_536, 4, 100),
    (10**8, 65_536, 4, 25),
    (10**8, 65_536, 16, 25),
    (10**8, 65_536, 16, 100),
)


def _table(
    settings: list[Setting],
    parts_of: Callable[[Setting], dict[str, float]],
    head: str,
    name: Callable[[Setting], str],
) -> str:
    found = [parts_of(s) for s in settings]
    lines = [f"| {head} | " + " | ".join(map(name, settings)) + " |", "|---" * (len(settings) + 1) + "|"]
    for part in found[0]:
        lines.append(f"| {part} | " + " | ".join(f"{parts[part]:,.1f}" for parts in found) + " |")
    lines.append("| all | " + " | ".join(f"{sum(parts.values()):,.1f}" for parts in found) + " |")
    return "\n".join(lines)


def _power(s: Setting) -> str:
    return {10**7: "10⁷", 10**8: "10⁸"}[s.classes]


def _shown(name: str, value: float) -> str:
    if name == "bytes a second":
        return f"{value / 1e9:.1f} GB/s"
    if name == "flop a second":
        return f"{value / 1e9:.0f} GFLOP/s"
    if name.startswith("bytes of"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f} bytes" if name.startswith("bytes") else f"{value * 1e9:,.2f} ns"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--ranks", type=Path, nargs="*", default=[])
    parser.add_argument("--talk", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.talk:
        talk()
        return
    results = json.loads(PLACE.read_text(encoding="utf-8")) if PLACE.exists() else {"constants": {}, "ranks": []}
    if args.measure:
        results["constants"] = measured()
    if args.ranks:
        kept = ("scale", "ranks", "cpu", "RssAnon MB")
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in args.ranks]
        results["ranks"] = [{key: run[key] for key in kept} for run in runs]
    PLACE.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    PLACE.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
