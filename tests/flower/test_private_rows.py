"""Private rows through the real apps: the simulation's model, no row in any message, and sums over everybody alone."""

import logging
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import fedaws
from fedaws import Config
from fedaws.core.start import random_rows
from fedaws.core.sums import HEARD
from fedaws.errors import FedawsError
from fedaws.flower.federation import read_federation, write_federation
from fedaws.flower.strategy import FedAwS
from fedaws.people.forget import forget
from fedaws.privacy.sum_keeper import PEERS_FILE, ROW_FILES
from fedaws.record.folder import RunFolder
from fedaws.tensor_files import read_safetensors
from flower_trial import Trial
from helpers import refusal

Honest = Callable[[Message], Message]
PRIVATE = ["privacy.rows=private", "spread.regularizer=moments", "privacy.secure_sums=true", "privacy.min_cohort=3"]


@pytest.fixture
def federation(trial: Callable[..., Trial], tiny: Config) -> Callable[..., Trial]:
    """Nodes that keep their rows."""

    def make(clients: int = 4, more: tuple[str, ...] = (), **settings: Any) -> Trial:
        return trial(clients, config=tiny.override([*PRIVATE, f"data.classes={clients}", *more]), **settings)

    return make


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the server logs."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return caplog


def begin_with(made: Trial, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """First rows as a simulation has them, where a node draws its own: node by node, in the order they are asked."""
    drawn = iter(rows)
    monkeypatch.setattr("fedaws.privacy.row_keeper.secret_rows", lambda count, dim: next(drawn)[None])


def home(made: Trial, client: int) -> Path:
    return Path(str(made.node(client).config["peers"])).parent


def row_file(made: Trial, client: int) -> Path:
    (path,) = home(made, client).glob(ROW_FILES)
    return path


def kept_rows(made: Trial, client: int) -> dict[int, torch.Tensor]:
    return {int(number): row for number, row in read_safetensors(row_file(made, client))[0].items()}


def server_sums(made: Trial) -> dict[str, torch.Tensor]:
    newest = max((made.place.run / "checkpoints").glob("*.safetensors"))
    return {name.removeprefix("spread/"): t for name, t in read_safetensors(newest)[0].items() if "spread/" in name}


def round_of(message: Message) -> int:
    """The round of a train message; 0 for another."""
    config = message.content.config_records.get("config")
    return 0 if config is None else cast(int, config["server-round"])


# --- the same model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[], ["clients.local_steps=3"], ["privacy.double_masks=false"]], ids=str)
def test_private_rows_over_flower_give_the_simulations_model_and_rows(
    federation: Callable[..., Trial], settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = federation(5, more=tuple(settings))
    begin_with(made, random_rows(made.config, 5), monkeypatch)
    made.serve()
    reference = fedaws.train(made.data(), config=made.config)
    theta, *_ = RunFolder(made.place.run).load_model()
    for name, tensor in theta.items():
        torch.testing.assert_close(tensor, reference.theta[name], atol=1e-5, rtol=1e-4)
    assert server_sums(made)[HEARD].tolist() == [made.config.train.rounds] * 5


def test_two_nodes_may_drop_out_between_the_stages_and_the_round_completes_without_the_rows(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    """In round 2 one node never answers, another answers and never opens: the sums stay those of round 1."""
    made, means = federation(5, more=("train.rounds=4", "train.evaluate_every=1"), deadline=0.3), dict[int, bytes]()
    now = [0]

    def deliver(message: Message, honest: Honest) -> Message | None:
        now[0] = round_of(message) or now[0]
        if round_of(message):
            means[now[0]] = message.content.array_records["means"]["second"].data
        client = int(made.nodes[message.metadata.dst_node_id].name.removeprefix("node-"))
        gone = now[0] == 2 and (client == 4 or (client == 1 and message.metadata.message_type == "query.open"))
        return None if gone else honest(message)

    for client in range(5):
        made.node(client).deliver = deliver
    made.serve()
    assert [row["replies"] for row in RunFolder(made.place.run).metrics()] == [5, 4, 5, 5]
    assert "round 2: 4 of 5 nodes told of their rows; it takes all of them, so the means stay" in said.text
    assert means[3] == means[2] != means[4]
    rows = torch.stack([kept_rows(made, client)[4] for client in range(5)])
    torch.testing.assert_close(server_sums(made)["second"].float(), rows.T @ rows, atol=1e-5, rtol=0)
    assert sorted(kept_rows(made, 0)) == [3, 4]


def test_below_the_threshold_the_server_learns_nothing_of_rows_either(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    made = federation(5, deadline=0.3)
    for client in range(3):
        made.node(client).deliver = lambda message, honest: honest(message) if round_of(message) else None
    assert "no quorum 3 times" in refusal(made.serve)
    assert "2 nodes opened their shares, wanted 3; the sum of 5 stays masked; nothing can be learnt" in said.text
    assert not (made.place.run / "checkpoints").exists() or not list((made.place.run / "checkpoints").iterdir())


# --- where the row is -----------------------------------------------------------------------------------------------


def numbers_in(content: RecordDict) -> list[torch.Tensor]:
    """Every run of numbers in a message, as float32 where it can be read so."""
    found: list[bytes] = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            found += [array.data for array in record.values()]
        else:
            assert isinstance(record, ConfigRecord)
            parts = [v for value in record.values() for v in (value if isinstance(value, list) else [value])]
            found += [v for v in parts if isinstance(v, bytes)]
    return [torch.frombuffer(bytearray(b[len(b) % 4 :]), dtype=torch.float32) for b in found if len(b) >= 4]


def test_no_message_has_a_row_in_it(federation: Callable[..., Trial]) -> None:
    made, seen, rows = federation(more=("train.rounds=3",)), list[RecordDict](), list[torch.Tensor]()

    def deliver(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        seen.extend([message.content, reply.content])
        rows.extend(kept_rows(made, message.metadata.dst_node_id - 100).values())
        return reply

    for client in range(4):
        made.node(client).deliver = deliver
    made.serve()
    assert len(seen) == 2 * 2 * 4 * 3  # question and answer, two trips, four nodes, three rounds
    assert len({tuple(row.tolist()) for row in rows}) == 4 * 4  # the first, and one a round
    for content in seen:
        for numbers in numbers_in(content):
            for row in rows:
                if len(numbers) >= len(row):
                    assert not bool((numbers.unfold(0, len(row), 1) == row).all(1).any())
    assert not RunFolder(made.place.run).load_model().W.any()  # nor has the server any


def test_a_nodes_row_is_for_its_owner_alone_and_its_first_is_like_no_other(federation: Callable[..., Trial]) -> None:
    made = federation(more=("train.rounds=1",))
    made.serve()
    assert {stat.S_IMODE(row_file(made, client).stat().st_mode) for client in range(4)} == {0o600}
    firsts = torch.stack([kept_rows(made, client)[0] for client in range(4)])
    assert (firsts @ firsts.T - torch.eye(4)).abs().max() < 0.999
    assert (firsts @ random_rows(made.config, 4).T).abs().max() < 0.999  # nor does the seed give it


def test_a_run_that_is_resumed_goes_on_with_the_rows_and_a_new_one_begins_with_others(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    made = federation(more=("train.rounds=3",))
    stop = made.node(3)
    stop.deliver = lambda message, honest: None if round_of(message) == 3 else honest(message)
    made.settings |= {"deadline": 0.3, "quorum": 1.0}
    assert "no quorum" in refusal(made.serve)
    before = kept_rows(made, 0)
    stop.deliver = lambda message, honest: honest(message)
    made.serve()
    assert sorted(kept_rows(made, 0)) == [2, 3]
    torch.testing.assert_close(kept_rows(made, 0)[2], before[2])
    made.settings["folder"] = str(made.place.root / "anew")
    made.serve()
    assert len(list(home(made, 0).glob(ROW_FILES))) == 2


# --- what a node refuses, or is silent about --------------------------------------------------------------------------


def altered(made: Trial, change: Callable[[RecordDict], None], clients: range = range(4), after: int = 2) -> None:
    """A server that changes what it sends to some nodes, after so many rounds."""

    def deliver(message: Message, honest: Honest) -> Message:
        if round_of(message) > after:
            change(message.content)
        return honest(message)

    for client in clients:
        made.node(client).deliver = deliver


def as_if_new(content: RecordDict) -> None:
    record = content.config_records["sum"]
    record["heard"] = [0] * len(cast(list[int], record["heard"]))


def as_if_one_was_new(content: RecordDict) -> None:
    record = content.config_records["sum"]
    record["heard"] = [0, *cast(list[int], record["heard"])[1:]]


def other_means(content: RecordDict) -> None:
    means = content.array_records["means"]
    second = means["second"].numpy()
    means["second"] = Array((second * 3).astype(second.dtype))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (as_if_new, "counted this node in round 0"),
        (as_if_one_was_new, "counted this node in round 0"),
        (other_means, "can be of no rows: their second moment has trace 3"),
    ],
)
def test_what_would_make_rows_tell_more_is_refused(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture, change: Callable[[RecordDict], None], line: str
) -> None:
    made = federation(more=("train.rounds=3",))
    altered(made, change)
    with suppress(FedawsError):  # where only one node refuses, the others go on, and are silent of their rows
        made.serve()
    assert line in said.text


def test_one_node_that_is_called_new_silences_all_of_their_rows(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    """It cannot know yet that it was counted; but of a sole newcomer the others would have the row told."""
    made = federation(more=("train.rounds=2",))
    altered(made, as_if_one_was_new, after=1)
    made.serve()
    assert "round 2: 0 of 4 nodes told of their rows" in said.text


def test_heard_told_to_one_node_otherwise_spoils_the_sum_and_tells_nothing(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    made = federation(deadline=0.3)
    altered(made, as_if_one_was_new, range(1, 2))  # node 1 hears that node 0 is new: it is silent of its row
    refusal(made.serve)
    assert "stays masked; nothing can be learnt" in said.text


def test_a_node_tells_of_its_row_to_everybody_or_nobody(federation: Callable[..., Trial]) -> None:
    """A cohort without one node is answered as ever, but for the second vector."""
    made, replies = federation(5, more=("train.rounds=2",), deadline=0.3), list[tuple[int, set[str]]]()
    made.node(4).online = False

    def deliver(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        if round_of(message):
            replies.append((round_of(message), set(reply.content.array_records["arrays"])))
        return reply

    made.node(0).deliver = deliver
    made.serve()
    assert replies == [(1, {"sum"}), (2, {"sum"})]
    assert server_sums(made)[HEARD].tolist() == [0] * 5


def with_newcomers(made: Trial, old: int) -> Callable[[], None]:
    """A federation of its first nodes; what adds the others to everybody's files."""
    found = read_federation(made.place.federation)
    files = [made.place.federation, *(home(made, m.client) / PEERS_FILE for m in found.members)]
    whole = {path: path.read_text() for path in files}
    shape, dtype = found.example_shape, found.example_dtype
    write_federation(made.place.federation, found.members[:old], shape, dtype, "test.npz", found.sums)
    for member in found.members[:old]:
        path = home(made, member.client) / PEERS_FILE
        known = [f"node-{i} = " for i in range(old, len(found.members))]
        path.write_text("\n".join(line for line in whole[path].splitlines() if not line.startswith(tuple(known))))
    for client in range(old, len(found.members)):
        made.node(client).online = False

    def arrive() -> None:
        for path, text in whole.items():
            path.write_text(text)
        for node in made.nodes.values():
            node.online = True

    return arrive


@pytest.mark.parametrize(("new", "heard"), [(3, [4] * 7), (2, [2] * 4 + [0] * 2)])
def test_newcomers_are_counted_as_many_at_a_time_as_a_sum_must_have(
    federation: Callable[..., Trial], new: int, heard: list[int]
) -> None:
    made = federation(4 + new, more=("train.rounds=4",))
    arrive = with_newcomers(made, old=4)

    def deliver(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        if round_of(message) == 2:
            arrive()
        return reply

    made.node(3).deliver = deliver
    made.serve()
    assert server_sums(made)[HEARD].tolist() == heard
    rows = torch.stack([kept_rows(made, i)[number] for i, number in enumerate(heard) if number])
    torch.testing.assert_close(server_sums(made)["second"].float(), rows.T @ rows, atol=1e-5, rtol=0)


def test_a_run_to_which_nodes_were_added_while_it_stood_still_is_resumed(federation: Callable[..., Trial]) -> None:
    made = federation(7, more=("train.rounds=4",), deadline=0.3, quorum=1.0)
    arrive = with_newcomers(made, old=4)
    made.node(3).deliver = lambda message, honest: None if round_of(message) == 3 else honest(message)
    assert "no quorum" in refusal(made.serve)
    made.node(3).deliver = lambda message, honest: honest(message)
    arrive()
    made.serve()
    assert server_sums(made)[HEARD].tolist() == [4] * 7


def test_a_server_cannot_have_rows_in_the_clear_from_a_node_that_keeps_its_own(
    federation: Callable[..., Trial], said: pytest.LogCaptureFixture
) -> None:
    made = federation(settings="privacy.rows=clear")
    assert 'rows = "private"' in (home(made, 0) / PEERS_FILE).read_text()
    refusal(made.serve)
    assert "the server wants rows=clear, and this node gives rows=private alone" in said.text


def test_nobody_is_forgotten_from_sums_that_hold_everybody(federation: Callable[..., Trial]) -> None:
    made = federation(more=("train.rounds=1",))
    made.serve()
    before = server_sums(made)
    assert "the sums in its checkpoints hold everybody's" in refusal(lambda: forget(made.place.run, "1"))
    assert {name: tensor.tolist() for name, tensor in server_sums(made).items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }


REFUSED = {
    "privacy.secure_sums=false": "set privacy.secure_sums=true",
    "clients.per_round=3": "set clients.per_round=all",
    "model.normalize=false": "rows of unit length",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_private_rows_cannot_do_over_flower_is_refused_in_one_line(tiny: Config, setting: str) -> None:
    config = tiny.override([*PRIVATE, setting])
    assert REFUSED[setting] in refusal(lambda: FedAwS({f"node-{i}": i for i in range(4)}, config=config))


def test_private_rows_need_a_class_for_each_node(tiny: Config) -> None:
    class_of = {f"node-{i}": i % 3 for i in range(4)}
    assert "a class of its own" in refusal(lambda: FedAwS(class_of, config=tiny.override(PRIVATE)))
