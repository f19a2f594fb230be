"""`fedaws flower init` and the files it writes."""

import shutil
import ssl
import stat
import subprocess
import tomllib
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from cryptography import x509
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedaws import Config
from fedaws.flower.federation import read_federation
from fedaws.flower.server_app import app
from fedaws.flower.settings import run_settings
from fedaws.flower.setup import create
from fedaws.flower.strategy import FedAwS
from fedaws.flower.up import Processes, register
from helpers import refusal


@pytest.fixture
def place(tmp_path: Path, tiny: Config) -> Any:
    return create(tmp_path / "federation", tiny, 5, 3, ["server.example", "192.0.2.7"])


def test_init_writes_a_federation_and_says_what_comes_next(cli: Callable[..., Any], tiny_toml: Path) -> None:
    code, out, err = cli("flower", "init", "trial", "--clients", 4, "--config", tiny_toml)
    assert (code, out) == (0, "")
    assert "fedaws flower up trial" in err


def test_init_refuses_a_folder_that_is_taken(refused: Callable[..., str], tiny_toml: Path) -> None:
    (Path("trial") / "server").mkdir(parents=True)
    (Path("trial") / "server" / "federation.toml").touch()
    assert "already holds a federation" in refused("flower", "init", "trial", "--clients", 4, "--config", tiny_toml)


def test_init_refuses_more_classes_than_clients(refused: Callable[..., str], tiny_toml: Path) -> None:
    line = refused("flower", "init", "trial", "--clients", 3, "--classes", 4, "--config", tiny_toml)
    assert "3 clients and 4 classes" in line


def test_init_refuses_what_cannot_run_over_flower(refused: Callable[..., str], tiny_toml: Path) -> None:
    line = refused("flower", "init", "trial", "--clients", 4, "--config", tiny_toml, "-s", "method=softmax")
    assert "method=softmax is not carried over Flower (rows: all); use method=fedaws" in line
    assert not Path("trial").exists()


@pytest.mark.parametrize("host", ["", "bücher.example", "a b", "-x", "https://server.example"])
def test_init_refuses_what_is_no_host(refused: Callable[..., str], tiny_toml: Path, host: str) -> None:
    line = refused("flower", "init", "trial", "--clients", 4, "--config", tiny_toml, "--host", host)
    assert "neither an address nor a name" in line
    assert not Path("trial").exists()


@pytest.mark.parametrize(("options", "secret"), [([], True), (["--same-rows"], False)])
def test_the_first_rows_are_secret_unless_asked_otherwise(
    cli: Callable[..., Any], tiny_toml: Path, options: list[str], secret: bool
) -> None:
    cli("flower", "init", "trial", "--clients", 4, "--config", tiny_toml, *options)
    written = tomllib.loads((Path("trial") / "app" / "pyproject.toml").read_text())
    assert written["tool"]["flwr"]["app"]["config"]["secret-rows"] is secret


