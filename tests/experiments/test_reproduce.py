"""`fedaws reproduce`: a table of the paper, run in parts, and set beside ours. The tables here are small ones."""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedaws.experiments.reproduce
import fedaws.experiments.results
from fedaws import Config, Reporter
from fedaws.config import load, presets
from fedaws.experiments.markdown import results_page
from fedaws.experiments.paper_tables import CENTRALISED, Table, load_table, tables
from fedaws.experiments.paper_tables.departures import configuration
from fedaws.experiments.reproduce import Job, configured, plan, reproduce
from fedaws.experiments.results import KINDS, collect, gather, marked, merge, read_results, write_results
from fedaws.record.folder import RunFolder
from fedaws.training.session import Interrupted
from helpers import refusal

Cli = Callable[..., Any]
Refused = Callable[..., str]

DOCS = Path(__file__).parents[2] / "docs/results"

# Two rows of one preset, 12 rounds of milliseconds; the second has a setting and a method less.
SMALL = """
title = "Table 0: small"
measures = ["precision@1", "precision@3"]
[stop_early]
positive-only = 8
[rows.plain]
preset = "tiny.toml"
label = "synthetic, MLP"
paper = { positive-only = [25.0, 30.5], fedaws = [90.0, 33.0] }
[rows.strong]
preset = "tiny.toml"
label = "synthetic, λ = 100"
settings = ["spread.weight=100"]
paper = { fedaws = [91.0, 33.1] }
"""


