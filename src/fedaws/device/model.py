"""An exported encoder on a device: `encoder.onnx` run by onnxruntime, `model.json` that says what it is."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedaws.device import store
from fedaws.device.errors import DeviceError
from fedaws.device.gallery import MIN_COHESION, Gallery
from fedaws.device.gallery_file import Person
from fedaws.device.sound import Samples, read_sound

FORMAT = "fedaws-device-1"
MODEL, ENCODER, PEOPLE = "model.json", "encoder.onnx", "people.safetensors"
"""The files of an exported folder; the last holds whoever is enrolled."""
SPARSE_INPUTS = ("features", "rows", "weights", "blank")
"""What an encoder of sparse examples is given: their entries, and a zero for every example."""
_LARGEST = {MODEL: 1 << 20, ENCODER: 1 << 31}  # bytes
_BLOCK = 256  # examples at a time


@dataclass(frozen=True)
class About:
    """What model.json says."""

    digest: str  # of the weights and the kind of example
    dim: int  # of an embedding
    shape: tuple[int, ...]  # of one example
    dtype: str  # float32, or uint8: bytes, which the model itself divides by 255
    encoder_sha256: str
    threshold: float | None  # measured, if it was
    sample_rate: int | None = None  # of waveforms, where examples are such
    sparse: bool = False  # whether examples are rows of a sparse matrix
    ask: int | None = None  # examples at once that the threshold was measured with, if that is known


class Device:
    """Embeds examples and keeps who is enrolled. Load it by :meth:`load`.

    All methods take examples [n, …] of one person, of the shape and type of the training examples.
    """

    def __init__(self, about: About, session: Any, gallery: str | Path) -> None:
        self.about, self._session = about, session
        self.digest, self.dim = about.digest, about.dim
        self.gallery = Gallery(gallery, about.digest, about.dim, about.threshold, about.ask)

    @classmethod
    def load(cls, folder: str | Path, gallery: str | Path | None = None) -> "Device":
        """The model of a folder by `fedaws export`; people are kept in its people.safetensors or in `gallery`.

        The encoder is a program that runs: load only what you trust.
        """
        place = Path(folder)
        about = read_about(place)
        content, _ = store.read(place / ENCODER, _LARGEST[ENCODER])
        if hashlib.sha256(content).hexdigest() != about.encoder_sha256:
            raise DeviceError(f"{place / ENCODER} is not the encoder that {MODEL} speaks of; export again")
        session = _session(content, place / ENCODER, SPARSE_INPUTS if about.sparse else ("x",))
        return cls(about, session, gallery or place / PEOPLE)

    def embed(self, x: ArrayLike) -> NDArray[np.float32]:
        """g(x) of examples [n, …], for a model of sparse ones a matrix of scipy's; [n, d]."""
        inputs = self._sparse_blocks(x) if self.about.sparse else self._blocks(x)
        blocks = [self._session.run(None, each)[0] for each in inputs]
        embeddings: NDArray[np.float32] = np.concatenate(blocks)
        return embeddings

    def read(self, path: str | Path) -> Samples:
        """The examples [n, samples] of a recording (wav, flac, ogg), for a model of waveforms; needs soundfile."""
        if self.about.sample_rate is None:
            raise DeviceError(f"{path}: the model takes {self._wanted} and no sound; prepare it as those were")
        return read_sound(path, self.about.sample_rate, *self.about.shape)

    def enroll(
        self, name: str, x: ArrayLike, min_cohesion: float = MIN_COHESION, threshold: float | None = None
    ) -> Person:
        """Enrol somebody new."""
        return self.gallery.enroll(name, self.embed(x), min_cohesion, threshold)

    def add(self, name: str, x: ArrayLike, min_cohesion: float = MIN_COHESION) -> Person:
        """More examples of somebody who is enrolled."""
        return self.gallery.add(name, self.embed(x), min_cohesion)

    def verify(self, name: str, x: ArrayLike, threshold: float | None = None) -> bool:
        """Is this somebody? Without a threshold, by their own or the measured one of the model."""
        return self.gallery.verify(name, self.embed(x), threshold)

    def identify(self, x: ArrayLike, threshold: float | None = None, margin: float = 0.0) -> str | None:
        """Who is this? None: nobody who is enrolled."""
        return self.gallery.identify(self.embed(x), threshold, margin)

    def remove(self, name: str) -> None:
        """Forget somebody; nothing of them is left in the file."""
        self.gallery.remove(name)

    def _blocks(self, x: ArrayLike) -> Iterator[dict[str, NDArray[Any]]]:
        examples = self._checked(x)
        for i in range(0, len(examples), _BLOCK):
            yield {"x": examples[i : i + _BLOCK]}

    def _sparse_blocks(self, x: Any) -> Iterator[dict[str, NDArray[Any]]]:
        if not hasattr(x, "tocsr") or x.ndim != 2 or x.shape[1:] != self.about.shape or not x.shape[0]:
            shape = getattr(x, "shape", None)
            raise DeviceError(
                f"x is a {type(x).__name__} of shape {shape}; wanted a matrix of scipy.sparse, {self._wanted}"
            )
        matrix = x.tocsr()
        for i in range(0, matrix.shape[0], _BLOCK):
            part = matrix[i : i + _BLOCK]
            values = np.asarray(part.data, np.float32)
            if not np.isfinite(values).all() or (values < 0).any():
                raise DeviceError("x has negative, NaN or infinite values; leave those examples out")
            rows = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
            totals = np.bincount(rows, values, part.shape[0])
            weights = (values / np.maximum(totals[rows], np.finfo(np.float32).tiny)).astype(np.float32)
            entries = (part.indices.astype(np.int64), rows.astype(np.int64), weights)
            yield dict(zip(SPARSE_INPUTS, (*entries, np.zeros((part.shape[0], 1), np.float32)), strict=True))

    def _checked(self, x: ArrayLike) -> NDArray[Any]:
        try:
            values = np.asarray(x)
        except ValueError:
            raise DeviceError(f"x is no array of numbers; wanted {self._wanted}") from None
        whole = values.dtype == np.uint8
        if values.dtype.kind not in "fiu" or whole != (self.about.dtype == "uint8"):
            raise DeviceError(f"x is {values.dtype}; wanted {self._wanted}: prepare it as the training examples were")
        if values.shape[1:] != self.about.shape or not len(values):
            raise DeviceError(f"x has shape {values.shape}; wanted {self._wanted} with one example or more")
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(values, self.about.dtype)
        if not np.isfinite(values).all():
            raise DeviceError("x has NaN or infinite values; leave those examples out")
        return values

    @property
    def _wanted(self) -> str:
        return f"{self.about.dtype} [examples{''.join(f', {size}' for size in self.about.shape)}]"


