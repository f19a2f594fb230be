"""The run's configuration: frozen, checked at the edge, unknown keys refused; TOML in and out."""

import difflib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedaws.errors import FedawsError
from fedaws.files import parse_toml, read_text

# The limits of what is believed. Up to 1e9: the product of any two, such as λη, still is a float32.
MOST = 10**9
LONGEST_TEXT = 100_000


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL")
    return text


# Strict: neither `true` nor "1" is the number 1.
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Several = Annotated[int, Field(ge=2, le=MOST, strict=True)]
Positive = Annotated[float, Field(gt=0, le=MOST, strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MOST, strict=True, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, strict=True, allow_inf_nan=False)]
Side = Annotated[int, Field(ge=4, le=MOST, strict=True)]  # of an image: a resnet halves it twice
Number = Annotated[int, Field(ge=0, le=MOST, strict=True)]  # of a round or a class, which begin at 0
Moves = Annotated[tuple[tuple[Number, Share | tuple[Number, ...]], ...], Field(max_length=10_000)]
"""Pairs [round, share of the classes] or [round, [classes]]: from this round on."""
Name = Annotated[str, Field(pattern=r"^\w[\w .+-]*$", max_length=100)]  # it becomes part of a folder's name
Place = Annotated[
    str,
    Field(max_length=4096),
    AfterValidator(_no_nul),
    BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
]
OptionName = Annotated[str, Field(pattern=r"^[a-z_]\w*$", max_length=100)]
Option = (
    Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(ge=-MOST, le=MOST, strict=True)]
    | Annotated[float, Field(ge=-MOST, le=MOST, strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(strict=True, max_length=1000)]
)

Apart = NonNegative | Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=100_000)]