@pytest.fixture
def table(tmp_path: Path, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """The small table, with its preset beside it in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL, encoding="utf-8")
    return load_table("small.toml")


class Watch:
    """Notes which rounds are trained, and stops after some of them if asked."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.trained: list[tuple[str, int]] = []
        self.changes, self.stop_after = 0, stop_after

    def reporter(self, job: Job) -> Reporter:
        return Reporter(
            on_round=lambda done, loss: self.trained.append((job.label, done)),
            on_warning=lambda message: None,
            should_stop=lambda: len(self.trained) == self.stop_after,
        )

    def changed(self) -> None:
        self.changes += 1


def run(jobs: list[Job], stop_after: int | None = None) -> Watch:
    watch = Watch(stop_after)
    try:
        reproduce(jobs, watch.reporter, watch.changed)
    except Interrupted:
        assert stop_after is not None
    return watch


def ours(results: dict[str, Any], row: str = "plain", method: str = "fedaws") -> Any:
    return results["rows"][row]["methods"][method]["ours"]


RUNS = Path("runs")


def update(table: Table, out: Path, folder: Path) -> dict[str, Any]:
    results = gather(table, out, folder)
    write_results(results, folder)
    return results


# --- the paper's table ----------------------------------------------------------------------------------------------


def test_table_1_is_the_papers() -> None:
    table = load_table("table1")
    assert tables() == ["table1", "table3", "table4"]
    assert table.methods == ["positive-only", "fixed", "fedaws", "softmax"]
    assert {name: [row.paper[m][0] for m in table.methods] for name, row in table.rows.items()} == {
        "cifar10-resnet8": [10.7, 83.3, 86.3, 88.4],
        "cifar10-resnet32": [9.8, 92.1, 92.4, 92.4],
        "cifar100-resnet32": [1.0, 65.1, 67.9, 68.0],
        "cifar100-resnet56": [1.1, 67.5, 69.6, 70.0],
    }


def test_table_3_is_the_papers() -> None:
    table = load_table("table3")
    assert table.measures == ("precision@1", "precision@3", "precision@5")
    assert [table.rows["amazoncat-13k"].paper[m][0] for m in table.methods[:5]] == [3.4, 64.1, 92.1, 92.1, 90.5]
    assert [table.rows["amazon-670k"].paper[m][1] for m in table.methods[:5]] == [0.0, 2.8, 29.6, 31.6, 31.3]
    assert [table.rows["wikilshtc-325k"].paper[m][2] for m in table.methods[:5]] == [2.8, 2.6, 16.2, 29.9, 23.9]
    assert not any(table.rows[name].paper["fedaws"] for name in ("delicious", "yso-finna-en"))  # not in the paper


def test_table_4_is_the_papers() -> None:
    rows = load_table("table4").rows
    assert [rows[f"amazoncat-{name}"].paper["fedaws"][0] for name in ("k10", "k100", "k500", "all")] == [
        26.3,
        92.1,
        86.9,
        87.7,
    ]
    assert [rows[f"amazoncat-lambda{weight}"].paper["fedaws"][2] for weight in (1, 100)] == [40.4, 57.9]


@pytest.mark.parametrize("row", [row for row in load_table("table4").rows if "baselines" not in row])
def test_a_sweeps_row_has_the_k_and_the_weight_of_its_name(row: str) -> None:
    spread = configured(load_table("table4"), row, "fedaws").spread
    name = row.rsplit("-", maxsplit=1)[-1]
    expected: tuple[Any, float] = (100, 10.0)
    if name.startswith("lambda"):
        expected = (100, float(name.removeprefix("lambda")))
    elif name.startswith("k"):
        expected = (int(name[1:]), 10.0)
    elif name == "all":
        expected = ("all", 10.0)
    assert (spread.regularizer, spread.neighbors, spread.weight) == ("nearest", *expected)


@pytest.mark.parametrize("name", tables())
def test_every_row_has_its_preset(name: str) -> None:
    for row in load_table(name).rows.values():
        assert row.preset in presets()
        assert load(row.preset).override(row.settings)


@pytest.mark.parametrize("row", load_table("table1").rows)
def test_a_row_has_the_data_and_the_model_of_its_name(row: str) -> None:
    cfg = configured(load_table("table1"), row, "fedaws")
    assert (cfg.method, f"{cfg.data.name}-{cfg.model.name}") == ("fedaws", row)


def test_every_committed_page_is_made_from_its_data() -> None:
    assert len(list(DOCS.glob("table*.json"))) == 3
    for path in DOCS.glob("table*.json"):
        results = read_results(path)
        assert path.with_suffix(".md").read_text(encoding="utf-8") == results_page(results)
        for name in re.findall(r"\]\(([^)]+)\)", results_page(results)):
            assert (DOCS / name).exists(), name


# --- what is run ----------------------------------------------------------------------------------------------------


def test_the_first_seed_of_all_comes_before_the_second_of_any(table: Table) -> None:
    jobs = plan(table, RUNS, ["plain", "strong"], ["positive-only", "fedaws"], seeds=2)
    assert [str(job.place) for job in jobs] == [
        f"runs/{run}-seed{seed}" for seed in (0, 1) for run in ("plain/positive-only", "plain/fedaws", "strong/fedaws")
    ]


def test_a_row_adds_its_settings_and_the_user_has_the_last_word(table: Table) -> None:
    assert configured(table, "plain", "fedaws").spread.weight == 10
    assert configured(table, "strong", "fedaws").spread.weight == 100
    assert configured(table, "strong", "fedaws", settings=["spread.weight=3"]).spread.weight == 3


def test_stopping_early_is_fewer_rounds_and_nothing_else(table: Table, tiny: Config) -> None:
    cfg = configured(table, "plain", "positive-only")
    assert cfg == tiny.override(["method=positive-only", "train.rounds=8"])


def test_a_methods_own_settings_are_used_and_shown_but_not_asked_for_again(table: Table, tmp_path: Path) -> None:
    own = table.model_copy(update={"settings": {"fedaws": ("clients.lr=0.5",)}})
    assert configured(own, "plain", "fedaws").clients.lr == 0.5
    assert configured(own, "plain", "positive-only").clients.lr != 0.5
    reproduce(plan(own, tmp_path, ["plain"], ["fedaws"]), lambda job: Reporter(), lambda: None)
    ours = collect(own, tmp_path)["rows"]["plain"]["methods"]["fedaws"]["ours"]
    assert ours["settings"] == ["clients.lr=0.5"]
    assert "clients.lr" not in ours["command"]


@pytest.mark.parametrize(("rounds", "expected"), [(3, (3, 3)), (10, (8, 10)), (50, (8, 50))])
def test_rounds_hold_for_all_but_stop_early_is_the_most(table: Table, rounds: int, expected: tuple[int, int]) -> None:
    methods = ("positive-only", "fedaws")
    assert tuple(configured(table, "plain", m, rounds).train.rounds for m in methods) == expected


def test_what_is_finished_is_skipped(table: Table) -> None:
    jobs = plan(table, RUNS, ["plain"], ["positive-only", "fedaws"])
    watch = run(jobs)
    assert watch.changes == 2
    assert len(watch.trained) == 8 + 12
    assert plan(table, RUNS, ["plain"], ["positive-only", "fedaws"]) == []
    assert [job.label for job in plan(table, RUNS, ["plain"], ["fedaws"], seeds=2)] == ["plain fedaws, seed 1"]


def test_what_was_begun_goes_on_where_it_was(table: Table) -> None:
    watch = run(plan(table, RUNS, ["plain"], ["positive-only", "fedaws"]), stop_after=8 + 7)
    assert watch.changes == 2  # also when it is stopped: there are new figures
    rest = run(plan(table, RUNS, ["plain"], ["positive-only", "fedaws"]))
    assert rest.trained == [("plain fedaws, seed 0", number) for number in range(8, 13)]


def test_a_run_begun_with_other_settings_shows_before_anything_is_run(table: Table) -> None:
    run(plan(table, RUNS, ["strong"], ["fedaws"]), stop_after=2)
    message = refusal(lambda: plan(table, RUNS, ["plain", "strong"], ["fedaws"], settings=["clients.lr=0.5"]))
    assert message == (
        "runs/strong/fedaws-seed0 was started with clients.lr=0.3, now it is 0.5; resume with the same settings"
    )


# --- what is found in the run folders -------------------------------------------------------------------------------


def test_nothing_run_is_nothing_of_ours(table: Table) -> None:
    results = collect(table, RUNS)
    assert ours(results) is None
    assert results["rows"]["plain"]["methods"]["fedaws"]["paper"] == {"precision@1": 90.0, "precision@3": 33.0}
    assert "| `fedaws` (FedAwS) | P@1 | 90.0 | – | – | – | – | – |" in results_page(results)
    assert "|  |  | P@3 | 33.0 | – | – |  |  |  |" in results_page(results)


def test_a_finished_run_gives_the_figures_of_its_last_round(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]))
    rows, found = RunFolder(RUNS / "plain/fedaws-seed0").metrics(), ours(collect(table, RUNS))
    for name in table.measures:
        assert found[name]["mean"] == pytest.approx(100 * rows[-1][name], abs=1e-3)
        assert found[name]["sd"] is None
    assert [round_num for round_num, _ in found["curve"][0]] == [4, 8, 12]
    assert [value for _, value in found["curve"][0]] == pytest.approx([100 * r["precision@1"] for r in rows], abs=1e-3)
    assert found["max_cosine"] == pytest.approx(rows[-1]["max_cosine"], abs=1e-3)
    assert (found["finished"], found["rounds"], found["seeds"], found["settings"]) == (True, 12, [0], [])
    assert found["command"] == "fedaws reproduce small.toml --rows plain --methods fedaws"
    assert set(found["versions"]) - {"commit"} == {"fedaws", "torch", "python"}


