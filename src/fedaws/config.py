"""The run's configuration: frozen, checked at the edge, unknown keys refused; TOML in and out."""

import difflib
import tomllib
from collections.abc import Iterable
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedaws.errors import FedawsError

# Strict: neither `true` nor "1" is the number 1. Up to 1e9: the product of any two, such as λη, still is a float32.
Count = Annotated[int, Field(ge=1, strict=True)]
Positive = Annotated[float, Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e9, strict=True, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Side = Annotated[int, Field(ge=4, strict=True)]  # of an image: a resnet halves it twice
Name = Annotated[str, Field(pattern=r"^\w[\w .+-]*$", max_length=100)]  # it becomes part of a folder's name
OptionName = Annotated[str, Field(pattern=r"^[a-z_]\w*$", max_length=100)]
Option = (
    Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(ge=-(10**9), le=10**9, strict=True)]
    | Annotated[float, Field(ge=-1e9, le=1e9, strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(strict=True, max_length=1000)]
)

OptimizerName = Literal["sgd", "adagrad", "adam"]
ServerOptimizerName = Literal["sgd", "adagrad", "adam", "muon"]
ModelName = Literal["mlp", "bag", "resnet8", "resnet20", "resnet32", "resnet44", "resnet56"]
NormName = Literal["group", "weight", "none", "batch-local", "batch-pooled"]


class Section(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class DataConfig(Section):
    """Which examples, and how they lie with the clients."""

    # digits, synthetic, cifar10, cifar100, images, or the path of an .npz with x_train, y_train, x_test, y_test;
    # sparse: delicious, yso-finna-en, amazoncat-13k, wikilshtc-325k, amazon-670k, xc (what lies in root), xc-synthetic
    name: str = "digits"
    root: str | None = None  # where they are looked for first, before $FEDAWS_DATA and the cache; images: their folder
    image_size: Count | None = None  # images: the side they are scaled and cut to; None: they have one size already
    augment: Literal["none", "crop-flip"] = "none"  # what a client does to its images before each step
    drop: Fraction = 0.0  # sparse data: the part of an example's features that a client leaves out in a step
    every_label: bool = False  # sparse data: a training example is with the clients of all its labels, not of one drawn
    clients_per_class: Count = 1
    classes_per_client: Count | None = None  # None: as the method has it (1, and 2 for fedavg)
    num_classes: Count | None = None  # more than the labels show: the others keep an untrained row
    validation: NonNegative = 0.0  # fraction (< 1) or number of training examples to test on in place of the test set
    classes: Annotated[int, Field(ge=2, strict=True)] = 100  # synthetic: number of classes,
    features: Count = 32  # dimensions of x,
    examples_per_class: Annotated[int, Field(ge=2, strict=True)] = (
        50  # examples of each class (a fifth of them for the test),
    )
    overlap: NonNegative = 0.5  # and their noise, as a multiple of the distance between class centres
    like: str = "amazon-670k"  # xc-synthetic: the set of whose shape they are,
    scale: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0  # or of that much of it
    test_examples: Count | Literal["all"] = "all"  # sparse data: test on so many, the same for every seed


class ModelConfig(Section):
    """The encoder x → g(x)."""

    name: ModelName = "mlp"
    embedding_dim: Count = 32
    hidden: tuple[Count, ...] = (128,)  # mlp and bag: their layers; bag with none: the table of features alone
    residual: bool = False  # bag: add the features' mean to what the layers make of it
    norm: NormName = "weight"  # resnet: what stands in for BatchNorm (docs/results/recipe.md)
    normalize: bool = True  # unit g(x) and unit rows of W, as in all of the paper's experiments
    start: str | None = None  # a run folder or a .safetensors file with weights to start from
    start_rows: Literal["random", "means"] = "random"  # W⁰; means: each class's mean embedding under the first θ
    crowding: NonNegative = 0.0  # so much of a class's mean cosine with its ten nearest is taken from its scores


class ClientsConfig(Section):
    """Who takes part, and what a client does in a round."""

    per_round: Count | Literal["all"] = "all"
    sampling: Literal["uniform", "examples"] = "uniform"
    examples_per_step: Count | Literal["all"] = 16
    local_steps: Count = 1
    lr: Positive = 0.3
    class_lr: NonNegative | None = None  # step on the own row w_i, and η of the spreadout step; None: lr
    optimizer: OptimizerName = "sgd"
    momentum: Fraction = 0.0
    margin: Annotated[float, Field(gt=0, le=1, strict=True, allow_inf_nan=False)] = 0.9
    weighting: Literal["uniform", "examples"] = "uniform"
    scale: Positive = 16.0  # the softmax oracle's factor on the cosines
    # The oracles compare with so many classes a round, drawn at random, where all of them do not fit; None: with all.
    sampled_classes: Annotated[int, Field(ge=2, strict=True)] | None = None


class ServerConfig(Section):
    """The optimiser of the averaged delta; sgd with lr 1 and momentum 0 is plain averaging."""

    optimizer: ServerOptimizerName = "sgd"
    lr: Positive = 1.0
    momentum: Fraction = 0.0
    weight_decay: Fraction = 0.0  # of θ's matrices, times the step size; keeps standardised filters turning (recipe.md)
    table_optimizer: Literal["adagrad", "sgd"] = "adagrad"  # of embedding tables; adagrad has one accumulator a row
    table_lr: Positive | None = None  # of embedding tables: with adagrad a row's longest step; None: lr
    average: Fraction = 0.0  # decay of the exponential average of θ that is evaluated and kept; 0: the last θ


class SpreadConfig(Section):
    """The server-side step that keeps the classes apart."""

    # eq. (6), eq. (7), first and second moment; softmax over mined rows (FedGC), uniformity, hyperspherical energy
    regularizer: Literal["margin", "nearest", "moments", "softmax", "uniformity", "energy"] = "margin"
    weight: NonNegative = 10.0  # λ of the pairs; center and whiten have none
    margin: Annotated[float, Field(gt=0, le=2, strict=True, allow_inf_nan=False)] = (
        1.0  # ν, a cosine distance: none is above 2
    )
    neighbors: Count | Literal["auto", "all"] = "auto"  # k; auto: all pairs for eq. (6), up to 10 for eq. (7)
    candidates: Count | Literal["all"] = "all"  # |C′|
    remember: bool = False  # look also among the neighbours found before and theirs; of no use where C′ is all classes
    steps: Count = 1
    center: bool = False  # subtract the rows' mean first
    whiten: bool = False  # then even out the rows' second moment; `moments` is center + whiten and no pairs
    every: Count | Literal["auto"] = "auto"  # rounds from one centring and whitening to the next; auto: until a quarter
    # of the rows may have changed
    bounded: bool = True  # false: the paper's literal step λη


class TrainConfig(Section):
    """How long, how often, and on what."""

    rounds: Count = 300
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    enroll: NonNegative = 0.0  # after the last round so much of the mean of a class's embeddings is added to its row
    # then W anew from all clients' embeddings: by ridge regression, or as Gaussian classes with one covariance (lda)
    last_step: Literal["none", "ridge", "lda"] = "none"
    ridge: NonNegative = 1.0  # λ of that, in units of the mean eigenvalue of the embeddings' second moment
    warmup: Annotated[int, Field(ge=0, strict=True)] = 0  # rounds over which the learning rate rises to its full value
    sizes: tuple[tuple[Fraction, Side], ...] = ()  # from this part of the rounds on, images of this size
    evaluate_every: Count = 25
    checkpoint_every: Count = 100
    runner: Literal["auto", "serial", "pooled", "stacked"] = "auto"
    block: Count | Literal["auto"] = "auto"  # clients a runner handles at once
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | Literal["auto"] = "auto"
    device: str = "auto"


class Config(Section):
    """One run. A run is a pure function of this, seed included."""

    name: Name = "digits"
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    method: Name = "fedaws"  # one of `fedaws.core.methods`, or the name of one's own that is given in Python
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    clients: ClientsConfig = ClientsConfig()
    server: ServerConfig = ServerConfig()
    spread: SpreadConfig = SpreadConfig()
    train: TrainConfig = TrainConfig()
    options: dict[OptionName, Option] = Field(default_factory=dict)  # settings that only the chosen method has

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        spread, on_the_sphere = self.spread, self.spread.center or self.spread.whiten or self.spread.remember
        if not self.model.normalize and self.method == "fedaws" and (spread.regularizer != "margin" or on_the_sphere):
            raise ValueError(
                f"spread.regularizer={spread.regularizer}, center={spread.center}, whiten={spread.whiten}, "
                f"remember={spread.remember} "
                "needs unit rows (it has no minimum without them); set model.normalize=true or regularizer=margin alone"
            )
        if not self.model.normalize and (self.model.crowding or self.train.enroll):
            raise ValueError(
                f"model.crowding={self.model.crowding:g}, train.enroll={self.train.enroll:g} need unit rows and "
                "embeddings; set model.normalize=true"
            )
        if self.train.enroll and self.train.last_step != "none":
            raise ValueError(
                f"train.enroll={self.train.enroll:g} has no effect beside train.last_step={self.train.last_step}; "
                "set one of them"
            )
        all_pairs = spread.neighbors == "all" or (
            spread.neighbors == "auto" and spread.regularizer in ("margin", "uniformity", "energy")
        )
        if all_pairs and spread.candidates != "all":
            raise ValueError(
                f"spread.candidates={spread.candidates} has no effect on all pairs; "
                "set spread.neighbors to mine among them"
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
        for name, section in (("server", self.server), ("clients", self.clients)):
            if section.momentum and section.optimizer not in ("sgd", "muon"):
                raise ValueError(
                    f"{name}.momentum={section.momentum} has no effect on {name}.optimizer={section.optimizer}; "
                    f"set {name}.momentum=0 or {name}.optimizer=sgd"
                )
        return self

    @property
    def class_lr(self) -> float:
        """η of the class embeddings."""
        return self.clients.lr if self.clients.class_lr is None else self.clients.class_lr

    def override(self, settings: Iterable[str]) -> "Config":
        """This configuration with `key=value` settings applied, as typed after `-s`.

        >>> Config().override(["spread.weight=3", "seed=7"]).spread.weight
        3.0
        """
        tree = self.model_dump()
        for setting in settings:
            key, separator, text = setting.partition("=")
            if not separator:
                raise FedawsError(f"-s {setting}: wanted key=value, as in -s spread.weight=10")
            _assign(tree, key.strip(), _parse_value(text.strip()))
        return parse(tree)

    def to_toml(self) -> str:
        """The whole configuration as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def parse(tree: dict[str, Any]) -> Config:
    """A checked configuration from nested dicts; the first mistake is told in one line."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise FedawsError(_one_line(error)) from None


def load(source: str) -> Config:
    """The preset of this name, or the TOML file at this path."""
    if source in presets():
        text = (resources.files("fedaws.presets") / f"{source}.toml").read_text(encoding="utf-8")
    else:
        path = Path(source)
        if path.suffix != ".toml":
            raise FedawsError(
                f"no preset {source!r}; there are {', '.join(presets())}, or give the path of a .toml file"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FedawsError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from None
    return from_toml(text, source)


def from_toml(text: str, source: str) -> Config:
    """The configuration in a TOML text; `source` names it in errors."""
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedawsError(f"{source} is not TOML: {error}") from None
    except FedawsError as error:
        raise FedawsError(f"{source}: {error}") from None


def presets() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(
        f.name.removesuffix(".toml") for f in resources.files("fedaws.presets").iterdir() if f.name.endswith(".toml")
    )


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *tables, key = dotted.split(".")
    if tables == ["options"]:  # an open table: the method knows its keys
        tree["options"][key] = value
        return
    node = tree
    for depth, table in enumerate(tables):
        child = node.get(table)
        if not isinstance(child, dict) or table == "options":
            raise FedawsError(_unknown(dotted, dotted.split(".")[: depth + 1]))
        node = child
    if key not in node:
        raise FedawsError(_unknown(dotted, dotted.split(".")))
    if isinstance(node[key], dict):
        raise FedawsError(f"{dotted} is a table; set one of its keys, as in {dotted}.{next(iter(node[key]), 'key')}=…")
    section = _sections()[tables[0]] if tables else Config
    is_a_choice = "none" in get_args(section.model_fields[key].annotation)  # and not the absence of one
    node[key] = "none" if value is None and is_a_choice else value


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text == "none" else text


def _one_line(error: ValidationError) -> str:
    """The first wrong key: what, got, wanted. A union of types has one pydantic error for each of them."""
    first, key = error.errors()[0], _key(error.errors()[0])
    if first["type"] == "extra_forbidden":
        return _unknown(".".join(map(str, first["loc"])), [str(part) for part in first["loc"]])
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    wanted = dict.fromkeys(_wanted(each) for each in error.errors() if _key(each) == key)
    return f"{key}: got {first['input']!r}; wanted {' or '.join(wanted)}"


def _key(error: ErrorDetails) -> str:
    """The dotted key, without what pydantic adds for the members of a union or a list."""
    depth = 2 if error["loc"] and error["loc"][0] in (*_sections(), "options") else 1
    return ".".join(map(str, error["loc"][:depth]))


def _wanted(error: ErrorDetails) -> str:
    text = error["msg"].removeprefix("Input should be ")
    match error["type"]:
        case "model_type" | "dict_type":
            return "a table"
        case "bool_parsing" | "bool_type":
            return "true or false"
        case "tuple_type":
            return "a list"
        case "missing" | "too_long":  # only `train.sizes` has tuples of a given length
            return "pairs [start, size]"
        case "string_pattern_mismatch":
            of_option = error["loc"][0] == "options"
            return "a name of small letters, digits and _" if of_option else "letters, digits, spaces and _ . + -"
        case _:
            return f"a number {text}" if text.startswith(("greater", "less")) else text


def _unknown(dotted: str, path: list[str]) -> str:
    """What is wrong with a key whose last part in `path` is not known, and what is there instead."""
    section = _sections().get(path[0]) if len(path) > 1 else Config
    known = list((section or Config).model_fields)
    close = difflib.get_close_matches(path[-1], known, n=1)
    hint = f"did you mean {'.'.join([*path[:-1], *close])!r}?" if close else f"known here: {', '.join(known)}"
    return f"unknown key {dotted!r}; {hint}"


def _sections() -> dict[str, type[Section]]:
    """The tables of the configuration."""
    types = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: t for name, t in types.items() if isinstance(t, type) and issubclass(t, Section)}