OptimizerName = Literal["sgd", "adagrad", "adam"]
ServerOptimizerName = Literal["sgd", "adagrad", "adam", "muon"]
ModelName = Literal["mlp", "bag", "conv1d", "resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "own"]
NormName = Literal["group", "weight", "none", "batch-local", "batch-pooled"]

XC_SETS = ("delicious", "yso-finna-en", "amazoncat-13k", "wikilshtc-325k", "amazon-670k")
SPARSE = (*XC_SETS, "xc", "xc-synthetic")
"""Data of sparse examples with sets of labels, by name."""


SOUNDS = ("audiomnist", "sounds")
"""Data of recordings, by name."""


class Section(BaseModel):
    """A table of settings; the text below a setting is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, use_attribute_docstrings=True)


class _Told(Section):
    """Settings whose mistakes are told in one line, however they are made."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FedawsError(_one_line(error, type(self))) from None


class DataConfig(_Told):
    """Which examples, and how they lie with the clients."""

    name: Place = "digits"
    """`digits`, `synthetic`, `cifar10`, `cifar100`, `audiomnist`, `images`, `sounds`, or the path of an `.npz` with
    `x_train`, `y_train`, `x_test`, `y_test`; sparse: `delicious`, `yso-finna-en`, `amazoncat-13k`, `wikilshtc-325k`,
    `amazon-670k`, `xc` (what lies in `data.root`), `xc-synthetic`."""
    root: Place | None = None
    """Where the data are looked for, before `$FEDAWS_DATA` and the cache; `images`, `sounds`: their folder."""
    image_size: Count | None = None
    """`images`: the side they are scaled and cut to; none: they have one size already."""
    seconds: Annotated[float, Field(ge=0.1, le=60, strict=True)] = 1.0
    """Of sound in an example: longer recordings are cut into pieces, shorter ones repeated."""
    augment: Literal["none", "crop-flip"] = "none"
    """What a client does to its images before each step."""
    drop: Fraction = 0.0
    """Sparse data: the part of an example's features that a client leaves out in a step."""
    every_label: bool = False
    """Sparse data: a training example is with the clients of all its labels, not of one drawn."""
    clients_per_class: Count = 1
    """Among how many clients the examples of a class are shared out."""
    classes_per_client: Count | None = None
    """Classes of one client; none: as the method has it (1, and 2 for `fedavg` and `family`)."""
    num_classes: Count | None = None
    """More classes than the labels show: the others keep an untrained row."""
    validation: NonNegative = 0.0
    """Fraction (below 1) or number of training examples to test on in place of the test set."""
    held_out_labels: Literal["all", "one"] = "all"
    """Sparse data: rows held out by `validation` have all their labels, or the one drawn that a client would know."""
    strangers: Apart = 0.0
    """Classes without a client, to choose by: a share (below 1), a number, or a list of names (`*` stands for any
    letters); never in training, in W or in precision@k (docs/people.md)."""
    test_strangers: Apart = 0.0
    """Others, for the final figure alone: measured once, at the end."""
    strangers_seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    """Which are drawn; the same for every `seed`."""
    enroll: Count = 5
    """Examples that enrol a stranger, the first ones; the others are tested."""
    classes: Several = 100
    """`synthetic`: number of classes."""
    features: Count = 32
    """`synthetic`: dimensions of an example."""
    examples_per_class: Several = 50
    """`synthetic`: examples of each class, a fifth of them for the test."""
    overlap: NonNegative = 0.5
    """`synthetic`: the noise, as a multiple of the distance between class centres."""
    like: Place = "amazon-670k"
    """`xc-synthetic`: the set whose shape the data have."""
    scale: Share = 1.0
    """`xc-synthetic`: how much of that set's size."""
    test_examples: Count | Literal["all"] = "all"
    """Sparse data: test on so many, the same for every seed."""


class ModelConfig(_Told):
    """The encoder x → g(x)."""

    name: ModelName = "mlp"
    """The encoder: `bag` for sparse examples, a `resnet` for images, `conv1d` for sound."""
    embedding_dim: Count = 32
    """Dimensions of an embedding g(x), and of a class's row of W."""
    hidden: Annotated[tuple[Count, ...], Field(max_length=100)] = (128,)
    """`mlp`, `bag`, `conv1d`: widths of their perceptron's layers; `bag` with none: the table of features alone."""
    channels: Annotated[tuple[Count, ...], Field(max_length=100)] = (64, 64)
    """`conv1d`: widths of its convolutions over time; none: mean and deviation of the spectrum alone."""
    sample_rate: Annotated[int, Field(ge=1000, le=384_000, strict=True)] = 16_000
    """`conv1d`: samples a second of a waveform; recordings are brought to it."""
    first_bias: bool = True
    """`mlp`: whether the first layer has a bias, by which updates show examples exactly (docs/audit.md)."""
    residual: bool = False
    """`bag`: add the features' mean to what the layers make of it."""
    norm: NormName = "weight"
    """`resnet`: what stands in for BatchNorm (docs/results/recipe.md)."""
    normalize: bool = True
    """Unit g(x), as in all of the paper's experiments; if not, clients take ‖g − w‖² in place of the hinge."""
    start: Place | None = None
    """A run folder or a `.safetensors` file with weights to start from, instead of random ones."""
    start_rows: Literal["random", "means"] = "random"
    """W⁰: random unit rows, or each class's mean embedding under the first θ."""
    crowding: NonNegative = 0.0
    """So much of a class's mean cosine with its ten nearest is taken from its scores."""


class ClientsConfig(_Told):
    """Who takes part, and what a client does in a round."""

    per_round: Count | Literal["all"] = "all"
    """Clients that take part in a round."""
    sampling: Literal["uniform", "examples", "poisson"] = "uniform"
    """Which: all equally likely, or in proportion to their examples; `poisson`: each by a coin of its own, `per_round`
    of them on average."""
    examples_per_step: Count | Literal["all"] = 16
    """Examples of a client's step."""
    local_steps: Count = 1
    """Steps of a client in a round."""
    lr: Positive = 0.3
    """Step size on the encoder θ."""
    class_lr: NonNegative | None = None
    """Step size on the client's own row, and η of the spreadout step; none: `clients.lr`."""
    optimizer: OptimizerName = "sgd"
    """Optimiser of a client's steps."""
    momentum: Fraction = 0.0
    """Of `sgd`, from one local step to the next."""
    margin: Share = 0.9
    """The positive hinge is zero where g(x)·w is at least this."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """ω: clients count alike in the average, or in proportion to their examples."""
    scale: Positive = 16.0
    """The softmax oracle's factor on the cosines."""
    sampled_classes: Several | None = None
    """The oracles compare with so many classes a round, drawn at random; none: with all."""
    join: Moves = ()
    """Who comes when: pairs [round, share], from this round on this share of the classes takes part, the first from
    round 0 on; or [round, [classes]], all others being there from the start. Who comes later enrols, then trains."""
    leave: Moves = ()
    """Who goes when: pairs [round, share], from this round on this share is gone, those first who came first; or
    [round, [classes]]."""


class ServerConfig(_Told):
    """The optimiser of the averaged delta; sgd with lr 1 and momentum 0 is plain averaging."""

    optimizer: ServerOptimizerName = "sgd"
    """Optimiser of the averaged delta."""
    lr: Positive = 1.0
    """Step size; 1 with `sgd` is plain averaging."""
    momentum: Fraction = 0.0
    """Of `sgd` and `muon`."""
    weight_decay: Fraction = 0.0
    """Of θ's matrices, times the step size; keeps standardised filters turning."""
    table_optimizer: Literal["adagrad", "sgd"] = "adagrad"
    """Of embedding tables (`bag`); `adagrad` has one accumulator a row."""
    table_lr: Positive | None = None
    """Step size on embedding tables: with `adagrad` a row's longest step; none: `server.lr`."""
    average: Fraction = 0.0
    """Decay of the exponential average of θ that is evaluated and kept; 0: the last θ."""


class SpreadConfig(_Told):
    """The server-side step that keeps the classes apart."""

    regularizer: Literal["margin", "nearest", "moments", "softmax", "uniformity", "energy"] = "margin"
    """Eq. (6) of the paper, eq. (7), or the rows' first and second moment without any pairs; other functions of pairs:
    a softmax over mined rows (FedGC), uniformity (Wang & Isola), hyperspherical energy."""
    weight: NonNegative = 10.0
    """λ of the pairs; `center` and `whiten` have none."""
    margin: Annotated[float, Field(gt=0, le=2, strict=True, allow_inf_nan=False)] = 1.0
    """ν: a cosine distance that pairs of `margin` should keep."""
    neighbors: Count | Literal["auto", "all"] = "auto"
    """k: how many nearest classes to push away; `auto`: up to 10 for `nearest` and `softmax`, else all pairs."""
    candidates: Count | Literal["all"] = "all"
    """|C′|: the classes among which neighbours are mined."""
    remember: bool = False
    """Look also among the neighbours found before and theirs; of no use where C′ is all classes."""
    steps: Count = 1
    """Spreadout steps in a round."""
    center: bool = False
    """Subtract the rows' mean first."""
    whiten: bool = False
    """Then even out the rows' second moment; `moments` does both."""
    whitening: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """How much of the bounded whitening step is taken, at the start; it falls with the schedule."""
    every: Count | Literal["auto"] = "auto"
    """Rounds between centrings and whitenings; `auto`: until a quarter of the rows may have changed."""
    bounded: bool = True
    """Never a step that raises the regulariser; false: the paper's literal λη."""
    optimizer: OptimizerName = "sgd"
    """Of the step on pairs, with λη as its learning rate; `adagrad` and `adam` have no bound: `bounded=false`."""


class PrivacyConfig(_Told):
    """Who is told what: rows that stay at home, user-level differential privacy of θ, secure sums."""

    rows: Literal["clear", "private"] = "clear"
    """`private`: a client keeps its class embedding, and tells of it inside sums over the cohort only."""
    clip: Positive | None = None
    """S: a client's change of θ is cut to this length; none: it is not. It goes with the schedule, as the step does."""
    noise: Positive | None = None
    """z: the server adds Gaussian noise of standard deviation z·S to the sum of the changes; none: no noise, or what
    `epsilon` asks for."""
    epsilon: Positive | None = None
    """The ε that the whole run may cost; the noise is computed from it."""
    delta: Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False)] | None = None
    """δ; none: N^−1.1 for N clients."""
    participations: Count | None = None
    """A client takes part in at most so many rounds, and the accounting hides nobody behind the choice of the cohort;
    none: no limit."""
    public_start: bool = False
    """The weights that a noisy run starts from (`model.start`, `start=`) have seen none of its people. Unless this is
    said such a start is refused: what it has cost them is not counted."""
    row_share: Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False)] = 0.2
    """`rows="private"` with noise: so much of what a round may tell (of 1/z²) is for the sums of rows, the rest for θ;
    more of it is less noise there."""
    row_noise: Positive | None = None
    """`rows="private"` without noise on θ: standard deviation of Gaussian noise in each number of the sums of w and
    wwᵀ; no ε holds."""
    secure_sums: bool = False
    """Over Flower the server learns sums over a round's nodes, and no single change of θ, loss or count of examples."""
    min_cohort: Several = 32
    """`secure_sums`: a node gives no part to a sum of fewer. Written into its folder, and checked there."""
    threshold: Share = 0.6
    """`secure_sums`: the part of a round's nodes that must help to open the sum, always more than half."""
    double_masks: bool = True
    """`secure_sums`: late answers, and nodes falsely reported missing, stay hidden; costs a second trip every round."""

    @property
    def noisy(self) -> bool:
        """Whether anything is promised: clipping alone has no ε."""
        return self.noise is not None or self.epsilon is not None

    @property
    def noisy_rows(self) -> bool:
        """Whether what private rows tell has noise."""
        return self.rows == "private" and (self.noisy or self.row_noise is not None)