def test_several_seeds_have_mean_and_deviation(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"], seeds=3))
    last = [100 * RunFolder(RUNS / f"plain/fedaws-seed{s}").metrics()[-1]["precision@1"] for s in range(3)]
    results = collect(table, RUNS)
    found = ours(results)["precision@1"]
    assert found["runs"] == pytest.approx(last, abs=1e-3)
    assert found["mean"] == pytest.approx(sum(last) / 3, abs=1e-3)
    assert found["sd"] == pytest.approx(statistics.stdev(last), abs=1e-3)
    assert ours(results)["command"].endswith("--methods fedaws --seeds 3")
    assert f"{found['mean']:.1f} ± {found['sd']:.1f}" in results_page(results)


def test_two_seeds_are_shown_one_by_one_without_a_deviation(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"], seeds=2))
    results = collect(table, RUNS)
    a, b = ours(results)["precision@1"]["runs"]
    assert f"| {a:.1f}, {b:.1f} |" in results_page(results)


# --- the paper's configuration, and code that has changed ------------------------------------------------------------


@pytest.fixture
def told(table: Table) -> Table:
    """The same table, which says what the paper's configuration is."""
    paper = ("spread.regularizer=nearest", "spread.neighbors=2", "spread.bounded=false", "clients.class_lr=none")
    return table.model_copy(update={"as_paper": paper})


def test_the_papers_configuration_is_run_beside_ours(told: Table) -> None:
    run(plan(told, RUNS, ["plain"], ["fedaws"]))
    run(plan(told, RUNS, ["plain"], ["fedaws"], as_paper=True))
    cell = gather(told, RUNS, RUNS)["rows"]["plain"]["methods"]["fedaws"]
    assert cell["as_paper"]["configuration"] == "eq. (7), k = 2, λ = 10; the paper's"
    assert cell["ours"]["configuration"].startswith("eq. (6), ν = 1, λ = 10; not the paper's: regulariser, bounded")
    assert cell["as_paper"]["command"].endswith("--methods fedaws --as-paper")
    assert plan(told, RUNS, ["plain"], ["fedaws"], as_paper=True) == []


def test_a_table_that_does_not_say_what_the_papers_configuration_is_cannot_run_it(table: Table) -> None:
    message = refusal(lambda: plan(table, RUNS, ["plain"], ["fedaws"], as_paper=True))
    assert message == "small.toml does not say what the paper's configuration is; add as_paper = [...] to it"


@pytest.mark.parametrize("name", tables())
def test_only_a_configuration_that_is_the_papers_is_called_so(name: str) -> None:
    table = load_table(name)
    for row, of_row in table.rows.items():
        for method in (m for m in of_row.paper if m not in CENTRALISED):
            cfg = configured(table, row, method, as_paper=True)
            few = ["50 clients a round"] * (cfg.clients.per_round == 50)  # rows of Table 4 that say so
            differs = few + ["whitened first layer"] * ("resnet" in of_row.preset)
            left = f"not the paper's: {', '.join(differs)}" if differs else "the paper's"
            as_paper = configuration(cfg)
            assert as_paper == left or as_paper.endswith(f"; {left}")
            if method == "fedaws":
                assert "not the paper's: " in configuration(configured(table, row, method))


def test_a_figure_of_code_that_computes_otherwise_now_is_called_stale(
    told: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plan(told, RUNS, ["plain"], ["fedaws"]))
    assert not ours(update(told, RUNS, RUNS))["stale"]
    assert "(stale)" not in results_page(read_results(RUNS / "small.json"))
    monkeypatch.setattr(fedaws.experiments.results, "fingerprint", lambda cfg: [0.0] * 8)
    assert ours(update(told, RUNS, RUNS))["stale"]
    assert "(stale)" in results_page(read_results(RUNS / "small.json"))


def test_a_figure_without_a_fingerprint_is_called_stale(told: Table) -> None:
    run(plan(told, RUNS, ["plain"], ["fedaws"]))
    (RUNS / "plain/fedaws-seed0/fingerprint.json").unlink()
    assert ours(gather(told, RUNS, RUNS))["stale"]


@pytest.mark.parametrize("path", sorted(DOCS.glob("table*.json")), ids=lambda path: path.stem)
def test_no_published_figure_is_of_code_that_has_changed_unless_it_says_so(path: Path) -> None:
    """Fails where a change of the code changes results: run the figure again, or gather the table to mark it stale."""
    published = read_results(path)
    now = marked(load_table(path.stem), read_results(path))
    for row, of_row in published["rows"].items():
        for method, cell in of_row["methods"].items():
            for kind in KINDS:
                if cell.get(kind):
                    found = now["rows"][row]["methods"][method][kind]
                    for key in ("stale", "configuration"):
                        assert cell[kind].get(key) == found.get(key), (row, method, kind)


def test_the_name_of_before_is_told_and_still_serves(cli: Cli) -> None:
    code, out, err = cli("reproduce", "table2", "--show", "--json", "--out", "nowhere")
    assert code == 0
    assert "table2 is the paper's Table 3" in err
    assert json.loads(out)["table"] == "table3"


# --- what a run has left ---------------------------------------------------------------------------------------------


def test_an_unfinished_run_shows_its_latest_figures_and_says_so(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]), stop_after=10)
    results = collect(table, RUNS)
    latest = RunFolder(RUNS / "plain/fedaws-seed0").metrics()[-1]
    assert latest["round"] == 8
    assert ours(results)["precision@1"]["mean"] == pytest.approx(100 * latest["precision@1"], abs=1e-3)
    assert "| 8 of 12 rounds, unfinished |" in results_page(results)


