"""What a checkpoint or a model says about itself beside its tensors."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from fedaws.files import LARGE


class PrivacyFacts(BaseModel):
    """What a private run promises: (ε, δ) for each person, of all θ that it has released so far, and no more."""

    model_config = ConfigDict(frozen=True)

    epsilon: float
    epsilon_if_known: float | None = None  # against whoever knows who took part in which round
    delta: float
    clip: float
    noise: float  # multiplier of the clip
    releases: NonNegativeInt  # rounds, with those that a crash lost
    people: NonNegativeInt
    per_round: NonNegativeInt
    cohorts: str  # how they are made
    neighbours: str  # between what ε is
    covers: Literal["theta", "theta and means of rows"] = "theta"
    rows: Literal["none", "nothing released", "joint"]
    """Of class embeddings: no ε holds, as the server sees them; they are nobody's; or each is its owner's alone, and ε
    holds for all that the others see, with the means of all rows."""


class Facts(BaseModel):
    """What a checkpoint or model says about itself beside its tensors."""

    model_config = ConfigDict(frozen=True)

    example_shape: tuple[int, ...]
    example_dtype: str
    class_names: tuple[str, ...] | None = None
    own_encoder: bool = False  # given by the user: no configuration can build it again
    own_data: bool = False  # likewise
    own_method: bool = False  # likewise
    data: str | None = None  # a digest of data of one's own
    encoder_name: str | None = None  # the class of an own encoder
    role: str = ""  # what the method is, in a few words
    rows: str | None = None  # what of W its clients are sent
    functions: dict[str, str] = {}  # digests of an own method's functions, and of own measures
    replaced: tuple[str, ...] = ()  # settings in whose place its functions are; config.toml does not have them
    start: str | None = None  # a digest of the weights that training began with, if it did not begin at random
    tested_on: Literal["test", "held-out", "training"] = "test"
    own_measures: tuple[str, ...] = ()  # beside the package's
    classes: NonNegativeInt = 0
    forgotten: tuple[NonNegativeInt, ...] = ()  # classes whose rows were removed on demand, for good
    round: NonNegativeInt = 0
    loss: float = 0.0  # of that round
    loss_sum: float = 0.0  # since the last row of metrics, over
    loss_rounds: NonNegativeInt = 0  # so many rounds
    seconds: float = 0.0  # of training so far, with questions before and after a round; no measuring or recording
    parts: dict[str, float] = {}  # seconds so far by what they went to: clients, server, evaluation, records
    privacy: PrivacyFacts | None = None  # of a private run
    ranks: Annotated[int, Field(ge=1, le=65_536)] = 1  # processes that wrote this checkpoint, each a file with its rows
    shared: dict[str, Annotated[int, Field(ge=0, le=LARGE)]] = {}  # tensors by rows: row i is in rank i mod ranks' file