class DefenceConfig(_Told):
    """What the server does against clients that cheat (docs/audit.md); by default nothing."""

    row_step: Fraction = 0.0
    """A client's row stays within this cosine of the row that it was sent; 0: anywhere."""
    anchor: Fraction = 0.0
    """A client's row stays within this cosine of a row of the server's own, which is spread in its place; 0: none."""
    apart: Share = 1.0
    """A row that comes within this cosine of another class's is refused; 1: none."""
    clip: Literal["none", "median"] = "none"
    """`median`: a client's change of θ is at most as long as the median of the cohort's."""


class TrainConfig(_Told):
    """How long, how often, and on what."""

    rounds: Count = 300
    """Rounds of training."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How the step sizes fall to zero at the end."""
    enroll: NonNegative = 0.0
    """After the last round so much of the mean of a class's embeddings is added to its row."""
    last_step: Literal["none", "ridge", "lda"] = "none"
    """After the last round W anew from all clients' embeddings: ridge regression, or classes of one covariance."""
    ridge: NonNegative = 1.0
    """λ of `last_step`, in units of the mean eigenvalue of the embeddings' second moment."""
    warmup: Annotated[int, Field(ge=0, le=MOST, strict=True)] = 0
    """Rounds over which the step size rises to its full value."""
    sizes: Annotated[tuple[tuple[Fraction, Side], ...], Field(max_length=100)] = ()
    """Pairs [start, size]: from this part of the rounds on, images of this size."""
    stop_on: Literal["none", "strangers"] = "none"
    """`strangers`: the model that is kept is that of the measured round with their lowest EER, not of the last."""
    patience: Count | None = None
    """`stop_on`: after so many measurements without a lower one training ends; none: it runs all its rounds."""
    evaluate_every: Count = 25
    """Rounds between measurements."""
    checkpoint_every: Count = 100
    """Rounds between checkpoints."""
    runner: Literal["auto", "serial", "pooled", "stacked"] = "auto"
    """How clients are computed; all give the same numbers."""
    block: Count | Literal["auto"] = "auto"
    """Clients that a runner handles at once."""
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | Literal["auto"] = "auto"
    """Threads of this process."""
    device: Annotated[str, Field(max_length=100)] = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1` and so on."""


class Config(_Told):
    """One run. A run is a pure function of this, seed included.

    Every setting has a default. Tables may be given as dicts. A mistake raises `FedawsError` with one line that says
    what was got and what is wanted.

    >>> Config(train={"rounds": 5}, seed=7).train.rounds
    5
    """

    name: Name = "digits"
    """What the run is called, and part of its folder's name."""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    """Start of all random numbers."""
    method: Name = "fedaws"
    """A method of `fedaws.core.methods`, or one's own that is given in Python."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    clients: ClientsConfig = ClientsConfig()
    server: ServerConfig = ServerConfig()
    spread: SpreadConfig = SpreadConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    defence: DefenceConfig = DefenceConfig()
    train: TrainConfig = TrainConfig()
    options: dict[OptionName, Option] = Field(default_factory=dict)
    """An open table: settings that only the chosen method has."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        spread = self.spread
        if not self.model.normalize and (self.model.crowding or self.train.enroll):
            raise ValueError(
                f"model.crowding={self.model.crowding:g}, train.enroll={self.train.enroll:g} need unit rows and "
                "embeddings; set model.normalize=true"
            )
        if self.privacy.rows == "private" and (self.data.clients_per_class != 1 or self.train.last_step != "none"):
            raise ValueError(
                f"privacy.rows=private needs a client per class and no sums of single classes; got "
                f"data.clients_per_class={self.data.clients_per_class}, train.last_step={self.train.last_step}; set "
                "them to 1 and none"
            )
        if self.train.enroll and self.train.last_step != "none":
            raise ValueError(
                f"train.enroll={self.train.enroll:g} has no effect beside train.last_step={self.train.last_step}; "
                "set one of them"
            )
        if spread.optimizer != "sgd" and (spread.bounded or spread.regularizer == "moments"):
            why = "has no pairs to step on" if spread.regularizer == "moments" else "has no step that is bounded"
            fix = "take another regularizer" if spread.regularizer == "moments" else "set spread.bounded=false"
            raise ValueError(
                f"spread.optimizer={spread.optimizer} with spread.regularizer={spread.regularizer}, "
                f"bounded={str(spread.bounded).lower()} {why}; {fix}, or spread.optimizer=sgd"
            )
        if spread.regularizer == "softmax" and spread.neighbors == "all":
            raise ValueError("spread.regularizer=softmax is over mined rows; set spread.neighbors to a number or auto")
        if self.clients.sampled_classes and (self.method == "fedavg" or self.data.classes_per_client not in (None, 1)):
            raise ValueError(
                f"clients.sampled_classes={self.clients.sampled_classes} needs clients of one class; "
                "set it to none, or method=softmax and data.classes_per_client=1"
            )
        starts = [start for start, _ in self.train.sizes]
        if any(after <= before for before, after in pairwise(starts)):
            raise ValueError(
                f"train.sizes starts at {', '.join(f'{start:g}' for start in starts)}; wanted each start above the one "
                "before it: sort the [start, size] pairs"
            )
        of_all = ("margin", "uniformity", "energy")
        all_pairs = spread.neighbors == "all" or (spread.neighbors == "auto" and spread.regularizer in of_all)
        if all_pairs and spread.candidates != "all":
            raise ValueError(
                f"spread.candidates={spread.candidates} has no effect on all pairs; "
                "set spread.neighbors to mine among them"
            )
        _check_moves(self)
        _refuse_idle(self, ("server.optimizer", "clients.optimizer", "train.stop_on"))
        _check_privacy(self)
        return self

    @property
    def class_lr(self) -> float:
        """η of the class embeddings."""
        return self.clients.lr if self.clients.class_lr is None else self.clients.class_lr

    def override(self, settings: Iterable[str] | Mapping[str, Any]) -> "Config":
        """This configuration with some settings changed.

        Parameters
        ----------
        settings
            Texts `key=value`, as typed after `-s`; or a mapping of dotted keys to values.

        Returns
        -------
        Config
            A new configuration, checked as a whole.

        Examples
        --------
        >>> Config().override(["spread.weight=3", "seed=7"]).spread.weight
        3.0
        >>> Config().override({"train.rounds": 5}).train.rounds
        5
        """
        if isinstance(settings, str) or not isinstance(settings, Iterable):
            raise FedawsError(f"override: got {_shown(settings)}; wanted a list, as in override(['train.rounds=5'])")
        pairs = settings.items() if isinstance(settings, Mapping) else map(_key_and_value, settings)
        tree = self.model_dump()
        for key, value in pairs:
            _assign(tree, str(key), value)
        return parse(tree)

    def with_(self, **changes: Any) -> "Config":
        """This configuration with some settings changed, as keyword arguments.

        Parameters
        ----------
        changes
            Settings, and for tables a dict of those that change.

        Returns
        -------
        Config
            A new configuration, checked as a whole.

        Examples
        --------
        >>> Config().with_(spread=dict(weight=3), seed=7).spread.weight
        3.0
        """
        tree = self.model_dump()
        for name, value in changes.items():
            table = value.model_dump() if isinstance(value, BaseModel) else value
            if isinstance(table, Mapping) and isinstance(tree.get(name), dict):
                for key, each in table.items():
                    _assign(tree, f"{name}.{key}", each)
            else:
                _assign(tree, name, value)
        return parse(tree)

    def to_toml(self) -> str:
        """The whole configuration as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


# --- in ---------------------------------------------------------------------------------------------------------------


def parse(tree: dict[str, Any]) -> Config:
    """A checked configuration from nested dicts; the first mistake is told in one line."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise FedawsError(_one_line(error, Config)) from None


def load(source: str | os.PathLike[str]) -> Config:
    """The configuration of a preset or a file.

    Parameters
    ----------
    source
        A preset's name (see `presets`), or the path of a TOML file.

    Returns
    -------
    Config
        The checked configuration.
    """
    source = os.fspath(source)
    if source in presets():
        return from_toml(preset_text(source), source)
    path = Path(source)
    if path.suffix != ".toml":
        raise FedawsError(f"no preset {source!r}; there are {', '.join(presets())}, or give the path of a .toml file")
    return from_toml(read_text(path, LONGEST_TEXT), source)


def from_toml(text: str, source: str) -> Config:
    """The configuration in a TOML text; `source` names it in errors."""
    if len(text) > LONGEST_TEXT:
        raise FedawsError(f"{source}: got more than {LONGEST_TEXT:,} characters; wanted a table of settings")
    tree = parse_toml(text, source)
    try:
        return parse(tree)
    except FedawsError as error:
        raise FedawsError(f"{source}: {error}") from None


def presets() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(
        f.name.removesuffix(".toml") for f in resources.files("fedaws.presets").iterdir() if f.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """A preset's file."""
    return (resources.files("fedaws.presets") / f"{name}.toml").read_text(encoding="utf-8")


def _key_and_value(setting: str) -> tuple[str, Any]:
    """Of `key=value`: the value as TOML has it, or else as a text; `none` is none unless it is a choice."""
    if not isinstance(setting, str):
        raise FedawsError(f"override: got {_shown(setting)}; wanted a text, as in 'train.rounds=5'")
    key, separator, text = (part.strip() for part in setting.partition("="))
    if not separator:
        raise FedawsError(f"-s {setting}: wanted key=value, as in -s spread.weight=10")
    if text == "none":
        field = settings().get(key)
        return key, "none" if field and "none" in get_args(field.annotation) else None
    try:
        return key, parse_toml(f"value = {text}", key)["value"]
    except FedawsError:
        return key, text


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    table, _, key = dotted.partition(".")
    if isinstance(tree.get(dotted), dict):
        example = next(iter(tree[dotted]), "key")
        raise FedawsError(f"{dotted} is a table; set one of its keys, as in {dotted}.{example}=…")
    if dotted not in settings() and not (table == "options" and key):  # the method knows its options
        raise FedawsError(_unknown(dotted))
    if key:
        tree[table][key] = value
    else:
        tree[table] = value


# --- what there is ----------------------------------------------------------------------------------------------------


@cache
def tables() -> dict[str, type[Section]]:
    """The tables of the configuration, but for the open one."""
    types = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: t for name, t in types.items() if isinstance(t, type) and issubclass(t, Section)}


@cache
def settings() -> dict[str, FieldInfo]:
    """Every setting by its dotted key.

    >>> settings()["train.rounds"].default
    300
    """
    single = {name: field for name, field in Config.model_fields.items() if name not in tables()}
    return single | {f"{t}.{key}": field for t, table in tables().items() for key, field in table.model_fields.items()}


# --- mistakes ---------------------------------------------------------------------------------------------------------


def _one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first wrong key: what, got, wanted. A union of types has one pydantic error for each of them."""
    home = [name for name, table in tables().items() if table is model]
    errors = error.errors()
    first = errors[0]
    key = _key(first, home)
    if first["type"] == "extra_forbidden":
        return _unknown(".".join([*home, *map(str, first["loc"])]))
    if first["type"] == "value_error" and (not first["loc"] or isinstance(first["ctx"]["error"], FedawsError)):
        return str(first["ctx"]["error"])  # of the whole, or told already by a table
    wanted = dict.fromkeys(_wanted(each) for each in errors if _key(each, home) == key)
    return f"{key}: got {_shown(first['input'])}; wanted {' or '.join(wanted)}"


def _key(error: ErrorDetails, home: list[str]) -> str:
    """The dotted key, without what pydantic adds for the members of a union or a list."""
    path = [*home, *map(str, error["loc"])]
    return ".".join(path[: 2 if path and path[0] in (*tables(), "options") else 1])


def _shown(value: Any) -> str:
    """A value as one would type it, but not all of a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a list in a list in a list …
        return f"a vast {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _wanted(error: ErrorDetails) -> str:
    text = error["msg"].removeprefix("Input should be ")
    of_option = error["loc"][0] == "options"
    match error["type"]:
        case "model_type" | "dict_type":
            text = "a table"
        case "bool_parsing" | "bool_type":
            text = "true or false"
        case "tuple_type":
            text = "a list"
        case "value_error":
            text = str(error["ctx"]["error"])
        case "too_long" if error["ctx"]["max_length"] > 2:
            text = f"at most {error['ctx']['max_length']} of them"
        case "missing" | "too_long":  # of the tuples that have a given length
            text = "pairs [start, size]" if "sizes" in error["loc"] else "pairs [round, share] or [round, [classes]]"
        case "string_pattern_mismatch":
            text = "a name of small letters, digits and _" if of_option else "letters, digits, spaces and _ . + -"
        case "string_too_long":
            text = f"at most {error['ctx']['max_length']} characters"
    return f"a number {text}" if text.startswith(("greater", "less")) else text


def _unknown(dotted: str) -> str:
    """What is wrong with a key that is not known, and what is there instead."""
    table, _, key = dotted.rpartition(".")
    near = difflib.get_close_matches(table, tables(), n=1)
    if near:
        known = {name: f"{near[0]}.{name}" for name in tables()[near[0]].model_fields}
    else:  # the table may have been forgotten: rounds for train.rounds
        known = {name.rpartition(".")[2]: name for name in reversed(settings())} | {name: name for name in tables()}
    close = [] if table and not near else difflib.get_close_matches(key, known, n=1)
    here = known if table in tables() else Config.model_fields
    hint = f"did you mean {known[close[0]]!r}?" if close else f"known here: {', '.join(here)}"
    return f"unknown key {_shown(dotted)}; {hint}"


# --- settings that would do nothing -----------------------------------------------------------------------------------


_EFFECTS = (
    # settings of one table, what decides whether they have an effect, and the values with which they have
    ("server.momentum", "server.optimizer", ("sgd", "muon")),
    ("clients.momentum", "clients.optimizer", ("sgd",)),
    ("train.patience", "train.stop_on", ("strangers",)),
    ("data.classes features examples_per_class overlap", "data.name", ("synthetic",)),
    ("data.like scale", "data.name", ("xc-synthetic",)),
    ("data.drop every_label test_examples held_out_labels", "data.name", SPARSE),
    ("data.image_size", "data.name", ("images",)),
    ("model.norm", "model.name", get_args(ModelName)[3:-1]),
    ("model.hidden", "model.name", ("mlp", "bag", "conv1d")),
    ("model.channels sample_rate", "model.name", ("conv1d",)),
    ("data.seconds", "data.name", SOUNDS),
    ("model.first_bias", "model.name", ("mlp",)),
    ("model.residual", "model.name", ("bag",)),
    ("server.table_optimizer table_lr", "model.name", ("bag",)),
)


def check_effects(cfg: Config, own_data: bool = False, own_encoder: bool = False) -> None:
    """Refuse settings that would do nothing with the data and the encoder that are named.

    Only a value that is not the default is refused. Spreading is not looked at: a preset serves several methods.
    `own_data` and `own_encoder` were given in Python, whatever the settings name.
    """
    _refuse_idle(cfg, [name for name, own in (("data.name", own_data), ("model.name", own_encoder)) if not own])
    if own_data and (cfg.data.strangers or cfg.data.test_strangers):
        raise FedawsError(
            "data.strangers and data.test_strangers have no effect on data that are given; give them to from_arrays"
        )
    if cfg.model.residual and not cfg.model.hidden and not own_encoder:
        raise FedawsError(
            "model.residual=true has no effect on model.hidden=[]; set model.residual=false or add a layer"
        )


def _refuse_idle(cfg: Config, deciders: Collection[str]) -> None:
    for keys, decider, values in _EFFECTS:
        value = _value(cfg, decider)
        idle = [] if decider not in deciders or value in values else list(_changed(cfg, keys))
        if idle:
            given = ", ".join(f"{key}={typed(value)}" for key, value, _ in idle)
            defaults = ", ".join(f"{key}={typed(default)}" for key, _, default in idle)
            have = "has" if len(idle) == 1 else "have"
            instead = f"{decider}={values[0]}" if len(values) == 1 else f"{decider} to one of {', '.join(values)}"
            raise FedawsError(f"{given} {have} no effect on {decider}={value}; set {defaults} or {instead}")


def _changed(cfg: Config, keys: str) -> Iterator[tuple[str, Any, Any]]:
    """Those of the keys that have not their default: key, value, default."""
    table, _, names = keys.partition(".")
    for key in (f"{table}.{name}" for name in names.split()):
        value = _value(cfg, key)
        default = settings()[key].default
        if value != default:
            yield key, value, default


def _value(cfg: Config, dotted: str) -> Any:
    table, _, key = dotted.partition(".")
    return getattr(getattr(cfg, table), key)


def typed(value: Any) -> str:
    """As it is typed after -s.

    >>> typed(None), typed("all"), typed((5, 6)), typed(True)
    ('none', 'all', '[5, 6]', 'true')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _check_moves(cfg: Config) -> None:
    """Refuse schedules of joining and leaving that cannot be followed."""
    for key in ("join", "leave"):
        moves: Moves = getattr(cfg.clients, key)
        given = f"clients.{key}={typed(moves)}"
        shares = [who for _, who in moves if isinstance(who, float)]
        if shares and len(shares) < len(moves):
            raise ValueError(f"{given} mixes shares and lists of classes; wanted pairs of one kind")
        for numbers, what in (([round_num for round_num, _ in moves], "rounds"), (shares, "shares")):
            if any(after <= before for before, after in pairwise(numbers)):
                raise ValueError(f"{given} has {what} that do not rise; sort the pairs, with each round once")
        first = 0 if key == "join" and shares else 1
        if moves and not (moves[0][0] >= first and moves[-1][0] < cfg.train.rounds):
            raise ValueError(f"{given}; wanted rounds from {first} to train.rounds − 1 = {cfg.train.rounds - 1}")
        if key == "join" and shares and (moves[0][0] != 0 or shares[-1] != 1):
            raise ValueError(f"{given}; wanted who is there in round 0 first, and the share 1.0 last")
        if key == "leave" and shares and shares[-1] == 1:
            raise ValueError(f"{given} leaves nobody; wanted a share below 1")
    if cfg.privacy.rows == "private" and (cfg.clients.join or cfg.clients.leave):
        raise ValueError(
            "clients.join and leave do not go with privacy.rows=private: who comes or goes changes the sums by a row "
            "of theirs, which shows it; set privacy.rows=clear"
        )


def _check_privacy(cfg: Config) -> None:
    """Refuse settings of which no ε holds, or that do nothing."""
    privacy = cfg.privacy
    if privacy.noise is not None and privacy.epsilon is not None:
        raise ValueError(
            f"privacy.epsilon={privacy.epsilon:g} computes the noise, and privacy.noise={privacy.noise:g} gives it; "
            "set one of them to none"
        )
    if privacy.row_noise is not None and (privacy.rows == "clear" or privacy.noisy):
        why = "privacy.noise or privacy.epsilon decides" if privacy.noisy else "it is for privacy.rows=private"
        raise ValueError(f"privacy.row_noise={privacy.row_noise:g} has no effect: {why}; set it to none")
    if privacy.noisy and privacy.clip is None:
        raise ValueError("noise hides only what is bounded; set privacy.clip, as in privacy.clip=0.1")
    if not privacy.noisy:
        for key in ("delta", "participations", "public_start", "row_share"):
            if getattr(privacy, key) != PrivacyConfig.model_fields[key].default:
                raise ValueError(f"privacy.{key} has no effect without noise; set privacy.epsilon or privacy.noise")
        return
    counted = "the accounting does not hold with"
    wrong = {
        "clients.weighting=examples": (cfg.clients.weighting == "examples", "set it to uniform"),
        "clients.sampling=examples": (cfg.clients.sampling == "examples", "set it to poisson or uniform"),
        f"train.enroll={cfg.train.enroll:g}": (cfg.train.enroll > 0, "it sends means without noise: set it to 0"),
        f"train.last_step={cfg.train.last_step}": (
            cfg.train.last_step != "none",
            "it sends sums without noise: set it to none",
        ),
        "defence.clip=median": (cfg.defence.clip == "median", "one client moves everybody's length: set it to none"),
        "clients.join or leave": (
            bool(cfg.clients.join or cfg.clients.leave),
            "it counts on the same clients in every round: leave them out",
        ),
        "model.start_rows=means": (cfg.model.start_rows == "means", "it sends means without noise: set it to random"),
    }
    for setting, (is_wrong, fix) in wrong.items():
        if is_wrong:
            raise ValueError(f"{counted} {setting} (privacy.noise or privacy.epsilon is set); {fix}")


def epochs_seen(cfg: Config, num_examples: int, num_clients: int) -> float:
    """How often a run sees each of its training examples, at most and on average.

    >>> few = Config(clients={"per_round": 50, "examples_per_step": 4}, train={"rounds": 400})
    >>> round(epochs_seen(few, num_examples=234_242, num_clients=5000), 2)  # 400 · 50 · 4 = 80,000 examples
    0.34
    """
    clients = cfg.clients
    cohort = num_clients if clients.per_round == "all" else min(clients.per_round, num_clients)
    of_each = num_examples / max(num_clients, 1)
    step = of_each if clients.examples_per_step == "all" else clients.examples_per_step
    return cfg.train.rounds * cohort * clients.local_steps * step / max(num_examples, 1)