def test_an_unfinished_seed_is_no_part_of_the_mean(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"], seeds=2), stop_after=12 + 5)
    assert ours(collect(table, RUNS))["seeds"] == [0]


def test_a_run_without_a_figure_yet_is_as_good_as_none(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]), stop_after=2)
    assert ours(collect(table, RUNS)) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rounds": 5}, "| 5 of 12 rounds |"),
        ({"rounds": 15}, "| 15, the preset has 12 |"),
        ({"settings": ["data.validation=0.25"]}, "| 12, on validation examples, not the test set |"),
        ({"settings": ["data.root=/home/me"]}, "| 12 |"),
        ({"settings": ["clients.lr=0.5", "spread.weight=1"]}, "| 12, with clients.lr=0.5 spread.weight=1.0 |"),
    ],
)
def test_the_page_says_in_what_a_run_is_not_the_presets(table: Table, changes: dict[str, Any], text: str) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"], **changes))
    assert text in results_page(collect(table, RUNS))


def test_an_unfinished_run_of_other_rounds_than_the_presets_says_both(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"], rounds=10), stop_after=9)
    assert "| 8 of 10 rounds, unfinished, the preset has 12 |" in results_page(collect(table, RUNS))


@pytest.mark.parametrize(
    ("cosine", "text"), [(0.999, "stopped after 8 rounds: it has collapsed |"), (0.5, "stopped after 8 rounds |")]
)
def test_a_run_that_was_stopped_early_says_so_and_whether_it_collapsed(table: Table, cosine: float, text: str) -> None:
    run(plan(table, RUNS, ["plain"], ["positive-only"]))
    folder = RunFolder(RUNS / "plain/positive-only-seed0")
    folder.append_metrics(folder.metrics()[-1] | {"max_cosine": cosine})
    results = collect(table, RUNS)
    assert ours(results, method="positive-only")["stopped_early"]
    assert text in results_page(results)


def test_the_command_gives_the_same_configuration_again(table: Table, cli: Cli) -> None:
    asked = ("--rounds", 6, "--seeds", 2, "-s", "seed=3", "-s", "model.hidden=[4, 4]", "-s", "clients.lr=0.5")
    assert cli("reproduce", "small.toml", "--rows", "plain", "--methods", "fedaws", *asked).code == 0
    command = ours(read_results(RUNS / "small/small.json"))["command"]
    assert command == (
        "fedaws reproduce small.toml --rows plain --methods fedaws --seeds 2 --rounds 6 "
        "-s seed=3 -s 'model.hidden=[4, 4]' -s clients.lr=0.5"
    )


def test_seeds_with_different_settings_have_no_mean(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]))
    run(plan(table, RUNS, ["plain"], ["fedaws"], settings=["seed=1", "clients.lr=0.5"]))
    message = refusal(lambda: collect(table, RUNS))
    assert message == (
        "runs/plain/fedaws-seed0 and runs/plain/fedaws-seed1 differ in clients.lr; move one of them away"
    )


