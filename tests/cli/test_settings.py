"""What needs no training: help, version, the settings, a preset for one's own numbers; all of it at once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedaws
from fedaws.cli.common import user_errors
from fedaws.cli.settings import described, settings_page
from fedaws.cli.suggest import suggest
from fedaws.config import epochs_seen, load, settings

Cli = Callable[..., Any]
Refused = Callable[..., str]

ROOT = Path(__file__).parents[2]
SLOW = ("torch", "matplotlib", "sklearn", "scipy", "flwr")


# --- at once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", ["--help", "train --help", "presets", "settings", "settings spread.weight", "--version"]
)
def test_what_needs_no_training_does_not_load_torch(args: str) -> None:
    code = (
        "import sys\nfrom fedaws.__main__ import main\n"
        f"sys.argv = ['fedaws', *{args.split()!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"print('loaded:', [name for name in {SLOW!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").out == f"fedaws {fedaws.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedaws se", "settings"),
        ("fedaws train digits-", "digits-flower"),
        ("fedaws settings spread.we", "spread.weight"),
    ],
)
def test_the_shell_completes_commands_presets_and_settings(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_FEDAWS_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['fedaws']; from fedaws.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [offered]


@pytest.mark.parametrize(
    ("module", "extra"), [("flwr", "flower"), ("tensorboard.compat", "tensorboard"), ("faiss", "index")]
)
def test_a_missing_extra_is_one_line_with_the_fix(module: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="2"), user_errors():
        raise ModuleNotFoundError(name=module)
    wanted = f"pip install 'fedaws[{extra}]', or in a clone: pip install -e '.[{extra}]'"
    assert capsys.readouterr().err == f"error: {module} is not installed; {wanted}\n"


# --- fedaws settings ------------------------------------------------------------------------------------------------


def test_every_setting_is_shown_with_default_range_and_meaning(cli: Cli) -> None:
    found = json.loads(cli("settings", "--json").out)
    assert list(found) == list(settings())
    assert all(all(setting.values()) for setting in found.values())
    assert found["clients.per_round"] == {
        "key": "clients.per_round",
        "default": "all",
        "wanted": "a whole number from 1 to 1e9, or `all`",
        "meaning": "Clients that take part in a round.",
    }


def test_a_key_is_a_setting_or_a_table(cli: Cli) -> None:
    assert list(json.loads(cli("settings", "spread.weight", "--json").out)) == ["spread.weight"]
    assert all(key.startswith("server.") for key in json.loads(cli("settings", "server", "--json").out))
    assert "spread.weight" in cli("settings", "spread.weight").out


@pytest.mark.parametrize(
    ("word", "first", "also"),
    [
        ("lambda", "spread.weight", "train.ridge"),
        ("mining", "spread.neighbors", "spread.candidates"),
        ("negatives", "clients.sampled_classes", "spread.neighbors"),
        ("rounds", "train.rounds", "train.evaluate_every"),
        ("dim", "model.embedding_dim", "data.features"),
        ("Adam", "clients.optimizer", "server.optimizer"),
    ],
)
def test_a_word_is_looked_for_in_names_and_descriptions(cli: Cli, word: str, first: str, also: str) -> None:
    found = list(json.loads(cli("settings", word, "--json").out))
    assert found[0] == first
    assert also in found


def test_a_word_that_no_setting_has_is_one_line(refused: Refused) -> None:
    for typed, meant in (("spred.weight", "spread.weight"), ("rouns", "rounds"), ("negativs", "negatives")):
        assert f"no setting has '{typed}' in its name or description; did you mean '{meant}'?" in refused(
            "settings", typed
        )
    assert "`fedaws settings` shows all" in refused("settings", "zzz")


def test_of_an_option_only_its_table_is_known() -> None:
    assert [setting.key for setting in described("options.temperature")] == ["options"]


def test_the_page_of_settings_is_up_to_date(cli: Cli) -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "write it anew: fedaws settings --markdown > docs/settings.md"
    assert cli("settings", "--markdown").out == page


# --- a preset for one's own numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [2, 30, 983, 5000, 17_913, 670_091])
@pytest.mark.parametrize("rows", [400, 20_000, 500_000])
def test_a_suggested_run_sees_its_rows_at_least_eight_times(labels: int, rows: int) -> None:
    found = suggest(labels, rows)
    cfg = load(found.preset).override(found.settings)
    assert epochs_seen(cfg, rows, labels) >= 8
    assert cfg.clients.per_round != "all"
    assert 1 <= cfg.clients.per_round <= min(labels, 4000)


def test_a_suggestion_is_a_command(cli: Cli) -> None:
    # 5,000 / 4 = 1,250 clients; 8 · 200,000 rows / (1,250 clients · 4 examples) = 320 rounds
    command = (
        "fedaws train yso-finna-en -s data.name=xc -s data.root=DIR -s clients.per_round=1250 -s train.rounds=320 "
        "-s train.evaluate_every=32 -s train.checkpoint_every=32"
    )
    assert cli("presets", "--labels", 5000, "--rows", 200_000).out.splitlines()[0] == command
    assert json.loads(cli("presets", "--labels", 5000, "--rows", 200_000, "--json").out)["command"] == command


@pytest.mark.parametrize(("labels", "preset"), [(983, "delicious"), (2000, "yso-finna-en"), (17_913, "yso-finna-en")])
def test_the_suggested_preset_is_the_one_that_did_best(labels: int, preset: str) -> None:
    assert suggest(labels, 100_000).preset == preset


def test_labels_without_rows_are_refused(refused: Refused) -> None:
    assert "--labels and --rows belong together" in refused("presets", "--labels", 50)
