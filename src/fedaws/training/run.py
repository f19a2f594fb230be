"""A trained model with its history: `Run`, and `load`, which gets it from its folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.data import FederatedData, load_data
from fedaws.data.arrays import as_features
from fedaws.data.federated import as_input
from fedaws.data.label_sets import as_sparse
from fedaws.data.strangers import Part, Strangers
from fedaws.errors import FedawsError
from fedaws.evaluate import Model, evaluate
from fedaws.evaluate.half_rows import HalfRows, write_half_rows
from fedaws.evaluate.index import ClassIndex
from fedaws.evaluate.model import REMOVED
from fedaws.evaluate.precision import Ranking
from fedaws.evaluate.strangers import open_set
from fedaws.models import build_encoder, example_shape_fits, model_tensors, set_weights
from fedaws.record.facts import Facts
from fedaws.record.folder import RunFolder
from fedaws.record.journal import Metrics
from fedaws.sparse import Rows, SparseRows, is_scipy
from fedaws.tensor_files import digest
from fedaws.training.register import test_of
from fedaws.types import Params


@dataclass(repr=False)
class Run:
    """A trained (or half-trained) model that tells classes apart, as `train` and `load` give it.

    Attributes
    ----------
    config
        The settings that it was trained with.
    model
        Encoder, θ and W.
    facts
        What the model says of itself: examples, names, rounds, privacy.
    metrics
        A row for each measured round, in order; `metrics[-1]["precision@1"]` is the last.
    data
        What it was trained on, where that is at hand.
    folder
        Where it is recorded, if it is.
    """

    config: Config
    model: Model
    facts: Facts
    metrics: list[Metrics] = field(default_factory=list)
    data: FederatedData | None = None
    folder: Path | None = None
    half_rows: HalfRows | None = None  # where W itself was left on the disk

    @property
    def encoder(self) -> nn.Module:
        """The module that was trained."""
        return self.model.encoder

    @property
    def theta(self) -> Params:
        """Its trained parameters."""
        return self.model.theta

    @property
    def W(self) -> Tensor:  # noqa: N802 - the paper's letter
        """The class embeddings, [C, d]. To add or remove a class use :meth:`with_class` and :meth:`without_class`."""
        if self.half_rows is not None:
            raise FedawsError("the rows of W were left on the disk, for identify alone; load the run without rows")
        return self.model.W

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names that came with the data, one for each row of W."""
        return self.facts.class_names

    def embed(self, x: Any) -> Tensor:
        """g(x) of examples [B, …], NumPy, torch or, where the model was trained on such, scipy's sparse; [B, d]."""
        return self.model.embed(self._checked(x))

    def identify(self, x: Any, k: int = 1, index: ClassIndex | HalfRows | None = None, probes: int = 16) -> Ranking:
        """The k most likely classes of each example, and their scores.

        Parameters
        ----------
        x
            Examples [B, …], as for :meth:`embed`.
        k
            How many classes.
        index
            What :meth:`index` gave: then only the classes in the cells nearest to the example are looked at, which is
            faster for few examples among very many classes, but may miss some. Or a
            :class:`fedaws.evaluate.half_rows.HalfRows`: all classes, read from their file a piece at a time.
        probes
            How many cells of the index are looked at.

        Returns
        -------
        Ranking
            `classes` and `scores`, both [B, k], best first.
        """
        if type(k) is not int or k < 1:
            raise FedawsError(f"k={k!r}; wanted a whole number of classes, at least one")
        index = index or self.half_rows
        if index is None:
            return self.model.rank(self.embed(x), k)
        if index.num_classes != len(self.model.W):
            raise FedawsError(
                f"the index has {index.num_classes} classes, the model {len(self.model.W)}; make it by this run's "
                "index() or save_half_rows()"
            )
        return index.rank(self.embed(x), k, probes)

    def save_half_rows(self, path: str | Path) -> Path:
        """Keep W in half precision in a file of its own, half the size, for `fedaws.load(folder, rows=path)`; its path.

        It holds everybody's row. The run's folder keeps where it is, so that `fedaws forget` finds it. Scores differ in
        the fourth digit.
        """
        rows, model = self.W, digest(self.theta)
        if self.folder is not None:
            RunFolder(self.folder).note_half_rows(Path(path), model)
        write_half_rows(Path(path), rows, self.model.shift, model)
        return Path(path)

    def names_of(self, classes: Tensor) -> Any:
        """The names of classes as :meth:`identify` gives them, in lists of the same form; without names the numbers."""
        classes = torch.as_tensor(classes)
        names: Sequence[Any] = self.class_names or range(len(self.model.W))
        return [self.names_of(c) for c in classes] if classes.ndim else names[int(classes)]

    def index(self, cells: int | None = None) -> ClassIndex:
        """An approximate index of the classes for :meth:`identify`, by default of √classes cells; needs faiss."""
        return ClassIndex(self.W, cells, self.model.shift)

    def evaluate(self, data: FederatedData | None = None) -> dict[str, float]:
        """All measures by name on the test set of `data`, by default the run's own, and on its strangers.

        As in training nobody is counted whose row is gone.
        """
        data = data or self.data or self.configured_data()
        if data.num_classes != len(self.W):
            raise FedawsError(
                f"the data has {data.num_classes} classes, the model {len(self.W)}; they do not belong together"
            )
        device = self.W.device
        test = test_of(data.to(device), self.model)
        if test is None:
            raise FedawsError("everybody whom the test examples are of has left; give data of those who are there")
        measures = evaluate(self.model, replace(test, x=self._checked(test.x)), self.config)
        for part, strangers in data.apart.items():
            measures |= open_set(self.model, strangers.to(device), self.config.data.enroll, part)
        return measures

    @property
    def strangers(self) -> dict[Part, Strangers]:
        """The people who had no client: `strangers` to choose by, `test_strangers` for the final figure."""
        return (self.data or self.configured_data()).apart

    def with_class(self, name: str, x: Any) -> "Run":
        """A run that knows one class more, its row the direction of the mean embedding of these examples.

        It has the next free number; all others keep theirs. θ stays as it is.
        """
        names = self._all_names
        if not isinstance(name, str) or not name or name in names:
            raise FedawsError(f"there is a class {name!r} already, or it is no name; choose another name")
        if not self._on_sphere:
            raise FedawsError(
                f"train.last_step={self.config.train.last_step} made rows of unequal length, and no single one can "
                "be added; train without it, or add the class to the data and train again"
            )
        row = F.normalize(self.embed(x).mean(0, keepdim=True), dim=1)
        bias = None if self.model.bias is None else F.pad(self.model.bias, (0, 1))
        return self._with_rows(torch.cat([self.W, row]), bias, (*names, name))

    def without_class(self, name: str | int) -> "Run":
        """A run that never answers this class again, by its name or number; all others keep their numbers and names.

        Its row is gone: zeros, at a bias that no example overcomes. θ is what it was, and has learnt from the class.
        """
        names = self._all_names
        number = name if isinstance(name, int) else names.index(name) if name in names else -1
        there = 0 <= number < len(self.W)
        if not there or (self.model.bias is not None and self.model.bias[number] <= REMOVED):
            raise FedawsError(f"no class {name!r}; there are {len(self.W)}")
        W = self.W.clone()
        W[number] = 0
        bias = W.new_zeros(len(W)) if self.model.bias is None else self.model.bias.clone()
        bias[number] = REMOVED
        return self._with_rows(W, bias, tuple("" if c == number else n for c, n in enumerate(names)))

    @property
    def _all_names(self) -> tuple[str, ...]:
        return self.class_names or tuple(map(str, range(len(self.W))))

    @property
    def _on_sphere(self) -> bool:
        """Whether all rows that are there have unit length, as training leaves them."""
        lengths = torch.linalg.vector_norm(self.W, dim=1)
        there = lengths > 0
        return not self.config.model.normalize or bool((lengths[there] - 1).abs().max() < 1e-3)

    def __repr__(self) -> str:
        """Without the numbers: rows are people's templates."""
        classes, dim = self.model.W.shape
        return f"Run({self.config.name!r}, method={self.config.method!r}, {classes:,} classes in {dim} dimensions)"

    def save(self, folder: str | Path) -> Path:
        """Write the model as a run folder of its own that :func:`fedaws.load` reads; gives its path."""
        record = RunFolder(Path(folder))
        record.create(self.config, self.facts.replaced)
        record.save_model(self.theta, self.W, self.model.bias, self.facts)
        return record.path

    def _with_rows(self, W: Tensor, bias: Tensor | None, names: tuple[str, ...]) -> "Run":
        facts = self.facts.model_copy(update={"class_names": names, "classes": len(W)})
        return replace(self, model=replace(self.model, W=W, bias=bias), facts=facts, data=None, folder=None)

    def configured_data(self) -> FederatedData:
        """What the configuration names; refused where the run was trained on data of one's own."""
        if self.facts.own_data:
            raise FedawsError(
                f"{self.folder} was trained on data of your own, which it does not hold; "
                "give it again in Python: fedaws.load(folder).evaluate(data)"
            )
        self.data = load_data(self.config)  # its test set is the same however the method deals out the rest
        return self.data

    def _checked(self, x: Any) -> Rows:
        shape = self.facts.example_shape
        if getattr(x, "shape", None) == shape:
            raise FedawsError(f"x is a single example of shape {shape}; wanted a batch of them: x[None], or x[:1]")
        features = as_sparse(x) if isinstance(x, SparseRows) or is_scipy(x) else as_features(x)
        got, wanted = dtype_name(features), self.facts.example_dtype
        if got != wanted:  # bytes are scaled to 0 … 1, numbers are taken as they are
            raise FedawsError(f"x is {got}, the model was trained on {wanted}; prepare x as the training examples were")
        if isinstance(features, SparseRows) and tuple(features.shape[1:]) != shape:
            raise FedawsError(
                f"x has {features.shape[1]} features, the model was trained on {shape[0]}; number them as the training "
                "examples were"
            )
        W = self.model.W
        example_shape_fits(self.encoder, as_input(features[:1]).to(W.device), W.shape[1])
        return features.to(W.device)