def read_about(folder: Path) -> About:
    """What the model.json of an exported folder says, checked."""
    path = folder / MODEL
    content, _ = store.read(path, _LARGEST[MODEL])
    try:
        facts = json.loads(content)
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']!r:.40}, wanted {FORMAT!r}")
        example, measured = facts["example"], facts["threshold"]
        about = About(
            str(facts["digest"]),
            facts["dim"],
            tuple(example["shape"]),
            example["dtype"],
            str(facts["encoder_sha256"]),
            None if measured is None else float(measured["threshold"]),
            facts.get("sample_rate"),
            facts.get("sparse", False),
            None if measured is None else measured.get("ask"),
        )
        sizes = (about.dim, *about.shape)
        if not all(type(size) is int and 0 < size < 1 << 31 for size in sizes) or math.prod(sizes) >= 1 << 40:
            raise ValueError(f"sizes {sizes!r:.80}")
        if type(about.sparse) is not bool or (about.sparse and (len(about.shape) != 1 or about.dtype != "float32")):
            raise ValueError(f"sparse {about.sparse!r:.40} for {about.dtype!r:.40} of shape {about.shape!r:.80}")
        rate = about.sample_rate
        if rate is not None and (type(rate) is not int or not 0 < rate < 1 << 20 or len(about.shape) != 1):
            raise ValueError(f"sample_rate {about.sample_rate!r:.40} for examples of shape {about.shape!r:.80}")
        if about.dtype not in ("float32", "uint8") or not (about.threshold is None or -1 <= about.threshold <= 1):
            raise ValueError(f"examples of {about.dtype!r:.40}, threshold {about.threshold}")
        if about.ask is not None and (type(about.ask) is not int or about.ask < 1):
            raise ValueError(f"a threshold for {about.ask!r:.40} examples at once")
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:120]
        raise DeviceError(f"{path} is no sound {MODEL}: {why}; export again") from None
    return about


def _session(content: bytes, path: Path, inputs: tuple[str, ...]) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415 - a gallery of embeddings does without
    except ImportError as error:
        raise DeviceError(f"a device needs onnxruntime ({error}); pip install 'fedaws[device]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # the models are small, and phones have others to serve
    )
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception for each of its codes, below no class of its own
        raise DeviceError(f"{path} cannot be run: {' '.join(str(error).split())[:200]}; export again") from None
    if tuple(each.name for each in session.get_inputs()) != inputs or len(session.get_outputs()) != 1:
        raise DeviceError(f"{path} is no encoder: wanted {', '.join(inputs)} and one output; export again")
    return session
