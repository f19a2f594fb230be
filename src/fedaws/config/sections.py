"""The settings: the kinds of values they have, and the tables they stand in.

Numbers are strict: neither `true` nor "1" is the number 1. The text below a setting is its description.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedaws.config.mistakes import one_line
from fedaws.errors import FedawsError

MOST = 10**9
"""The largest number that is believed: the product of any two, such as λη, still is a float32."""


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL")
    return text


Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Several = Annotated[int, Field(ge=2, le=MOST, strict=True)]
Side = Annotated[int, Field(ge=4, le=MOST, strict=True)]  # of an image: a resnet halves it twice
Number = Annotated[int, Field(ge=0, le=MOST, strict=True)]  # of a round or a class, which begin at 0
Seed = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Positive = Annotated[float, Field(gt=0, le=MOST, strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MOST, strict=True, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, strict=True, allow_inf_nan=False)]
Moves = Annotated[tuple[tuple[Number, Share | tuple[Number, ...]], ...], Field(max_length=10_000)]
"""Pairs [round, share of the classes] or [round, [classes]]: from this round on."""
Apart = NonNegative | Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=100_000)]
"""A share or a number of classes, or the names of some."""
Name = Annotated[str, Field(pattern=r"^\w[\w .+-]*$", max_length=100)]  # it becomes part of a folder's name
Place = Annotated[
    str,
    Field(max_length=4096),
    AfterValidator(_without_nul),
    BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
]
OptionName = Annotated[str, Field(pattern=r"^[a-z_]\w*$", max_length=100)]
Option = (
    Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(ge=-MOST, le=MOST, strict=True)]
    | Annotated[float, Field(ge=-MOST, le=MOST, strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(strict=True, max_length=1000)]
)

OptimizerName = Literal["sgd", "adagrad", "adam"]
ServerOptimizerName = Literal["sgd", "adagrad", "adam", "muon"]
ModelName = Literal["mlp", "bag", "conv1d", "resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "own"]
NormName = Literal["group", "weight", "none", "batch-local", "batch-pooled"]

SPARSE = (
    "delicious",
    "yso-finna-en",
    "arxiv-authors",
    "amazoncat-13k",
    "wikilshtc-325k",
    "amazon-670k",
    "xc",
    "xc-synthetic",
)
"""Data of sparse examples with sets of labels, by name."""
SOUNDS = ("audiomnist", "sounds")
"""Data of recordings, by name."""
FOLDERS = ("images", "sounds", "xc")
"""Data of one's own that lie in `data.root`, by name."""


class Section(BaseModel):
    """Settings that belong together: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, use_attribute_docstrings=True)


class Table(Section):
    """Settings whose mistakes are one line, however they are made."""

    def __init__(self, /, **values: Any) -> None:  # a file may have a key named self
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FedawsError(one_line(error, type(self))) from None


class DataConfig(Table):
    """Which examples, and how they lie with the clients."""

    name: Place = "digits"
    """`digits`, `synthetic`, `cifar10`, `cifar100`, `audiomnist`, `images`, `sounds`, or the path of an `.npz` with
    `x_train`, `y_train`, `x_test`, `y_test`; sparse: `delicious`, `yso-finna-en`, `arxiv-authors`, `amazoncat-13k`,
    `wikilshtc-325k`, `amazon-670k`, `xc` (what lies in `data.root`), `xc-synthetic`."""
    root: Place | None = None
    """Where the data are looked for, before `$FEDAWS_DATA` and the cache; `images`, `sounds`: their folder."""
    image_size: Count | None = None
    """`images`: the side they are scaled and cut to; none: they have one size already."""
    seconds: Annotated[float, Field(ge=0.1, le=60, strict=True)] = 1.0
    """Seconds of sound per example; longer recordings are cut into pieces, shorter ones repeated."""
    augment: Literal["none", "crop-flip"] = "none"
    """What a client does to its images before each step."""
    drop: Fraction = 0.0
    """Sparse data: the part of an example's features that a client leaves out of a step."""
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
    validation_by: Literal["example", "class"] = "example"
    """Whether `validation` is drawn out of all training examples, or as large a part of every class as can be."""
    held_out_labels: Literal["all", "one"] = "all"
    """Sparse data: rows held out by `validation` have all their labels, or the one drawn that a client would know."""
    strangers: Apart = 0.0
    """Classes without a client, to choose by: a share (below 1), a number, or a list of names (`*` stands for any
    letters); never in training, in W or in precision@k (docs/people.md)."""
    test_strangers: Apart = 0.0
    """Others, for the final figure alone: measured once, at the end."""
    strangers_seed: Seed = 0
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


class ModelConfig(Table):
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


class ClientsConfig(Table):
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
    """The oracles compare with so many classes per round, drawn at random; none: with all."""
    join: Moves = ()
    """Who comes when: pairs [round, share], from this round on this share of the classes takes part, the first from
    round 0 on; or [round, [classes]], all others being there from the start. Who comes later enrols, then trains."""
    leave: Moves = ()
    """Who goes when: pairs [round, share], from this round on this share is gone, those first who came first; or
    [round, [classes]]."""


class ServerConfig(Table):
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
    """Of embedding tables (`bag`); `adagrad` has one accumulator per row."""
    table_lr: Positive | None = None
    """Step size on embedding tables: with `adagrad` a row's longest step; none: `server.lr`."""
    average: Fraction = 0.0
    """Decay of the exponential average of θ that is evaluated and kept; 0: the last θ."""


class SpreadConfig(Table):
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


class PrivacyConfig(Table):
    """Who is told what: rows that stay at home, user-level differential privacy of θ, secure sums."""

    rows: Literal["clear", "private"] = "clear"
    """`private`: a client keeps its class embedding, and tells of it inside sums over the cohort only."""
    clip: Positive | None = None
    """S: a client's change of θ is cut to this length; none: it is not. It goes with the schedule, as the step does."""
    clip_quantile: Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False)] | None = None
    """The clip follows this quantile of the lengths of the changes, from `clip` on, by a count with noise that the same
    ε pays for; none: it stays."""
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


class DefenceConfig(Table):
    """What the server does against clients that cheat (docs/audit.md); by default nothing."""

    row_step: Fraction = 0.0
    """A client's row stays within this cosine of the row that it was sent; 0: anywhere."""
    anchor: Fraction = 0.0
    """A client's row stays within this cosine of a row of the server's own, which is spread in its place; 0: none."""
    apart: Share = 1.0
    """A row that comes within this cosine of another class's is refused; 1: none."""
    clip: Literal["none", "median"] = "none"
    """`median`: a client's change of θ is at most as long as the median of the cohort's."""


class TrainConfig(Table):
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
    warmup: Number = 0
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
