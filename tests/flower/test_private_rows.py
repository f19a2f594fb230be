"""Private rows through the real apps: the simulation's model, and no row in any message."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedaws
from fedaws import Config
from fedaws.core.start import random_rows
from fedaws.errors import FedawsError
from fedaws.privacy.row_keeper import ROW_FILE, RowKeeper
from fedaws.record.folder import RunFolder
from fedaws.tensor_files import read_safetensors
from flower_trial import Trial
from helpers import refusal

PRIVATE = ["privacy.rows=private", "spread.regularizer=moments", "privacy.secure_sums=true", "privacy.min_cohort=3"]


@pytest.fixture
def federation(trial: Callable[..., Trial], tiny: Config) -> Callable[..., Trial]:
    """Nodes that keep their rows, which begin with those of the seed, as a simulation's do."""

    def make(clients: int = 4, more: tuple[str, ...] = (), **settings: Any) -> Trial:
        made = trial(clients, config=tiny.override([*PRIVATE, f"data.classes={clients}", *more]), **settings)
        for client, row in enumerate(random_rows(made.config, clients)):
            RowKeeper(home(made, client)).keep(0, 0, row)
        return made

    return make


def home(made: Trial, client: int) -> Path:
    return Path(str(made.node(client).config["peers"])).parent


def theta_of(made: Trial) -> dict[str, torch.Tensor]:
    theta, *_ = RunFolder(made.place.run).load_model()
    return theta


@pytest.mark.parametrize(
    "settings",
    [[], ["clients.local_steps=3"], ["clients.per_round=3"]],
    ids=lambda settings: " ".join(settings) or "all",
)
def test_private_rows_over_flower_give_the_simulations_model(
    federation: Callable[..., Trial], settings: list[str]
) -> None:
    made = federation(more=tuple(settings))
    made.serve()
    reference = fedaws.train(made.data(), config=made.config)
    for name, tensor in theta_of(made).items():
        torch.testing.assert_close(tensor, reference.theta[name], atol=1e-5, rtol=1e-4)


def numbers_in(content: RecordDict) -> list[torch.Tensor]:
    """Every run of numbers in a message, as float32 where it can be read so."""
    found = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            found += [
                torch.frombuffer(bytearray(a.data[len(a.data) % 4 :]), dtype=torch.float32) for a in record.values()
            ]
        elif isinstance(record, ConfigRecord):
            parts = [v for value in record.values() for v in (value if isinstance(value, list) else [value])]
            found += [
                torch.frombuffer(bytearray(v[len(v) % 4 :]), dtype=torch.float32)
                for v in parts
                if isinstance(v, bytes) and len(v) >= 4
            ]
        else:
            assert isinstance(record, MetricRecord)
    return found


def test_no_message_has_a_row_in_it(federation: Callable[..., Trial]) -> None:
    made, seen = federation(more=("train.rounds=3",)), list[RecordDict]()

    def deliver(message: Message, honest: Callable[[Message], Message]) -> Message:
        reply = honest(message)
        seen.extend([message.content, reply.content])
        return reply

    for client in range(4):
        made.node(client).deliver = deliver
    made.serve()
    rows = [row for client in range(4) for row in RowKeeper(home(made, client))._rows().values()]
    assert len(rows) >= 8
    assert len(seen) == 2 * 2 * 4 * 3  # question and answer, two trips, four nodes, three rounds
    for content in seen:
        for numbers in numbers_in(content):
            for row in rows:
                if len(numbers) >= len(row):
                    windows = numbers.unfold(0, len(row), 1)
                    assert not bool((windows == row).all(1).any())
    assert not RunFolder(made.place.run).load_model().W.any()  # nor has the server any


def test_a_nodes_row_is_for_its_owner_alone_and_its_first_is_like_no_other(
    trial: Callable[..., Trial], tiny: Config
) -> None:
    made = trial(4, config=tiny.override([*PRIVATE, "data.classes=4", "train.rounds=2"]))
    made.serve()
    paths = [home(made, client) / ROW_FILE for client in range(4)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    firsts = torch.stack([RowKeeper(path.parent).counted(1, made.config.model.embedding_dim) for path in paths])
    assert (firsts @ firsts.T - torch.eye(4)).abs().max() < 0.999
    seeded = random_rows(made.config, 4)
    assert not any(torch.allclose(first, row, atol=0.05) for first in firsts for row in seeded)


def test_an_answer_that_is_lost_is_told_again(federation: Callable[..., Trial]) -> None:
    """The server's sums are over all rows as their owners know them to be counted."""
    made = federation(5, deadline=0.5, more=("train.rounds=4",))
    lost = []

    def deliver(message: Message, honest: Callable[[Message], Message]) -> Message | None:
        reply = honest(message)
        config = message.content.config_records.get("config")
        if config is not None and config["server-round"] == 2:
            lost.append(reply)
            return None
        return reply

    made.node(0).deliver = deliver
    made.serve()
    assert len(lost) == 1
    keeper = RowKeeper(home(made, 0))
    assert sorted(map(int, keeper._rows())) == [0, 1, 3, 4]  # round 2 was forgotten when round 3 said: counted in 1
    counted = torch.stack(
        [RowKeeper(home(made, client)).counted(4, made.config.model.embedding_dim) for client in range(5)]
    )
    newest = max((made.place.run / "checkpoints").glob("*.safetensors"))
    kept, _ = read_safetensors(newest)
    torch.testing.assert_close(kept["spread/first"].float(), counted.sum(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(kept["spread/second"].float(), counted.T @ counted, atol=1e-5, rtol=0)


def test_private_rows_need_secure_sums_and_a_class_for_each_node(trial: Callable[..., Trial], tiny: Config) -> None:
    clear, shared = (tiny.override([*PRIVATE[:2], "data.classes=4"]), tiny.override([*PRIVATE, "data.classes=3"]))
    assert "privacy.secure_sums=true" in refusal(lambda: trial(4, config=clear).serve())
    assert "a class of its own" in refusal(lambda: trial(4, classes=3, config=shared).serve())


def test_rows_that_others_can_read_or_that_are_not_there_are_refused(tmp_path: Any) -> None:
    keeper = RowKeeper(tmp_path)
    first = keeper.counted(0, 4)
    assert torch.equal(keeper.counted(0, 4), first)
    with pytest.raises(FedawsError, match="lost too many rounds"):
        keeper.counted(7, 4)
    with pytest.raises(FedawsError, match="5 numbers"):
        keeper.counted(0, 5)
    keeper.path.chmod(0o644)
    with pytest.raises(FedawsError, match="chmod 600"):
        keeper.counted(0, 4)


def test_a_keeper_forgets_what_the_server_did_not_count(tmp_path: Any) -> None:
    keeper, rows = RowKeeper(tmp_path), torch.eye(4)
    keeper.keep(0, 1, rows[0])
    keeper.keep(1, 2, rows[1])  # counted after round 1
    keeper.keep(1, 3, rows[2])  # that of round 2 was not
    assert sorted(keeper._rows()) == ["1", "3"]
    assert torch.equal(keeper.counted(3, 4), rows[2])