def load(folder: str | Path, encoder: nn.Module | None = None, rows: str | Path | None = None) -> Run:
    """The model in a run folder, or an unfinished run's newest checkpoint.

    Parameters
    ----------
    folder
        A folder that `fedaws.train`, the command line or `Run.save` wrote.
    encoder
        The encoder of your own that it was trained with, if it was.
    rows
        The file that this run's :meth:`Run.save_half_rows` wrote: the rows of W then stay on the disk, and the run is
        for :meth:`Run.embed` and :meth:`Run.identify` alone.

    Returns
    -------
    Run
        The model and its metrics; its data are loaded when they are needed.
    """
    record = RunFolder(Path(folder))
    cfg = record.config()
    half_rows = None if rows is None else HalfRows(rows)
    theta, W, facts, bias = record.load_model(None if half_rows is None else (half_rows.num_classes, half_rows.dim))
    if half_rows is not None and half_rows.model != digest(theta):
        raise FedawsError(f"{rows} has the rows of another model than {folder}; write it anew by save_half_rows")
    if half_rows is not None and not all(map(half_rows.lacks, facts.forgotten)):
        raise FedawsError(f"{rows} has the row of somebody who has left {folder}; write it anew by save_half_rows")
    if encoder is None:
        if facts.own_encoder:
            raise FedawsError(
                f"{folder} was trained with an encoder of your own; give it again: fedaws.load(folder, encoder)"
            )
        try:
            encoder = build_encoder(cfg.model, facts.example_shape, cfg.seed)
        except (MemoryError, RuntimeError, TypeError):  # of sizes that no tensor can have
            raise FedawsError(
                f"no encoder can be made for examples of shape {facts.example_shape} in {folder}; its files are damaged"
            ) from None
    expected = {name: p.shape for name, p in model_tensors(encoder).items()}
    if expected != {name: t.shape for name, t in theta.items()} or W.shape[1] != cfg.model.embedding_dim:
        raise FedawsError(f"the weights in {folder} do not fit the encoder; give the one it was trained with")
    if facts.class_names is not None and len(facts.class_names) != len(W):
        raise FedawsError(f"{folder} has {len(facts.class_names)} class names for {len(W)} rows; it is damaged")
    set_weights(encoder, theta)
    model = Model(encoder, theta, W, cfg.model.normalize, bias, cfg.model.crowding)
    return Run(cfg, model, facts, record.metrics(), folder=record.path, half_rows=half_rows)


def dtype_name(x: Rows) -> str:
    """The type of numbers, as records say it."""
    return str(x.dtype).removeprefix("torch.")
