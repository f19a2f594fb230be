"""Every reader of outside bytes: sound files to begin with, and what is done with them."""

import io
import json
import pickle
import random
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from PIL import Image
from safetensors.numpy import load, save

import fedaws
from conftest import TINY
from fedaws import config as configuration
from fedaws.config import Config, from_toml
from fedaws.data import load_data
from fedaws.data.label_sets import Split, from_sparse
from fedaws.data.sources.array_cache import cached
from fedaws.data.sources.cifar import SETS, cifar
from fedaws.data.sources.images import images
from fedaws.data.sources.xc import read_part, some_rows, to_arrays, to_split
from fedaws.data.sources.xc_text import read_text
from fedaws.evaluate.trials import compared, read_scores, read_trials
from fedaws.flower.federation import Member, read_federation, write_federation
from fedaws.flower.settings import run_settings
from fedaws.privacy.sum_keeper import PEERS_FILE, Peers, SumKeeper, make_key, write_peers
from fedaws.record.folder import RunFolder
from fedaws.report.collect import collect
from fedaws.report.run_data import class_matrix, traces
from fedaws.sparse import SparseRows
from fuzz.mutations import mutated

Damage = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Reader:
    """How sound files are made in a folder, which of them are damaged and how, and how they are read."""

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    files: str = "*"  # those that are damaged, one at a time
    damage: Damage = mutated


# --- damage that checksums and lengths do not give away ---------------------------------------------------------------


