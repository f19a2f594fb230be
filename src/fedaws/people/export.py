"""A run's encoder for a device: ONNX with preprocessing and unit length inside, and a page that says what it is."""

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedaws.core.local import embed, on_sphere
from fedaws.data.federated import as_input
from fedaws.device import gallery as core
from fedaws.device.model import ENCODER, FORMAT, MODEL, PEOPLE, SPARSE_INPUTS
from fedaws.errors import FedawsError
from fedaws.evaluate.intervals import Threshold
from fedaws.evaluate.model import REMOVED
from fedaws.files import write_bytes, write_text
from fedaws.models import set_weights
from fedaws.models.bag import Bag
from fedaws.people.digest import model_digest, sample_rate
from fedaws.people.gallery import told
from fedaws.record.facts import PrivacyFacts
from fedaws.training.run import Run

_SMALLEST = 1024  # numbers of a weight that is worth being made small
_ENROLLED = "Whoever is enrolled is kept in people.safetensors as a biometric template, in the clear."
_NO_PRIVACY = (
    "The encoder was trained on people's examples and may remember some of them (membership inference); no formal "
    "privacy was applied."
)


class _Encoder(nn.Module):
    """A run's encoder, frozen."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(run.encoder).cpu().eval().requires_grad_(False)
        set_weights(self.encoder, run.theta)
        self.normalize = run.model.normalize


class _ToEmbedding(_Encoder):
    """x → g(x) in one module, with everything that `Run.embed` does."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, …] → [B, d]."""
        return embed(self.encoder, {}, as_input(x), self.normalize)


class _SparseToEmbedding(_Encoder):
    """The same for sparse examples, whose entries are given one by one: of which example, which feature, how much."""

    def forward(self, features: Tensor, rows: Tensor, weights: Tensor, blank: Tensor) -> Tensor:
        """[E], [E], [E] and, to say how many examples there are, zeros [B, 1] → [B, d]."""
        encoder = cast(Bag, self.encoder)
        entries = encoder.table[features] * weights[:, None]
        h = blank.expand(-1, entries.shape[1]).clone().index_add(0, rows, entries)
        z = encoder.after(h)
        return on_sphere(z) if self.normalize else z


def to_embedding(run: Run) -> tuple[nn.Module, Tensor]:
    """The module x → g(x) with everything that `Run.embed` does inside it, and two examples of zeros to trace it."""
    dtype = torch.uint8 if run.facts.example_dtype == "uint8" else torch.float32
    return _ToEmbedding(run), torch.zeros(2, *run.facts.example_shape, dtype=dtype)


def export(
    run: Run,
    folder: str | Path,
    *,
    quantize: Literal["int8"] | None = None,
    threshold: Threshold | None = None,
    with_rows: bool = False,
) -> Path:
    """Write `encoder.onnx` and `model.json` for :class:`fedaws.device.Device`, or for any runtime of ONNX.

    Parameters
    ----------
    run
        What was trained; its encoder takes any number of examples at once.
    folder
        Where to. People who are enrolled there must be enrolled again if the model is another one.
    quantize
        `int8` keeps weights as bytes with a scale for each row: a quarter of the size. Its embeddings are other ones.
    threshold
        What :meth:`fedaws.Gallery.threshold_for` has measured; it is then the device's default.
    with_rows
        Also enrol the run's classes by their rows of W. A phone should not have the rows of others.

    Returns
    -------
    Path
        The folder.
    """
    place = Path(folder)
    content = _onnx(run)
    digest = model_digest(run)
    if quantize is not None:
        content = _with_small_weights(content, {f"encoder.{name}" for name in run.theta})
        digest = hashlib.sha256(f"{digest} {quantize}".encode()).hexdigest()
    dim = run.W.shape[1]
    facts: dict[str, Any] = {
        "format": FORMAT,
        "digest": digest,
        "encoder_sha256": hashlib.sha256(content).hexdigest(),
        "dim": dim,
        "example": {"shape": list(run.facts.example_shape), "dtype": run.facts.example_dtype},
        "preprocessing": _preprocessing(run),
        "sample_rate": sample_rate(run),
        "sparse": isinstance(run.encoder, Bag),
        "unit_length": run.model.normalize,
        "quantized": quantize,
        "threshold": None if threshold is None else threshold.facts(),
        "trained": {"name": run.config.name, "method": run.config.method, "rounds": run.facts.round},
        "privacy": f"{_promise(run.facts.privacy)} {_ENROLLED}",
    }
    rows = _rows(run) if with_rows else {}
    write_bytes(place / ENCODER, content)
    write_text(place / MODEL, json.dumps(facts, indent=2) + "\n")
    if rows:
        with told():
            people = core.Gallery(place / PEOPLE, digest, dim)
            for name, row in rows.items():
                people.enroll(name, row)
    return place