def test_trusting_claims_beside_a_federation_is_refused(place: Any) -> None:
    context = type("Context", (), {"run_config": {"trust-claims": True, "federation": str(place.federation)}})
    assert "set only one of them" in refusal(lambda: app(None, context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "y", [np.array([-1, 0]), np.array([0.0, 1.0]), np.array([[0, 1]]), np.array(["a", "b"]), np.array([0])]
)
def test_a_test_set_without_class_numbers_is_refused(place: Any, y: Any) -> None:
    np.savez(place.server / "test.npz", x=np.zeros((2, 6), np.float32), y=y)
    context = type("Context", (), {"run_config": {"federation": str(place.federation)}})
    assert "test.npz" in refusal(lambda: app(None, context))  # type: ignore[arg-type]


def test_an_unknown_type_of_examples_is_refused(place: Any) -> None:
    text = place.federation.read_text().replace('"float32"', '"load"')
    place.federation.write_text(text)
    assert "example_dtype" in refusal(lambda: read_federation(place.federation))


def test_up_refuses_a_folder_without_a_federation(refused: Callable[..., str]) -> None:
    assert "cannot read" in refused("flower", "up", "nowhere")


def test_the_first_classes_get_the_nodes_that_are_left_over(place: Any) -> None:
    assert [m.class_id for m in read_federation(place.federation).members] == [0, 0, 1, 1, 2]


def test_the_nodes_of_a_class_share_its_examples_out(place: Any) -> None:
    counts = [len(np.load(place.node(f"node-{i}") / "data.npz")["x"]) for i in range(5)]
    assert counts == [4, 4, 4, 4, 8]  # 8 of 10 examples a class are for training


def test_only_the_owner_can_read_a_key(place: Any) -> None:
    keys = [place.root / "ca" / "ca.key", place.server / "server.key", *place.root.glob("nodes/*/key")]
    assert len(keys) == 7
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_only_the_owner_can_look_into_the_folder(place: Any) -> None:
    assert stat.S_IMODE(place.root.stat().st_mode) == 0o700


def test_an_empty_folder_that_others_could_look_into_is_closed(tmp_path: Path, tiny: Config) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    place = create(tmp_path / "open", tiny, 2, 2)
    assert stat.S_IMODE(place.root.stat().st_mode) == 0o700


def test_a_folder_with_other_things_that_others_can_look_into_is_refused(tmp_path: Path, tiny: Config) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open" / "notes").touch()
    assert "others can look into" in refusal(lambda: create(tmp_path / "open", tiny, 2, 2))
    assert [path.name for path in (tmp_path / "open").iterdir()] == ["notes"]


def test_a_federation_whose_data_are_on_the_nodes_is_made_without_any(cli: Callable[..., Any]) -> None:
    arguments = ("--clients", 3, "--classes", 2, "--no-data", "--example-shape", "1, 28,28", "--example-dtype", "uint8")
    code, _, err = cli("flower", "init", "trial", "-s", "data.name=nowhere.npz", *arguments)
    assert code == 0, err
    assert "fedaws flower register trial" in err
    federation = read_federation(Path("trial/server/federation.toml"))
    assert (federation.example_shape, federation.example_dtype, federation.test) == ((1, 28, 28), "uint8", None)
    assert [m.class_id for m in federation.members] == [0, 0, 1]
    assert {path.name for path in Path("trial/nodes/node-2").iterdir()} == {"key", "key.pub", "ca.crt"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--no-data",), "--example-shape: got 'nothing'"),
        (("--no-data", "--example-shape", "28x28"), "wanted sizes, as in 64 or 1,28,28"),
        (("--no-data", "--example-shape", "0"), "wanted sizes"),
        (("--no-data", "--example-shape", "6", "--example-dtype", "int8"), "wanted float32 or uint8"),
        (("--example-shape", "6"), "goes with --no-data"),
    ],
)
def test_init_refuses_a_shape_that_is_none(
    refused: Callable[..., str], tiny_toml: Path, arguments: tuple[str, ...], line: str
) -> None:
    assert line in refused("flower", "init", "trial", "--clients", 3, "--config", tiny_toml, *arguments)
    assert not Path("trial").exists()


def test_a_trial_without_examples_is_not_started(refused: Callable[..., str], tiny_toml: Path) -> None:
    create(Path("trial"), Config(), 2, example_shape=(6,))
    assert "put the examples of node-0 there" in refused("flower", "up", "trial")