def test_a_measure_that_was_not_made_is_one_line(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]))
    other = table.model_copy(update={"measures": ("precision@1", "precision@99")})
    assert "runs/plain/fedaws-seed0 has no precision@99, which small wants" in refusal(lambda: collect(other, RUNS))


# --- rows that are not in the paper, methods that are not federated, data that are not there ------------------------

SPARSE = """
title = "Table 0: sparse"
measures = ["precision@1"]
plots = false
[rows.here]
preset = "sparse.toml"
label = "generated"
paper = { fixed = [], sleec = [12.5] }
[rows.here.method_settings]
fixed = ["clients.lr=0.5"]
sleec = ["options.clusters=1", "options.dims=4", "options.label_neighbors=5", "options.votes=3"]
[rows.elsewhere]
preset = "sparse.toml"
label = "not here"
settings = ["data.name=amazon-670k", "data.like=amazon-670k", "data.scale=1"]
paper = { fixed = [4.3], sleec = [35.1] }
"""


@pytest.fixture
def sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A row whose data are there, and one whose data are not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDAWS_DATA", raising=False)
    Path("sparse.toml").write_text(
        'data = { name = "xc-synthetic", like = "yso-finna-en", scale = 0.001 }\n'
        'model = { name = "bag", embedding_dim = 8, hidden = [] }\n'
        "clients = { per_round = 5 }\ntrain = { rounds = 2, threads = 1 }\n"
    )
    Path("table.toml").write_text(SPARSE)
    return load_table("table.toml")