def _promise(privacy: PrivacyFacts | None) -> str:
    """What the run's record says of the encoder, in a sentence."""
    if privacy is None:
        return _NO_PRIVACY
    known = privacy.epsilon_if_known
    against = "" if known is None else f" ({known:.3g} for whoever knows who took part in which round)"
    rows = " ε of the class embeddings that it was trained with: none." if privacy.rows == "none" else ""
    return (
        f"The encoder was trained with user-level differential privacy: ε = {privacy.epsilon:.3g}{against} at δ = "
        f"{privacy.delta:.2g}, {privacy.neighbours}, {privacy.people:,} people, {privacy.releases:,} releases with "
        f"noise {privacy.noise:.3g} × the clip, {privacy.cohorts}. It covers the encoder alone.{rows}"
    )


def _preprocessing(run: Run) -> str:
    if isinstance(run.encoder, Bag):
        return "entries of sparse examples; each weighs its value over the sum of its example's values"
    if run.facts.example_dtype == "uint8":
        return "bytes are divided by 255 inside the model"
    rate = sample_rate(run)
    if rate is None:
        return "none: numbers are taken as they are"
    return f"waveforms of one channel, from -1 to 1, {rate} samples a second; their spectrum is made inside the model"


def _rows(run: Run) -> dict[str, Any]:
    """Name → row of every class that is there."""
    bias = run.model.bias
    if run.model.crowding or (bias is not None and bool((bias[bias > REMOVED] != 0).any())):
        raise FedawsError(
            "these rows are scored with more than cosines (a last step, or crowding) and cannot be enrolled"
        )
    names = run.class_names or tuple(str(c) for c in range(len(run.W)))
    return {name: row for name, row in zip(names, run.W.cpu().numpy(), strict=True) if np.any(row)}


def _onnx(run: Run) -> bytes:
    try:
        import onnx  # noqa: F401, PLC0415 - an extra
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise FedawsError(f"exporting needs onnx and onnxscript ({error}); pip install 'fedaws[export]'") from None
    module, inputs, free = _traced(run)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                tuple(inputs.values()),
                dynamo=True,
                dynamic_shapes=free,
                input_names=list(inputs),
                output_names=["embedding"],
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            why = next((line for line in str(error).splitlines() if line.strip()), "")
            raise FedawsError(f"this encoder cannot be written as ONNX: {why[:200]}") from None
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:  # which file of whose machine a step came from
        del node.metadata_props[:]
        node.doc_string = ""
    return bytes(model.SerializeToString())


def _traced(run: Run) -> tuple[nn.Module, dict[str, Tensor], tuple[dict[int, str], ...]]:
    """The module, examples of its inputs by name, and which of their sizes are free."""
    if not isinstance(run.encoder, Bag):
        module, example = to_embedding(run)
        return module, {"x": example}, ({0: "batch"},)
    entries, features = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    inputs = dict(zip(SPARSE_INPUTS, (features, torch.tensor([0, 0, 1]), entries, torch.zeros(2, 1)), strict=True))
    return _SparseToEmbedding(run), inputs, ({0: "entries"}, {0: "entries"}, {0: "entries"}, {0: "batch"})


def _with_small_weights(content: bytes, trained: Collection[str]) -> bytes:
    """The same graph with its larger trained weights as bytes, of each row the largest number being 127 steps.

    Constants, as those of a spectrum, stay: after a logarithm their steps would be heard.
    """
    import onnx  # noqa: PLC0415 - an extra
    from onnx import helper, numpy_helper  # noqa: PLC0415

    model = onnx.load_from_string(content)
    graph = model.graph
    first = []
    for weight in list(graph.initializer):
        values = numpy_helper.to_array(weight)
        if weight.name not in trained:
            continue
        if values.dtype != np.float32 or values.ndim < 2 or values.size < _SMALLEST:
            continue
        largest = np.abs(values.reshape(len(values), -1)).max(1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        steps = np.round(values / scale.reshape(-1, *[1] * (values.ndim - 1))).astype(np.int8)
        graph.initializer.remove(weight)
        parts: dict[str, NDArray[Any]] = {f"{weight.name}.int8": steps, f"{weight.name}.scale": scale}
        graph.initializer.extend(numpy_helper.from_array(part, name) for name, part in parts.items())
        first.append(helper.make_node("DequantizeLinear", list(parts), [weight.name], axis=0))
    steps_after = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *steps_after])
    return bytes(model.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of itself: of what is deprecated inside it, and of packages that it can do without."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
