"""The settings of `[tool.flwr.app.config]`, checked."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedaws import config as configuration
from fedaws.config import Config, Count, Positive
from fedaws.data import FederatedData, load_data
from fedaws.errors import FedawsError
from fedaws.files import checked
from fedaws.flower.wire import Limits

SERVER_LOG = "server.log"
"""The server's log, in the run folder."""

Text = Annotated[str, Field(pattern="^[^\\x00]*$")]
"""A path, which has no NUL."""


class Settings(BaseModel):
    """What a Flower run of FedAwS can be told, in pyproject.toml or after `flwr run -c`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    config: Text = "digits"  # a preset, or the path of a TOML file on the server
    settings: str = ""  # key=value settings over it, with spaces between; Flower gives them to every node
    federation: Text = ""  # the path of federation.toml on the server: who is who
    folder: Text = ""  # the run folder on the server; a run that is in it goes on
    deadline: Positive = 300.0  # seconds that a round waits for its replies
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5  # of a cohort that must answer well
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0  # seconds it waits on once these have
    wait: Positive = 600.0  # seconds the first round waits for everybody, and every round for a quorum
    clip_norm: Positive = 10.0  # of one client's θ_i − θ
    max_norm: Positive = 1000.0  # beyond which a reply is refused
    max_examples: Count = 1_000_000
    secret_rows: bool = True  # W⁰ from nobody knows what; false: from the seed, as `fedaws train` has it
    trust_claims: bool = False  # INSECURE: believe nodes which client they are; for simulations

    def loaded(self) -> Config:
        """The run's configuration."""
        try:
            settings = shlex.split(self.settings)
        except ValueError as error:
            raise FedawsError(
                f"[tool.flwr.app.config] settings: got {self.settings!r:.80}; {error}; close every quotation mark"
            ) from None
        return configuration.load(self.config).override(settings)

    @property
    def limits(self) -> Limits:
        """What a reply may be at most."""
        return Limits(self.clip_norm, self.max_norm, self.max_examples)

    @property
    def run_folder(self) -> Path | None:
        """Where the run is recorded."""
        return Path(os.path.expanduser(self.folder)) if self.folder else None


def run_settings(run_config: Mapping[str, Any]) -> Settings:
    """The settings in a run's configuration; the first mistake is told in one line."""
    return checked(Settings, dict(run_config), "[tool.flwr.app.config]")


class Dense(FederatedData):
    """Data of which every example is an array."""

    x: Tensor
    x_test: Tensor
    y_test: Tensor


def load_dense(cfg: Config) -> Dense:
    """The configured data; sparse ones are refused."""
    data = load_data(cfg)
    if not isinstance(data.x, Tensor) or not isinstance(data.x_test, Tensor) or not isinstance(data.y_test, Tensor):
        raise FedawsError(f"data.name={cfg.data.name} has sparse examples, which are not carried over Flower yet")
    if data.class_of.ndim > 1:
        raise FedawsError(
            f"data.classes_per_client={cfg.data.classes_per_client} is not carried over Flower; set it to 1"
        )
    return cast(Dense, data)