def test_a_row_without_its_data_is_told_in_one_line_and_the_others_run(sparse: Table, cli: Cli) -> None:
    code, _, err = cli("reproduce", "table.toml")
    assert code == 0
    told = [line for line in err.splitlines() if "amazon-670k is not below" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: left out: amazon-670k is not below")
    assert "put train.txt and test.txt into" in told[0]
    found = read_results(RUNS / "table/table.json")
    assert ours(found, "here", "fixed")
    assert ours(found, "here", "sleec")
    assert ours(found, "elsewhere", "fixed") is None


def test_where_no_row_has_its_data_it_is_a_mistake(sparse: Table, refused: Refused) -> None:
    assert "amazon-670k is not below" in refused("reproduce", "table.toml", "--rows", "elsewhere")


def test_what_the_paper_has_not_is_shown_as_nothing(sparse: Table) -> None:
    page = results_page(collect(sparse, RUNS))
    assert "| generated | `fixed` (Baseline-2) | P@1 | – | – | – | – | – | – |" in page
    assert "|  | `sleec` (oracle, centralised) | P@1 | 12.5 | – | – | – | – | – |" in page


def test_a_method_may_have_settings_in_one_row_alone(sparse: Table) -> None:
    assert [configured(sparse, row, "fixed").clients.lr for row in ("here", "elsewhere")] == [0.5, 0.3]


def test_sleec_is_run_once_and_its_page_says_what_it_had(sparse: Table) -> None:
    (job,) = plan(sparse, RUNS, ["here"], ["sleec"])
    reproduce([job], lambda job: Reporter(), lambda: None)
    assert plan(sparse, RUNS, ["here"], ["sleec"]) == []
    page = results_page(collect(sparse, RUNS))
    assert "not federated: all examples with all their labels" in page
    assert "dims=4" in page
    assert "fedaws reproduce table.toml --rows here --methods sleec" in page
    assert ".png" not in page
    other = sparse.model_copy(update={"settings": {"sleec": ("options.ridge=5.0",)}})
    assert "was started with options.ridge=None, now it is 5.0" in refusal(
        lambda: plan(other, RUNS, ["here"], ["sleec"])
    )
    message = refusal(lambda: plan(sparse, RUNS, ["here"], ["sleec"], settings=["data.validation=0.5"]))
    assert "was started with data.validation=0.0, now it is 0.5" in message


def test_rounds_are_nothing_to_sleec(sparse: Table) -> None:
    (job,) = plan(sparse, RUNS, ["here"], ["sleec"], rounds=1)
    assert plan(sparse, RUNS, ["here"], ["sleec"], rounds=50) == [job]


@pytest.mark.parametrize("text", ["", "[]", "[" * 5000, "{}"])
def test_a_damaged_file_of_sleec_is_one_line(sparse: Table, text: str) -> None:
    (job,) = plan(sparse, RUNS, ["here"], ["sleec"])
    job.place.mkdir(parents=True)
    (job.place / "oracle.json").write_text(text)
    assert "oracle.json is damaged; move it away" in refusal(lambda: collect(sparse, RUNS))


def test_sleec_needs_sets_of_labels(table: Table) -> None:
    row = table.rows["plain"].model_copy(update={"paper": {"sleec": ()}})
    jobs = plan(table.model_copy(update={"rows": {"plain": row}}), RUNS, ["plain"], ["sleec"])
    message = refusal(lambda: reproduce(jobs, lambda job: Reporter(), lambda: None))
    assert "data.name=synthetic has no sets of labels" in message


# --- what is written ------------------------------------------------------------------------------------------------


def result(rounds: int, finished: bool = True) -> dict[str, Any]:
    return {"rounds": rounds, "finished": finished}


def document(**cells: Any) -> dict[str, Any]:
    return {"rows": {"plain": {"label": "x", "methods": {method: {"ours": value} for method, value in cells.items()}}}}


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (None, result(5), "new"),
        (result(20), result(5), "new"),
        (result(20), None, "old"),
        (result(20), result(5, finished=False), "old"),
        (result(3), result(5, finished=False), "new"),  # a short trial before the real run
        (result(9, finished=False), result(5, finished=False), "new"),
    ],
)
def test_new_figures_replace_old_ones_unless_they_are_less(old: Any, new: Any, kept: str) -> None:
    merged = merge(document(fedaws=old), document(fedaws=new))
    assert ours(merged) == (new if kept == "new" else old)


