"""The configuration: what is accepted, how it is written down, and what a mistake is told as."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedaws import Config, FedawsError
from fedaws.config import (
    SPARSE,
    SpreadConfig,
    TrainConfig,
    check_effects,
    epochs_seen,
    from_toml,
    load,
    parse,
    presets,
    settings,
)
from fedaws.data.sources.xc import SETS
from helpers import refusal


def override_refusal(*settings: str) -> str:
    return refusal(lambda: Config().override(settings))


# --- in and out -----------------------------------------------------------------------------------------------------


def test_toml_gives_the_same_configuration_back(tiny: Config) -> None:
    assert from_toml(tiny.to_toml(), "x") == tiny


def test_settings_that_may_be_none_come_back_whether_they_are_or_not() -> None:
    changed = Config().override(["clients.class_lr=0.5", "data.num_classes=12", "train.sizes=[[0, 16]]"])
    assert from_toml(changed.to_toml(), "x") == changed
    assert from_toml(Config().to_toml(), "x").clients.class_lr is None


@given(
    rounds=st.integers(1, 10**6),
    lr=st.floats(1e-6, 1e6),
    per_round=st.one_of(st.just("all"), st.integers(1, 10**6)),
    hidden=st.lists(st.integers(1, 512), max_size=3),
)
def test_any_configuration_survives_toml(rounds: int, lr: float, per_round: int | str, hidden: list[int]) -> None:
    cfg = parse(
        {"train": {"rounds": rounds}, "clients": {"lr": lr, "per_round": per_round}, "model": {"hidden": hidden}}
    )
    assert from_toml(cfg.to_toml(), "x") == cfg


def test_the_written_toml_has_every_section() -> None:
    sections = {name for name, value in tomllib.loads(Config().to_toml()).items() if isinstance(value, dict)}
    assert sections == {"data", "model", "clients", "server", "spread", "privacy", "defence", "train", "options"}


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().spread.weight = 3.0  # type: ignore[misc]


def test_a_file_needs_to_hold_only_its_differences() -> None:
    cfg = from_toml("[spread]\nweight = 3", "x")
    assert cfg == Config().override(["spread.weight=3"])


# --- presets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets())
def test_every_preset_parses_and_bears_its_own_name(name: str) -> None:
    assert load(name).name == name


def test_digits_and_synthetic_are_among_the_presets() -> None:
    assert {"digits", "synthetic"} <= set(presets())


def test_an_unknown_preset_names_the_known_ones() -> None:
    message = refusal(lambda: load("digit"))
    assert "'digit'" in message
    assert "digits" in message
    assert ".toml" in message


def test_a_preset_is_preferred_to_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").name == "digits"


# --- -s key=value ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "section", "key", "value"),
    [
        ("spread.weight=3", "spread", "weight", 3.0),
        ("clients.per_round=all", "clients", "per_round", "all"),
        ("clients.per_round=7", "clients", "per_round", 7),
        ("clients.class_lr=none", "clients", "class_lr", None),
        ("data.root=none", "data", "root", None),
        ("data.augment=none", "data", "augment", "none"),
        ("model.norm=none", "model", "norm", "none"),
        ("train.sizes=[[0, 16], [0.5, 32]]", "train", "sizes", ((0.0, 16), (0.5, 32))),
        ("model.hidden=[5, 6]", "model", "hidden", (5, 6)),
        ("model.hidden=[]", "model", "hidden", ()),
        ("model.normalize=false", "model", "normalize", False),
        ("data.name=some/place.npz", "data", "name", "some/place.npz"),
        ("data.name=with=equals.npz", "data", "name", "with=equals.npz"),
        (" spread.weight = 3 ", "spread", "weight", 3.0),
        ('data.name="quoted.npz"', "data", "name", "quoted.npz"),
        ("data.root=2024", "data", "root", "2024"),
    ],
)
def test_a_setting_is_read_as_its_key_wants_it(setting: str, section: str, key: str, value: object) -> None:
    assert getattr(getattr(Config().override([setting]), section), key) == value


def test_the_last_of_two_settings_counts() -> None:
    assert Config().override(["seed=1", "seed=2"]).seed == 2


def test_overriding_leaves_the_original_alone(tiny: Config) -> None:
    tiny.override(["seed=9"])
    assert tiny.seed == 0


# --- from Python ----------------------------------------------------------------------------------------------------


def test_settings_may_be_keyword_arguments() -> None:
    changed = Config().with_(spread={"weight": 3}, seed=7, model={"hidden": [5, 6]}, options={"a": 1})
    assert changed == Config().override(["spread.weight=3", "seed=7", "model.hidden=[5, 6]", "options.a=1"])


def test_keyword_arguments_keep_what_they_do_not_name() -> None:
    before = Config().override(["spread.margin=0.5", "options.a=1"])
    after = before.with_(spread={"weight": 3}, options={"b": 2})
    assert (after.spread.margin, after.options) == (0.5, {"a": 1, "b": 2})
    assert (before.spread.weight, before.options) == (10.0, {"a": 1})


def test_a_whole_table_may_be_given() -> None:
    assert Config().with_(spread=SpreadConfig(weight=3)).spread == SpreadConfig(weight=3)


def test_settings_may_be_a_mapping_of_dotted_keys() -> None:
    changed = Config().override({"train.rounds": 5, "clients.per_round": "all", "data.root": None, "options.a": True})
    assert changed == Config().override(["train.rounds=5", "options.a=true"])


def test_a_path_may_be_given_as_one() -> None:
    assert Config().with_(data={"root": Path("some/place")}).data.root == "some/place"


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (
            lambda: Config().override("train.rounds=5"),
            "override: got 'train.rounds=5'; wanted a list, as in override([",
        ),
        (lambda: Config().override(5), "override: got 5; wanted a list"),  # type: ignore[arg-type]
        (lambda: Config().override([5]), "override: got 5; wanted a text"),  # type: ignore[list-item]
        (lambda: Config().override({"train.rouns": 5}), "unknown key 'train.rouns'; did you mean 'train.rounds'?"),
        (lambda: Config().override({"train.rounds": "5"}), "train.rounds: got '5'; wanted a valid integer"),
        (lambda: Config().override({"train": {"rounds": 5}}), "train is a table; set one of its keys"),
        (lambda: Config().with_(spread={"wieght": 3}), "unknown key 'spread.wieght'; did you mean 'spread.weight'?"),
        (lambda: Config().with_(spred={"weight": 3}), "unknown key 'spred'; did you mean 'spread'?"),
        (lambda: Config().with_(spread={"weight": -1}), "spread.weight: got -1; wanted a number greater than or equal"),
        (lambda: Config().with_(spread=3), "spread is a table; set one of its keys"),
        (lambda: Config().with_(seed={"a": 1}), "seed: got {'a': 1}; wanted a valid integer"),
        (lambda: Config().with_(data={"augment": None}), "data.augment: got None; wanted 'none' or 'crop-flip'"),
        (lambda: Config(train={"rounds": -1}), "train.rounds: got -1; wanted a number greater than or equal to 1"),
        (lambda: Config(train=5), "train: got 5; wanted a table"),
        (lambda: Config(sed=5), "unknown key 'sed'; did you mean 'seed'?"),  # type: ignore[call-arg]
        (lambda: Config(seed="x"), "seed: got 'x'; wanted a valid integer"),
        (lambda: Config(spread={"candidates": 9}), "spread.candidates=9 has no effect on all pairs"),
        (lambda: TrainConfig(rounds=-1), "train.rounds: got -1; wanted a number greater than or equal to 1"),
        (lambda: parse({"self": 1}), "unknown key 'self'"),
        (lambda: Config(train={"self": 1}), "unknown key 'train.self'"),
        (lambda: TrainConfig(rouns=1), "unknown key 'train.rouns'; did you mean 'train.rounds'?"),  # type: ignore[call-arg]
    ],
)
def test_a_mistake_in_python_is_told_in_one_line_too(action: Callable[[], object], complaint: str) -> None:
    assert refusal(action).startswith(complaint)


# --- options of a method --------------------------------------------------------------------------------------------


def test_a_method_may_have_any_name_that_a_folder_may_have() -> None:
    assert Config().override(["method=my-own"]).method == "my-own"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("3", 3), ("0.5", 0.5), ("soft", "soft")])
def test_an_option_may_be_a_truth_a_number_or_a_text(text: str, value: object) -> None:
    option = Config().override([f"options.temperature={text}"]).options["temperature"]
    assert option == value
    assert type(option) is type(value)


def test_options_come_back_from_toml_and_are_kept_beside_new_ones() -> None:
    cfg = Config().override(["options.a=1"]).override(["options.b=x"])
    assert cfg.options == {"a": 1, "b": "x"}
    assert from_toml(cfg.to_toml(), "x") == cfg


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("options.a=nan", "options.a: got nan; wanted true or false or a valid integer or a finite number"),
        ("options.a=[1]", "options.a: got [1]; wanted true or false or a valid integer or a valid number or a valid"),
        ("options.A=1", "options.A: got 'A'; wanted a name of small letters, digits and _"),
        ("options.a.b=1", "options.a.b: got 'a.b'; wanted a name of small letters, digits and _"),
        ("options=1", "options is a table; set one of its keys, as in options.key="),
    ],
)
def test_a_wrong_option_is_told_in_one_line(setting: str, complaint: str) -> None:
    assert override_refusal(setting).startswith(complaint)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("foo.bar=1", ["unknown key 'foo.bar'", "known here: name, seed, method, data"]),
        ("spread.wieght=1", ["unknown key 'spread.wieght'", "did you mean 'spread.weight'?"]),
        ("spread.xyz=1", ["unknown key 'spread.xyz'", "known here: regularizer, weight, margin"]),
        ("spred.weight=1", ["unknown key 'spred.weight'", "did you mean 'spread.weight'?"]),
        ("rounds=5", ["unknown key 'rounds'", "did you mean 'train.rounds'?"]),
        ("spred.xyz=1", ["unknown key 'spred.xyz'", "known here: name, seed, method, data"]),
        ("seed.x=1", ["unknown key 'seed.x'"]),
        ("=5", ["unknown key ''"]),
        ("data=5", ["data is a table", "data.name"]),
        ("spread.weight", ["wanted key=value", "-s spread.weight=10"]),
        ("train.rounds=0", ["train.rounds: got 0", "greater than or equal to 1"]),
        ("train.rounds=1.5", ["train.rounds: got 1.5", "wanted a valid integer"]),
        ("train.rounds=ten", ["train.rounds: got 'ten'", "wanted a valid integer"]),
        ("train.rounds=true", ["train.rounds: got True", "wanted a valid integer"]),
        ("train.threads=100000", ["train.threads: got 100000", "1024"]),
        ("clients.lr=fast", ["clients.lr: got 'fast'", "wanted a valid number"]),
        ("clients.lr=-1", ["clients.lr: got -1", "a number greater than 0"]),
        ("clients.lr=nan", ["clients.lr: got nan", "finite"]),
        ("clients.lr=inf", ["clients.lr: got inf", "finite"]),
        ("clients.lr=1e39", ["clients.lr: got 1e+39", "1000000000"]),
        ("clients.margin=nan", ["clients.margin: got nan", "finite"]),
        ("clients.momentum=1", ["clients.momentum: got 1", "less than 1"]),
        ("spread.margin=3", ["spread.margin: got 3", "less than or equal to 2"]),
        ("clients.per_round=foo", ["clients.per_round: got 'foo'; wanted a valid integer or 'all'"]),
        ("spread.neighbors=0", ["spread.neighbors: got 0; wanted a number", "or 'auto' or 'all'"]),
        ("method=../fedaws", ["method: got '../fedaws'", "letters, digits"]),
        ("model.name=resnet", ["model.name: got 'resnet'; wanted 'mlp'"]),
        ("model.hidden=5", ["model.hidden: got 5; wanted a list"]),
        ("model.hidden=[5, 0]", ["model.hidden: got 0", "greater than or equal to 1"]),
        ("model.norm=batch", ["model.norm: got 'batch'; wanted 'group', 'weight', 'none'"]),
        ("data.augment=flip", ["data.augment: got 'flip'; wanted 'none' or 'crop-flip'"]),
        ("server.optimizer=lion", ["server.optimizer: got 'lion'; wanted 'sgd', 'adagrad', 'adam' or 'muon'"]),
        ("clients.optimizer=muon", ["clients.optimizer: got 'muon'; wanted 'sgd', 'adagrad' or 'adam'"]),
        ("train.sizes=5", ["train.sizes: got 5; wanted a list"]),
        ("train.sizes=[0.5, 16]", ["train.sizes: got 0.5; wanted a list"]),
        ("train.sizes=[[0.5]]", ["train.sizes: got [0.5]; wanted pairs [start, size]"]),
        ("train.sizes=[[0.5, 16, 32]]", ["train.sizes: got [0.5, 16, 32]; wanted pairs [start, size]"]),
        ("train.sizes=[[0.5, 1]]", ["train.sizes: got 1; wanted a number greater than or equal to 4"]),
        ("train.sizes=[[0.5, 16.5]]", ["train.sizes: got 16.5; wanted a valid integer"]),
        ("train.sizes=[[1.0, 16]]", ["train.sizes: got 1.0; wanted a number less than 1"]),
        ("train.sizes=[[-0.1, 16]]", ["train.sizes: got -0.1; wanted a number greater than or equal to 0"]),
        ("train.sizes=[[0.5, 16], [0.2, 8]]", ["train.sizes starts at 0.5, 0.2", "wanted each start above", "sort"]),
        ("train.sizes=[[0.5, 16], [0.5, 8]]", ["train.sizes starts at 0.5, 0.5", "wanted each start above", "sort"]),
        ("model.normalize=maybe", ["model.normalize: got 'maybe'; wanted true or false"]),
        ("name=../elsewhere", ["name: got '../elsewhere'", "letters, digits"]),
        ("name=", ["name: got ''", "letters, digits"]),
        ("seed=-1", ["seed: got -1", "greater than or equal to 0"]),
        ("seed=none", ["seed: got None", "wanted a valid integer"]),
    ],
)
def test_a_wrong_setting_is_told_with_what_was_got_and_wanted(setting: str, parts: list[str]) -> None:
    message = override_refusal(setting)
    for part in parts:
        assert part in message


def test_of_two_mistakes_only_the_first_is_told() -> None:
    message = override_refusal("clients.lr=-1", "clients.margin=5")
    assert message == "clients.lr: got -1; wanted a number greater than 0"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[data]\nnme = 'x'", ["here.toml", "unknown key 'data.nme'", "did you mean 'data.name'?"]),
        ("[foo]\nx = 1", ["here.toml", "unknown key 'foo'", "known here"]),
        ("[data.deep]\nx = 1", ["here.toml", "unknown key 'data.deep'"]),
        ("data = 5", ["here.toml", "data: got 5; wanted a table"]),
        ("[[data]]\nname = 'x'", ["here.toml", "wanted a table"]),
        ("[train]\nrounds = '5'", ["here.toml", "train.rounds: got '5'; wanted a valid integer"]),
        ("seed = 1\nx =\ny = 1", ["here.toml is no sound TOML", "line 2"]),
        ("seed = 1\nseed = 2", ["here.toml is no sound TOML"]),
    ],
)
def test_a_mistake_in_a_file_names_the_file(text: str, parts: list[str]) -> None:
    message = refusal(lambda: from_toml(text, "here.toml"))
    for part in parts:
        assert part in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = refusal(lambda: load(str(tmp_path / "none.toml")))
    assert "none.toml: No such file" in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot read" in refusal(lambda: load(str(tmp_path / "bytes.toml")))


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    assert "is not a plain file" in refusal(lambda: load(str(tmp_path / "folder.toml")))


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_optimizers_with_a_momentum_take_one(optimizer: str) -> None:
    cfg = Config().override([f"server.optimizer={optimizer}", "server.momentum=0.9"])
    assert cfg.server.momentum == 0.9


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["spread.candidates=100"], "has no effect on all pairs"),
        (["spread.regularizer=nearest", "spread.neighbors=all", "spread.candidates=100"], "has no effect on all pairs"),
        (["server.optimizer=adam", "server.momentum=0.9"], "server.momentum=0.9 has no effect"),
        (["clients.optimizer=adagrad", "clients.momentum=0.5"], "clients.momentum=0.5 has no effect"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(changes: list[str], complaint: str) -> None:
    with pytest.raises(FedawsError, match=complaint):
        Config().override(changes)


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (f"train.rounds={10**23}", "train.rounds: got 100000000000000000000000; wanted a number less than or equal to"),
        (f"clients.local_steps={10**23}", "clients.local_steps: got 100000000000000000000000; wanted a number less"),
        (f"seed={'9' * 5000}", "seed: got '999"),
        (f"train.sizes={'[' * 5000}{']' * 5000}", "train.sizes: got '[[["),
        (f"train.sizes={'[' * 50}{']' * 50}", "train.sizes: got [[["),
        (f"model.hidden=[{'1,' * 101}]", "model.hidden: got [1, 1, "),
        (f"data.name={'x' * 5000}", "data.name: got 'xxx"),
        (f"data.name={'x' * 100_001}", "data.name: got 'xxx"),
        ("data.root=a\0b", "data.root: got 'a\\x00b'; wanted a text without NUL"),
        ("data.name=a\0b", "data.name: got 'a\\x00b'; wanted a text without NUL"),
        (f"{'x' * 5000}=1", "unknown key 'xxx"),
    ],
    ids=range(11),
)
def test_what_is_beyond_all_measure_is_one_short_line(setting: str, complaint: str) -> None:
    message = override_refusal(setting)
    assert message.startswith(complaint)
    assert len(message) < 400


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed = " + "9" * 5000, "x.toml is no sound TOML: "),
        ("x = " + "[" * 5000, "x.toml is no sound TOML: brackets in brackets"),
        ("[" + "a." * 500 + "b]", "x.toml is no sound TOML: brackets in brackets"),
        ("#" * 100_001, "x.toml: got more than 100,000 characters"),
        ('[data]\nroot = "a\\u0000b"', "x.toml: data.root: got 'a\\x00b'; wanted a text without NUL"),
        (f"[train]\nrounds = {10**23}", "x.toml: train.rounds: got 1000"),
    ],
    ids=range(6),
)
def test_a_file_beyond_all_measure_is_one_short_line(text: str, complaint: str) -> None:
    message = refusal(lambda: from_toml(text, "x.toml"))
    assert message.startswith(complaint)
    assert len(message) < 400


def test_an_integer_that_python_does_not_print_is_one_line() -> None:
    assert refusal(lambda: Config(seed=10**5000)).startswith("seed: got a vast int; wanted")


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "is not a plain file" in refusal(lambda: load(str(tmp_path / "pipe.toml")))


def test_a_path_with_nul_is_refused() -> None:
    assert refusal(lambda: load("a\0b.toml")).startswith("cannot read")


# --- settings that would do nothing with the data or the encoder ----------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            ["data.overlap=0.3"],
            "data.overlap=0.3 has no effect on data.name=digits; set data.overlap=0.5 or data.name=s",
        ),
        (["data.classes=9", "data.features=3"], "data.classes=9, data.features=3 have no effect on data.name=digits"),
        (
            ["data.name=xc", "data.like=delicious"],
            "data.like=delicious has no effect on data.name=xc; set data.like=am",
        ),
        (["data.name=xc", "data.scale=0.5"], "data.scale=0.5 has no effect on data.name=xc; set data.scale=1.0 or"),
        (
            ["data.drop=0.5"],
            "data.drop=0.5 has no effect on data.name=digits; set data.drop=0.0 or data.name to one of",
        ),
        (
            ["data.every_label=true"],
            "data.every_label=true has no effect on data.name=digits; set data.every_label=fal",
        ),
        (
            ["data.name=a.npz", "data.test_examples=5"],
            "data.test_examples=5 has no effect on data.name=a.npz; set data",
        ),
        (
            ["data.image_size=8"],
            "data.image_size=8 has no effect on data.name=digits; set data.image_size=none or data",
        ),
        (["model.norm=group"], "model.norm=group has no effect on model.name=mlp; set model.norm=weight or model.name"),
        (["model.name=bag", "model.norm=group"], "model.norm=group has no effect on model.name=bag"),
        (
            ["model.name=resnet8", "model.hidden=[5]"],
            "model.hidden=[5] has no effect on model.name=resnet8; set model.",
        ),
        (["model.residual=true"], "model.residual=true has no effect on model.name=mlp; set model.residual=f"),
        (
            ["model.name=bag", "model.hidden=[]", "model.residual=true"],
            "model.residual=true has no effect on model.hidden=[]; s",
        ),
        (
            ["server.table_lr=1"],
            "server.table_lr=1.0 has no effect on model.name=mlp; set server.table_lr=none or mode",
        ),
        (
            ["server.table_optimizer=sgd"],
            "server.table_optimizer=sgd has no effect on model.name=mlp; set server.table",
        ),
    ],
)
def test_a_setting_without_effect_is_told_with_what_to_set(changes: list[str], complaint: str) -> None:
    cfg = Config().override(changes)
    assert refusal(lambda: check_effects(cfg)).startswith(complaint)
    check_effects(cfg, own_data=True, own_encoder=True)


def test_data_of_ones_own_do_not_excuse_settings_of_the_encoder() -> None:
    cfg = Config().override(["data.drop=0.5", "model.norm=group"])
    assert "model.norm" in refusal(lambda: check_effects(cfg, own_data=True))
    assert "data.drop" in refusal(lambda: check_effects(cfg, own_encoder=True))


@pytest.mark.parametrize("name", presets())
def test_every_setting_of_a_preset_has_an_effect(name: str) -> None:
    check_effects(load(name))


def test_settings_of_spreading_may_stand_beside_a_method_that_does_not_spread() -> None:
    check_effects(Config().override(["method=fixed", "spread.weight=3", "spread.regularizer=nearest"]))


def test_the_sparse_data_are_those_that_are_loaded_as_such() -> None:
    assert set(SPARSE) == {*SETS, "xc", "xc-synthetic"}


# --- how much a run sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        (["clients.per_round=all", "clients.examples_per_step=2", "train.rounds=10"], 10 * 5 * 2 / 200),
        (["clients.per_round=3", "clients.examples_per_step=2", "train.rounds=10"], 10 * 3 * 2 / 200),
        (["clients.per_round=9", "clients.examples_per_step=2", "train.rounds=10"], 10 * 5 * 2 / 200),  # five there are
        (["clients.local_steps=4", "clients.examples_per_step=1", "train.rounds=10"], 10 * 5 * 4 / 200),
        (["clients.per_round=1", "clients.examples_per_step=all", "train.rounds=10"], 10 * (200 / 5) / 200),
    ],
)
def test_epochs_are_the_examples_of_all_steps(changes: list[str], epochs: float) -> None:
    assert epochs_seen(Config().override(changes), num_examples=200, num_clients=5) == pytest.approx(epochs)


# --- what every setting means ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", settings())
def test_every_setting_says_what_it_means(key: str) -> None:
    assert settings()[key].description