def test_register_tells_the_superlink_of_all_nodes_by_the_servers_own_files(
    tmp_path: Path, tiny: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = create(tmp_path / "federation", tiny, 3, 3, ["server.example"])
    shutil.rmtree(place.root / "nodes")  # each is on its own machine
    asked: dict[str, str] = {}

    def answered(self: Processes, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert home == place.home
        assert arguments[:2] == ("supernode", "register")
        asked[arguments[-1]] = Path(arguments[2]).read_text().strip()
        code = 1 if arguments[-1] == "node-1" else 0
        return subprocess.CompletedProcess(arguments, code, "", "Public key already in use")

    monkeypatch.setattr(Processes, "flwr", answered)
    assert [member.name for member in register(place.root)] == ["node-0", "node-1", "node-2"]
    assert asked == {m.name: m.public_key for m in read_federation(place.federation).members}


def test_a_nodes_folder_holds_no_secret_of_another_machine(place: Any) -> None:
    assert {p.name for p in place.node("node-2").iterdir()} == {"key", "key.pub", "ca.crt", "data.npz"}
    assert not {p.name for p in place.server.iterdir()} & {"ca.key", "key"}


def test_the_operators_settings_name_the_server_that_was_given(place: Any) -> None:
    found = tomllib.loads((place.home / "config.toml").read_text())["superlink"]
    assert found[found["default"]] == {"address": "server.example:8000", "root-certificates": "server/ca.crt"}
    assert (place.root / "server" / "ca.crt").exists()  # so that the folder may be copied anywhere


def test_an_address_with_colons_is_told_from_its_port(tmp_path: Path, tiny: Config) -> None:
    place = create(tmp_path / "federation", tiny, 2, 2, ["2001:db8::7"])
    found = tomllib.loads((place.home / "config.toml").read_text())["superlink"]
    assert found[found["default"]]["address"] == "[2001:db8::7]:8000"


def test_the_settings_of_init_are_not_in_the_app_that_every_node_gets(tmp_path: Path, tiny: Config) -> None:
    place = create(tmp_path / "federation", tiny.override(["spread.weight=3.25", "seed=4711"]), 4)
    assert "3.25" in (place.server / "config.toml").read_text()
    app_file = (place.app / "pyproject.toml").read_text()
    assert "3.25" not in app_file
    assert "4711" not in app_file


def test_the_server_is_certified_for_a_year_and_the_authority_for_ten(place: Any) -> None:
    found = [x509.load_pem_x509_certificate((place.server / name).read_bytes()) for name in ("server.pem", "ca.crt")]
    assert [(c.not_valid_after_utc - c.not_valid_before_utc).days for c in found] == [365, 3650]


def test_the_authority_vouches_for_the_server_under_all_its_names(place: Any) -> None:
    context = ssl.create_default_context(cafile=place.authority)
    assert len(context.get_ca_certs()) == 1
    ca = x509.load_pem_x509_certificate(place.authority.read_bytes())
    server = x509.load_pem_x509_certificate((place.server / "server.pem").read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "server.example"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "192.0.2.7"]


@pytest.mark.parametrize("folder", ["trial", "example"])
def test_flower_takes_the_app_folder(place: Any, folder: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "flower"
    path = (place.app if folder == "trial" else example) / "pyproject.toml"
    config, warnings = load_and_validate(path)
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedaws.flower.server_app:app"
    assert warnings == []
    run_settings(tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"])


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
@pytest.mark.parametrize("folder", ["trial", "example"])
def test_what_runs_leave_in_the_app_folder_does_not_go_to_the_nodes(place: Any, tmp_path: Path, folder: str) -> None:
    """Flower packs every JSON and TOML file that it finds there."""
    example = Path(__file__).parents[2] / "examples" / "flower"
    copy = shutil.copytree(place.app if folder == "trial" else example, tmp_path / "copy")
    before = packed(copy)
    assert "pyproject.toml" in before
    for name in ("run/details.json", "trial/server/config.toml", "run/metrics.jsonl"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("")
    assert packed(copy) == before


def packed(folder: Path) -> set[str]:
    with ZipFile(BytesIO(build_fab_from_disk(folder))) as fab:
        return set(fab.namelist())


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"deadlin": 3.0}, "deadlin"),
        ({"quorum": 0.0}, "quorum"),
        ({"clip-norm": -1.0}, "clip-norm"),
        ({"settings": "name='tiny"}, "No closing quotation"),
        ({"folder": "a\0b"}, "folder"),
        ({"config": "\0.toml"}, "config"),
        ({"federation": "\0"}, "federation"),
        ({"deadline": "\x1b[2J" * 1000}, "deadline"),
    ],
)
def test_a_wrong_setting_is_one_line(given: dict[str, Any], line: str) -> None:
    message = refusal(lambda: run_settings(given).loaded())
    assert line in message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize("name", ["glas", "fedalc", "class-features"])
def test_the_strategy_refuses_a_method_that_needs_facts_of_the_classes(tiny: Config, name: str) -> None:
    config = tiny.override([f"method={name}"])
    assert "the method needs the classes'" in refusal(lambda: FedAwS({"a": 0, "b": 1}, config=config))


def test_the_strategy_takes_no_spread_that_the_configuration_would_not(tiny: Config) -> None:
    unchecked = tiny.spread.model_copy(update={"weight": -1.0})
    assert "spread.weight" in refusal(lambda: FedAwS({"a": 0, "b": 1}, config=tiny, spread=unchecked))


def test_a_server_without_a_federation_does_not_start() -> None:
    context = type("Context", (), {"run_config": {"config": "digits"}})
    assert "trust-claims" in refusal(lambda: app(None, context))  # type: ignore[arg-type]


def test_ids_are_numbered_in_the_order_of_the_file(place: Any) -> None:
    members = read_federation(place.federation).members
    assert all(b.client == a.client + 1 for a, b in pairwise(members))