def test_other_rows_and_methods_stay(table: Table) -> None:
    run(plan(table, Path("one"), ["plain"], ["fedaws"]))
    before = update(table, Path("one"), Path("results"))
    run(plan(table, Path("other"), ["plain", "strong"], ["positive-only", "fedaws"])[0:3:2])
    after = update(table, Path("other"), Path("results"))
    assert ours(after) == ours(before)
    assert ours(after, method="positive-only")
    assert ours(after, "strong")
    assert after == read_results(Path("results/small.json"))


def test_data_page_and_a_plot_for_each_row_that_was_run_are_written(table: Table) -> None:
    run(plan(table, RUNS, ["plain"], ["positive-only", "fedaws"], seeds=2))
    update(table, RUNS, Path("results"))
    assert sorted(path.name for path in Path("results").iterdir()) == ["small-plain.png", "small.json", "small.md"]
    assert Path("results/small-plain.png").read_bytes().startswith(b"\x89PNG")
    page = Path("results/small.md").read_text(encoding="utf-8")
    assert page == results_page(json.loads(Path("results/small.json").read_text(encoding="utf-8")))
    assert "(small-plain.png)" in page
    assert "small-strong.png" not in page


@pytest.mark.parametrize("text", ["", "[]", '{"rows": {}}', '{"table": "small", "rows": 3}'])
def test_a_foreign_file_in_the_results_place_shows_before_anything_is_run(
    table: Table, refused: Refused, text: str
) -> None:
    Path("small.json").write_text(text)
    assert "small.json does not hold results of this command" in refused("reproduce", "small.toml", "--results", ".")
    assert not RUNS.exists()


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_runs_all_prints_paper_and_ours_and_says_where_the_page_is(table: Table, cli: Cli) -> None:
    code, out, err = cli("reproduce", "small.toml")
    assert code == 0
    for part in ("Table 0: small", "synthetic, MLP", "synthetic, λ = 100", "25.0", "30.5", "paper", "ours"):
        assert part in out
    assert "3/3 strong fedaws, seed 0  round 12/12" in err
    assert err.count("Table 0: small") == 2  # after the first and the second run; the third one's is the result
    assert err.splitlines()[-1] == "page: runs/small/small.md    figures: runs/small/small.json"


def test_results_go_beside_the_runs_unless_told_where(table: Table, cli: Cli) -> None:
    Path("docs/results").mkdir(parents=True)  # somebody's own
    cli("reproduce", "small.toml", "--rows", "strong")
    assert (RUNS / "small/small.md").exists()
    assert not list(Path("docs/results").iterdir())
    cli("reproduce", "small.toml", "--rows", "strong", "--results", "elsewhere")
    assert Path("elsewhere/small.md").exists()


def test_a_part_is_chosen_by_rows_and_methods(table: Table, cli: Cli) -> None:
    assert "strong" not in cli("reproduce", "small.toml", "--rows", "plain", "--methods", "fedaws").out
    assert [path.parent.name for path in RUNS.rglob("config.toml")] == ["fedaws-seed0"]


def test_json_is_one_object_the_same_as_in_the_file(table: Table, cli: Cli) -> None:
    code, out, _ = cli("reproduce", "small.toml", "--rows", "strong", "--json")
    assert code == 0
    assert json.loads(out) == read_results(RUNS / "small/small.json")