def inside_npz(rng: random.Random, content: bytes) -> bytes:
    """One array damaged, and the archive made anew around it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = rng.choice(sorted(members))
    header = members[chosen][:128]
    body = members[chosen][128:]
    members[chosen] = mutated(rng, header) + body if rng.random() < 0.7 else header + mutated(rng, body)
    packing = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


def inside_safetensors(rng: random.Random, content: bytes) -> bytes:
    """The header damaged and its length put right, or the content of the tensors alone."""
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length]
    data = content[8 + length :]
    if rng.random() < 0.7:
        header = mutated(rng, header)
    else:
        data = mutated(rng, data or b"0")
    return struct.pack("<Q", len(header)) + header + data


def with_checksums(rng: random.Random, content: bytes) -> bytes:
    """Arrays of the cache changed by somebody who knows how they are checked."""
    arrays = load(content)
    name = rng.choice(sorted(arrays))
    array = arrays[name].copy()
    match rng.randrange(4):
        case 0 if len(array):
            array[rng.randrange(len(array))] = rng.choice([-1, 0, 1, 7, 2**31 - 1])
        case 1:
            array = array[: rng.randrange(len(array) + 1)]
        case 2:
            array = array.astype(rng.choice(["<f4", "<i4", "<i8", "<f8", "|u1"]))
        case _:
            del arrays[name]
    if name in arrays:
        arrays[name] = np.ascontiguousarray(array)
    sums = {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()}
    return save(arrays, {"format": "fedaws-arrays-1", "key": "k", "checksums": json.dumps(sums)})


# --- the readers ------------------------------------------------------------------------------------------------------

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 3
SPARSE = sp.csr_matrix(np.eye(6, 5, dtype=np.float32))
LABELS = sp.csr_matrix(np.eye(6, 4))


def make_npz(folder: Path) -> None:
    np.savez_compressed(folder / "mine.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)


def read_npz(folder: Path) -> None:
    load_data(Config().override([f"data.name={folder / 'mine.npz'}"]))


def deal_out(matrices: Split) -> None:
    split = to_split(to_arrays(matrices))
    some_rows(split, 2)
    from_sparse(*split, every_label=True)


def make_xc_text(folder: Path) -> None:
    (folder / "train.txt").write_text("4 9 5\n0,3 1:0.5 8:1e-3\n 2:3\n4\n1,2 0:1.25 3:7 4:.5\n")


def make_xc_npz(folder: Path) -> None:
    sp.save_npz(folder / "X.trn.npz", SPARSE)
    sp.save_npz(folder / "Y.trn.npz", LABELS)


def read_xc_npz(folder: Path) -> None:
    deal_out(read_part((folder / "X.trn.npz", folder / "Y.trn.npz")))


def cifar_batch() -> bytes:
    return b"".join(bytes([label]) + bytes(3072) for label in range(10))


def make_cifar(folder: Path) -> None:
    version = SETS["cifar10"].versions[0]
    (folder / version.folder).mkdir()
    for file in (*version.train, version.test):
        (folder / version.folder / file).write_bytes(cifar_batch())
    (folder / version.folder / version.names).write_text("\n".join("abcdefghij"))


def make_cifar_pickle(folder: Path) -> None:
    version = SETS["cifar10"].versions[1]
    (folder / version.folder).mkdir()
    for file in (*version.train, version.test, version.names):
        content = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "label_names": list("abcdefghij")}
        (folder / version.folder / file).write_bytes(pickle.dumps(content, 2))


def make_archive(folder: Path) -> None:
    make_cifar(folder)
    version = SETS["cifar10"].versions[0]
    with tarfile.open(folder / version.archive.name, "w:gz") as tar:
        tar.add(folder / version.folder, version.folder)
    shutil.rmtree(folder / version.folder)


def read_cifar(folder: Path) -> None:
    cifar("cifar10", [folder], folder)


def make_images(folder: Path) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8))
    (folder / "a").mkdir()
    for suffix in ("png", "jpg", "gif", "webp", "tif", "bmp", "ppm"):
        picture.save(folder / "a" / f"{suffix}.{suffix}")


def split() -> Split:
    ints = torch.arange(6, dtype=torch.int32) % 4
    starts = torch.arange(7)
    return Split(SparseRows(ints, torch.ones(6), starts, 5), SparseRows(ints, None, starts, 4))


def read_cache(folder: Path) -> None:
    found = to_split(cached(folder / "cache.safetensors", "k", lambda: to_arrays(split())))
    some_rows(found, 2)
    from_sparse(*found)


def make_run(folder: Path) -> None:
    """A finished run with a checkpoint; made once, for it takes a second."""
    global _run  # noqa: PLW0603
    if _run is None:
        _run = folder.parent / "run-to-copy"
        data = fedaws.from_arrays(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), np.arange(40) % 4)
        cfg = from_toml(TINY, "tiny.toml").override(["train.rounds=6"])
        fedaws.train(data, config=cfg, folder=_run, reporter=fedaws.Reporter(on_warning=lambda _: None))
    shutil.copytree(_run, folder, dirs_exist_ok=True)


_run: Path | None = None


def read_model(folder: Path) -> None:
    fedaws.load(folder)
    found = collect([folder]).runs[0]
    class_matrix(found, [])
    traces(found, [])


def read_run(folder: Path) -> None:
    collected = collect([folder])
    for run in collected.runs:
        class_matrix(run, [])
    RunFolder(folder).metrics()


def make_federation(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = ec.derive_private_key(7, ec.SECP384R1()).public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    members = [Member(0, 0, "ada", line), Member(1, 1, "grace", line)]
    write_federation(folder / "federation.toml", members, (6,), "float32", "test.npz")


def make_peers(folder: Path) -> None:
    key = make_key(folder)
    write_peers(
        folder, Peers(federation="0" * 32, name="a", min_cohort=2, threshold=0.6, double_masks=True, peers={"a": key})
    )


def make_settings(folder: Path) -> None:
    (folder / "settings").write_text("data.name=digits 'name=a b' train.rounds=3")


def read_settings(folder: Path) -> None:
    text = (folder / "settings").read_text(errors="replace")
    run_settings({"config": "digits", "settings": text}).loaded()


def make_unfinished_run(folder: Path) -> None:
    make_run(folder)
    shutil.rmtree(folder / "model")


def make_config(folder: Path) -> None:
    (folder / "c.toml").write_text(TINY)


def read_xc_text(folder: Path) -> None:
    deal_out(read_text(folder / "train.txt"))


def any_way(rng: random.Random, content: bytes) -> bytes:
    return rng.choice([mutated, inside_safetensors, with_checksums])(rng, content)


def make_trials(folder: Path) -> None:
    (folder / "kaldi").write_text("ada ada/5.wav target\nada bo/1.wav nontarget\n")
    (folder / "voxceleb").write_text("1 ada ada/5.wav\n0 ada bo/1.wav\n")
    (folder / "lfw").write_text("1 1\nAda 1 4\nAda 2 Bo 1\n")


def read_lists(folder: Path) -> None:
    for path in folder.iterdir():
        read_trials(path)


def make_scores(folder: Path) -> None:
    (folder / "scores").write_text("ada/1 ada/5.wav 0.75 target\nada/1 bo/1.wav -1e-3\n")


def read_score_file(folder: Path) -> None:
    compared(read_scores(folder / "scores"))


READERS = {
    "npz": Reader(make_npz, read_npz),
    "npz inside": Reader(make_npz, read_npz, damage=inside_npz),
    "xc text": Reader(make_xc_text, read_xc_text),
    "xc npz": Reader(make_xc_npz, read_xc_npz),
    "xc npz inside": Reader(make_xc_npz, read_xc_npz, damage=inside_npz),
    "cifar binary": Reader(make_cifar, read_cifar, "*/*"),
    "cifar pickle": Reader(make_cifar_pickle, read_cifar, "*/*"),
    "cifar archive": Reader(make_archive, read_cifar),
    "images": Reader(make_images, lambda folder: images(folder, 4), "*/*"),
    "array cache": Reader(read_cache, read_cache, damage=any_way),
    "model": Reader(make_run, read_model, "model/*"),
    "model inside": Reader(make_run, read_model, "model/*", damage=inside_safetensors),
    "checkpoint": Reader(make_unfinished_run, read_model, "checkpoints/*", damage=inside_safetensors),
    "trace": Reader(make_run, read_model, "trace/*", damage=inside_safetensors),
    "metrics": Reader(make_run, read_run, "metrics.jsonl"),
    "details": Reader(make_run, read_run, "details.json"),
    "versions": Reader(make_run, read_run, "made_with.json"),
    "config of a run": Reader(make_run, lambda folder: RunFolder(folder).config(), "config.toml"),
    "config": Reader(make_config, lambda folder: configuration.load(str(folder / "c.toml"))),
    "trial lists": Reader(make_trials, read_lists),
    "scores": Reader(make_scores, read_score_file),
    "federation": Reader(make_federation, lambda folder: read_federation(folder / "federation.toml")),
    "flower settings": Reader(make_settings, read_settings),
    "peers": Reader(make_peers, lambda folder: SumKeeper(folder / PEERS_FILE), PEERS_FILE),
}
