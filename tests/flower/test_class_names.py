"""What classes are called, over Flower."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from PIL import Image

import fedaws
from fedaws import Config
from fedaws.flower.federation import Federation, Member, read_federation, write_federation
from flower_trial import make_trial
from helpers import refusal
from inprocess_grid import Node


@pytest.fixture
def faces(tmp_path: Path) -> Config:
    """Pictures of four people, each in a folder of their name."""
    for number, name in enumerate(("Ada", "Barbara", "Grace", "Mary")):
        for part, count in (("train", 4), ("test", 1)):
            folder = tmp_path / "faces" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.full((4, 4, 3), 40 * number + i, np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    settings = ["name=faces", "data.name=images", f"data.root={tmp_path / 'faces'}", "model.embedding_dim=5"]
    return Config().override([*settings, "train.rounds=2", "train.evaluate_every=1", "train.threads=1"])


def test_the_names_of_classes_come_with_the_run_and_reach_no_node(faces: Config, tmp_path: Path) -> None:
    made = make_trial(tmp_path / "trial", faces, 5)
    made.serve()
    run = fedaws.load(made.place.run)
    assert run.class_names == ("Ada", "Barbara", "Grace", "Mary")
    for node in made.nodes.values():
        assert not any(b"Grace" in sent for sent in node.received)


def test_an_unauthenticated_simulation_has_the_names_too(faces: Config, tmp_path: Path) -> None:
    made = make_trial(tmp_path / "trial", faces, 4, trust_claims=True, federation="")
    made.nodes = {200 + i: Node(config={"partition-id": i}) for i in range(4)}
    made.serve()
    assert fedaws.load(made.place.run).class_names == ("Ada", "Barbara", "Grace", "Mary")


def test_a_class_that_joins_brings_its_name_and_the_run_can_be_resumed(faces: Config, tmp_path: Path) -> None:
    made = make_trial(tmp_path / "trial", faces, 4)
    federation = read_federation(made.place.federation)
    shape, dtype = federation.example_shape, federation.example_dtype
    write_federation(made.place.federation, federation.members[:3], shape, dtype, "test.npz")
    late = made.nodes.pop(103)
    killed = list[int]()

    def deliver(message: Message, honest: Callable[[Message], Message]) -> Message:
        if message.content.config_records["config"]["server-round"] == 2:
            killed.append(1)
            raise KeyboardInterrupt
        return honest(message)

    made.node(0).deliver = deliver
    with pytest.raises(KeyboardInterrupt):
        made.serve()
    assert fedaws.load(made.place.run).class_names == ("Ada", "Barbara", "Grace")
    write_federation(made.place.federation, federation.members, shape, dtype, "test.npz")
    made.nodes[103] = late
    made.node(0).deliver = lambda message, honest: honest(message)
    made.serve()
    run = fedaws.load(made.place.run)
    assert (killed, run.class_names) == ([1], ("Ada", "Barbara", "Grace", "Mary"))


@pytest.mark.parametrize("names", [("Ada", "Ada"), ("Ada", "Eve")])
def test_a_class_has_one_name_and_a_name_one_class(names: tuple[str, str]) -> None:
    classes = (0, 1) if names[0] == names[1] else (0, 0)
    members = [Member(i, c, f"node-{i}", class_name=n) for i, (c, n) in enumerate(zip(classes, names, strict=True))]
    assert "give each class_name to one class" in refusal(lambda: Federation((*members, Member(2, 1, "other"))))


def test_classes_without_a_node_are_told_of(cli: Callable[..., Any], tiny_toml: Path) -> None:
    said = cli("flower", "init", "three", "--clients", 3, "--config", tiny_toml).err
    assert "only the first 3 of the data's 4 classes have a node, the others are left out" in said
    for options in (["--clients", 4], ["--clients", 3, "--classes", 3]):
        assert "left out" not in cli("flower", "init", "-".join(map(str, options)), *options, "--config", tiny_toml).err