def test_show_runs_nothing_and_shows_what_there_is(table: Table, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan(table, RUNS / "small", ["plain"], ["fedaws"]), stop_after=10)
    monkeypatch.setattr(fedaws.experiments.reproduce, "train", None)
    code, out, _ = cli("reproduce", "small.toml", "--show")
    assert code == 0
    assert "8 of 12" in out
    assert "unfinished" in out


def test_show_writes_nothing_at_all(table: Table, cli: Cli) -> None:
    Path("docs").mkdir()
    run(plan(table, RUNS / "small", ["plain"], ["fedaws"]), stop_after=10)
    before = sorted(Path().rglob("*"))
    for args in ([], ["--json"], ["--results", "elsewhere"]):
        assert cli("reproduce", "small.toml", "--show", *args).code == 0
    assert sorted(Path().rglob("*")) == before


def test_show_shows_what_was_written_elsewhere(table: Table, cli: Cli) -> None:
    run(plan(table, RUNS, ["plain"], ["fedaws"]))
    update(table, RUNS, Path("results"))
    told = cli("reproduce", "small.toml", "--show", "--json", "--out", "nowhere", "--results", "results").out
    assert json.loads(told) == read_results(Path("results/small.json"))


def test_a_setting_that_would_do_nothing_is_refused_before_anything_is_run(table: Table, refused: Refused) -> None:
    assert "model.norm=group has no effect" in refused("reproduce", "small.toml", "-s", "model.norm=group")
    assert not RUNS.exists()


def test_ctrl_c_keeps_the_checkpoint_and_the_same_command_goes_on(
    table: Table, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fedaws.train

    def interrupted(**given: Any) -> Any:
        done = iter(range(100))
        given["reporter"].should_stop = lambda: next(done) == 4
        return real(**given)

    command = ("reproduce", "small.toml", "--rows", "plain", "--methods", "fedaws")
    with monkeypatch.context() as patch:
        patch.setattr(fedaws.experiments.reproduce, "train", interrupted)
        code, out, err = cli(*command)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "stopped after round 5; go on with the same command"
    assert [path.name for path in RUNS.rglob("round-*")] == ["round-00000005.safetensors"]
    assert "4 of 12 rounds, unfinished" in (RUNS / "small/small.md").read_text(encoding="utf-8")
    assert cli(*command).code == 0
    assert ours(read_results(RUNS / "small/small.json"))["finished"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table9"], "no table 'table9'; there are table1, table3, table4, or give the path of a .toml file"),
        (["none.toml"], "none.toml: No such file or directory"),
        (["table1", "--rows", "mnist"], "table1: unknown row 'mnist'; there are cifar10-resnet8, cifar10-resnet32"),
        (["table1", "--rows", ","], "table1: unknown row ','; there are"),
        (["table1", "--methods", "fedaws,sgd"], "table1: unknown method 'sgd'; there are positive-only, fixed"),
        (["table1", "--rounds", "0"], "--rounds"),
        (["table1", "-s", "clients.speed=1"], "unknown key 'clients.speed'"),
    ],
)
def test_a_mistake_is_one_line_with_what_there_is(refused: Refused, args: list[str], message: str) -> None:
    assert message in refused("reproduce", *args)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("title = ", "is no sound TOML"),
        (f"title = {'[' * 5000}", "is no sound TOML: brackets in brackets"),
        (SMALL.replace("[25.0, 30.5]", "[25.0]"), "rows.plain.paper.positive-only has 1 figures for precision@1, pre"),
        (SMALL.replace("fedaws = [91.0", "sgd = [91.0"), "unknown method 'sgd'; there are fedaws"),
        (SMALL.replace("label", "lable"), "rows.plain.label: Field required"),
        ("title = 'x'\n[rows]", "Dictionary should have at least 1 item"),
    ],
)
def test_an_unsound_table_is_one_line(table: Table, refused: Refused, text: str, part: str) -> None:
    Path("bad.toml").write_text(text, encoding="utf-8")
    message = refused("reproduce", "bad.toml")
    assert "bad.toml" in message
    assert part in message
