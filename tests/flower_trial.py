"""A federation on disk, and its grid in this process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives import serialization

from fedaws import Config, FederatedData
from fedaws.flower.client_app import app as client_app
from fedaws.flower.federation import Member, read_federation
from fedaws.flower.server_app import app as server_app
from fedaws.flower.setup import Place, create
from fedaws.privacy.sum_keeper import PEERS_FILE
from inprocess_grid import InProcessGrid, Node


def as_told(public_key: str) -> bytes:
    """A key as the SuperLink tells it."""
    key = serialization.load_ssh_public_key(public_key.encode())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Trial:
    """A federation whose nodes have ids 100, 101, … and can be made to misbehave."""

    place: Place
    config: Config
    members: tuple[Member, ...]
    nodes: dict[int, Node]
    settings: dict[str, Any]

    def node(self, client: int) -> Node:
        return self.nodes[100 + client]

    def serve(self) -> None:
        InProcessGrid(client_app, self.nodes, self.settings).serve(server_app)

    def remembered(self) -> dict[str, Any]:
        """What the server keeps beside its checkpoints."""
        found: dict[str, Any] = json.loads((Path(self.settings["folder"]) / "flower.json").read_text())
        return found

    def data(self) -> FederatedData:
        """All nodes' examples put together, as a simulation has them."""
        parts = [torch.from_numpy(np.load(self.place.node(m.name) / "data.npz")["x"]) for m in self.members]
        test = np.load(self.place.server / "test.npz")
        class_of = torch.tensor([m.class_id for m in self.members])
        counts = torch.tensor([len(x) for x in parts])
        return FederatedData(
            x=torch.cat(parts),
            y=class_of.repeat_interleave(counts),
            starts=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
            class_of=class_of,
            num_classes=int(class_of.max()) + 1,
            x_test=torch.from_numpy(test["x"]),
            y_test=torch.from_numpy(test["y"]),
        )


def node_of(place: Place, member: Member) -> Node:
    assert member.public_key is not None
    folder = place.node(member.name)
    config = {"data": str(folder / "data.npz"), "class-id": member.class_id}
    if (folder / PEERS_FILE).exists():
        config["peers"] = str(folder / PEERS_FILE)
    return Node(member.name, as_told(member.public_key), config)


def make_trial(root: Path, config: Config, clients: int, classes: int | None = None, **settings: Any) -> Trial:
    """A federation in a folder; settings of the Flower app as keywords."""
    place = create(root, config, clients, classes, **{"secret-rows": False})  # type: ignore[arg-type]  # to be compared with `fedaws train`
    found = read_federation(place.federation)
    app_settings = {
        "config": str(place.server / "config.toml"),
        "federation": str(place.federation),
        "folder": str(place.run),
        "deadline": 30.0,
        "wait": 0.2,
        "secret-rows": False,
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    nodes = {100 + m.client: node_of(place, m) for m in found.members}
    return Trial(place, config, found.members, nodes, app_settings)
