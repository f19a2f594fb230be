"""The report: what is in it, and that nothing a run folder may hold can break it or speak through it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaws
from fedaws import Config, Reporter
from fedaws.experiments.compare import compare
from fedaws.record.files import write_tensors
from fedaws.record.folder import RunFolder
from fedaws.report.collect import collect, find_runs, grouped
from fedaws.report.geometry import cosines
from fedaws.report.page import make_page, write_report
from fedaws.training.session import Interrupted
from report_pages import Page, page_of, runs_of

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory, tiny: Config) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    compare(
        ["positive-only", "fedaws", "softmax"], config=tiny, seeds=2, folder=folder, reporter=lambda cfg: Reporter()
    )
    return folder


@pytest.fixture
def run(comparison: Path, tmp_path: Path) -> Path:
    """A copy of one run, to be damaged."""
    return Path(shutil.copytree(comparison / "fedaws-seed0", tmp_path / "run"))


# --- what it shows --------------------------------------------------------------------------------------------------


def test_the_page_is_sound_html_that_asks_for_nothing(comparison: Path) -> None:
    text = make_page(collect([comparison]))
    page = Page(text)
    links = [a.get(name) or "" for _, a in page.seen for name in ("src", "href", "xlink:href", "srcset", "action")]
    assert all(not link or link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    json.loads(page.data)


def test_every_picture_has_words_and_every_table_a_caption(comparison: Path) -> None:
    page = page_of(comparison)
    pictures = [a for tag, a in page.seen if tag == "svg" and a.get("aria-hidden") != "true"]
    assert pictures
    assert all(a.get("role") == "img" and a.get("aria-label") for a in pictures)
    assert all(a.get("alt") for a in page.all("img"))
    assert len(page.all("table")) == len(page.all("caption"))


def test_methods_are_told_by_name_with_their_figures(comparison: Path) -> None:
    rows = [RunFolder(comparison / f"softmax-seed{seed}").metrics()[-1]["precision@1"] for seed in (0, 1)]
    mean, spread = 100 * np.mean(rows), 100 * np.std(rows, ddof=1)
    text = page_of(comparison).text
    assert f"softmax oracle all of W {mean:.1f} ± {spread:.1f} %" in text
    assert "positive-only Baseline-1" in text


def test_the_answer_comes_first_fedaws_beside_the_others(tmp_path: Path) -> None:
    # 0.8 and 0.9: mean 85, standard deviation 7.1. 0.92: 7 points more, within √2 · 7.1. 0.3: 55 points less, without.
    text = page_of(runs_of(tmp_path, fedaws=[0.8, 0.9], softmax=[0.87, 0.97], positive_only=[0.25, 0.35])).text
    right = "fedaws is right about 85.0 ± 7.1 % of the test examples"
    assert f"{right}: 55.0 points above positive-only, level with softmax within the spread of the seeds." in text


def test_with_one_seed_nothing_is_called_level(tmp_path: Path) -> None:
    text = page_of(runs_of(tmp_path, fedaws=[0.9], softmax=[0.901])).text
    assert "fedaws is right about 90.0 % of the test examples: 0.1 points below softmax." in text


def test_of_a_sweep_the_best_and_the_worst_are_told(tmp_path: Path) -> None:
    text = page_of(runs_of(tmp_path, fedaws_at_1=[0.5], fedaws_at_2=[0.9], fedaws_at_3=[0.7])).text
    assert "Of 3 kinds of runs fedaws weight=2.0 is right most often, about 90.0 % of the test examples" in text
    assert "; fedaws weight=1.0 least, about 50.0 %." in text


def test_the_closest_and_the_farthest_classes_are_told(tmp_path: Path) -> None:
    text = page_of(runs_of(tmp_path, fedaws=[0.9], fixed=[0.5], positive_only=[0.03])).text
    fallen = "The two closest classes of positive-only have fallen together (cosine 0.97)"
    assert f"{fallen}, those of fedaws stand far apart (cosine 0.1)." in text


def test_what_is_on_the_page_stands_below_its_title(comparison: Path) -> None:
    assert "tiny 4 classes · 12 rounds · 3 methods · 2 seeds Results" in page_of(comparison).text


def test_the_same_colour_is_the_same_share_of_errors_in_every_panel(comparison: Path, tmp_path: Path) -> None:
    for name, wrong in (("fedaws", 1), ("softmax", 16)):
        folder = Path(shutil.copytree(comparison / f"{name}-seed0", tmp_path / name))
        details = json.loads((folder / "details.json").read_text())
        counts = [[20 - wrong, wrong, 0, 0], [0, 20, 0, 0], [0, 0, 20, 0], [0, 0, 0, 20]]
        (folder / "details.json").write_text(json.dumps(details | {"confusion": counts}))
    text = make_page(collect([tmp_path]))
    assert re.search(r'--a:25%">1<', text)  # √(1/16) of the full colour
    assert re.search(r'--a:100%">16<', text)


def test_a_matrix_drawn_as_an_image_says_what_its_rows_are(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny.override(["data.classes=20", "spread.margin=0.7", "train.rounds=2"]), folder=tmp_path)
    text = page_of(tmp_path).text
    assert "Rows and columns are the classes in their order" in text
    assert "Rows are true, columns what they are taken for" in text


def test_of_many_panels_only_the_range_of_what_the_plane_shows_is_told(tiny: Config, tmp_path: Path) -> None:
    for weight in range(1, 6):
        fedaws.train(config=tiny.override([f"spread.weight={weight}", "train.rounds=2"]), folder=tmp_path / f"{weight}")
    assert re.search(r"of the rows' squared length [\d.]+ % to [\d.]+ %\.", page_of(tmp_path).text)


def test_the_nearest_pairs_of_many_classes_are_those_of_all() -> None:
    rows = torch.nn.functional.normalize(torch.randn(600, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    every = sorted(((float(rows[a] @ rows[b]), a, b) for a in range(600) for b in range(a)), reverse=True)[:12]
    found = cosines(rows)
    assert found.searched == 600
    assert [(b, a) for a, b, _ in found.pairs] == [(a, b) for _, a, b in every]
    assert [cosine for *_, cosine in found.pairs] == pytest.approx([cosine for cosine, *_ in every])


@pytest.mark.parametrize("classes", [101, 512])
def test_classes_that_fell_together_are_the_nearest_pair(classes: int) -> None:
    rows = torch.eye(classes)
    rows[classes - 1] = rows[3]
    assert cosines(rows).pairs[0] == (3, classes - 1, 1.0)


def test_curves_are_means_over_the_seeds_with_a_band_from_lowest_to_highest(comparison: Path) -> None:
    lines = json.loads(page_of(comparison).data)["charts"]["loss"]["lines"]
    seeds = [RunFolder(comparison / f"fedaws-seed{seed}").metrics() for seed in (0, 1)]
    line = next(line for line in lines if line["label"] == "fedaws")
    assert line["x"] == [4, 8, 12]
    for i in range(3):
        losses = [rows[i]["loss"] for rows in seeds]
        assert line["y"][i] == pytest.approx(sum(losses) / 2, rel=1e-4)
        assert (line["low"][i], line["high"][i]) == pytest.approx((min(losses), max(losses)), rel=1e-4)


def test_all_measures_of_the_paper_have_a_chart(comparison: Path) -> None:
    charts = json.loads(page_of(comparison).data)["charts"]
    wanted = ["precision@1", "loss", "max_cosine", "min_separation", "positive_radius", "error_bound", "lemma1_bound"]
    assert set(wanted) <= set(charts)


def test_the_classes_start_at_the_same_places_for_every_method_and_then_part(comparison: Path) -> None:
    planes = json.loads(page_of(comparison).data)["planes"]
    assert len(planes) == 3
    assert planes[0]["places"][0] == planes[1]["places"][0] == planes[2]["places"][0]
    assert planes[0]["places"][-1] != planes[1]["places"][-1]


def test_what_was_typed_is_told(comparison: Path, cli: Cli) -> None:
    assert cli("compare", "digits", "--methods", "fedaws,fixed", "--seeds", 2, "-s", "train.rounds=3").code == 0
    text = Path("runs/digits-compare-1/report.html").read_text()
    assert "fedaws compare digits -s train.rounds=3 --methods fedaws,fixed --seeds 2" in text


def test_a_run_of_a_preset_is_told_by_what_differs_from_it(cli: Cli) -> None:
    cli("train", "digits", "-s", "train.rounds=3", "-s", "seed=4", "--out", "run")
    assert "fedaws train digits -s train.rounds=3 -s seed=4</code>" in Path("run/report.html").read_text()


def test_runs_of_no_preset_are_told_by_their_own_settings(tiny: Config, tmp_path: Path) -> None:
    for weight in (1, 3):
        fedaws.train(config=tiny.override([f"spread.weight={weight}"]), folder=tmp_path / f"runs/{weight}")
    assert "fedaws train runs/1/config.toml fedaws train runs/3/config.toml" in page_of(tmp_path / "runs").text


def test_settings_are_told_where_runs_differ_and_where_they_differ_from_the_defaults(
    tiny: Config, tmp_path: Path
) -> None:
    for weight in (1, 3):
        fedaws.train(config=tiny.override([f"spread.weight={weight}"]), folder=tmp_path / f"{weight}")
    page = page_of(tmp_path)
    assert "fedaws weight=1.0" in page.text
    assert "Settings in which the runs differ setting default fedaws weight=1.0 fedaws weight=3.0" in page.text
    assert "spread.weight 10.0 1.0 3.0" in page.text
    assert "server.momentum 0.0 0.9" in page.text


def test_where_the_data_lies_is_not_told(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny.override(["data.root=/home/somebody/secret"]), folder=tmp_path)
    assert "somebody" not in make_page(collect([tmp_path]))


def test_runs_on_data_in_two_places_are_told_apart_by_the_last_part_of_each(tiny: Config, tmp_path: Path) -> None:
    for name in ("old", "new"):
        fedaws.train(config=tiny.override([f"data.root=/home/somebody/{name}"]), folder=tmp_path / name)
    text = make_page(collect([tmp_path]))
    assert "fedaws root=old" in text
    assert "somebody" not in text


def test_where_a_file_of_data_lies_is_not_told(cli: Cli, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 4
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    cli("train", "digits", "-s", f"data.name={tmp_path}/mine.npz", "-s", "train.rounds=2", "--out", "run")
    text = Path("run/report.html").read_text()
    assert "mine.npz" in text
    assert str(tmp_path) not in text


def test_images_of_confused_examples_are_shown(cli: Cli) -> None:
    cli("train", "digits", "-s", "train.rounds=3", "--out", "run")
    images = page_of(Path("run")).all("img")
    assert images
    assert all(str(a["src"]).startswith("data:image/png;base64,iVBOR") for a in images)


def test_time_is_shared_out_by_part(comparison: Path) -> None:
    assert "A round, by part" in page_of(comparison).text


def test_a_client_of_an_oracle_is_sent_all_of_w(comparison: Path) -> None:
    # Four classes, five dimensions, four bytes: a row has 20 bytes, W 80.
    text = page_of(comparison).text
    assert re.search(r"Bytes of one client in one round .* fedaws \S+ B 20 B .* softmax \S+ B 80 B", text)


def test_a_client_of_an_oracle_over_sampled_classes_is_sent_their_rows(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny.override(["method=softmax", "clients.sampled_classes=3"]), folder=tmp_path)
    assert re.search(r"Bytes of one client in one round .* softmax \S+ B 60 B", page_of(tmp_path).text)


# --- which folders --------------------------------------------------------------------------------------------------


def test_runs_that_differ_only_in_their_seed_are_one_group(comparison: Path) -> None:
    found = collect([comparison])
    assert {group.label: len(group.runs) for group in found.groups} == {"fedaws": 2, "positive-only": 2, "softmax": 2}
    assert grouped([], []) == []


def test_the_runs_below_a_folder_are_found_also_two_levels_down(comparison: Path, tmp_path: Path) -> None:
    shutil.copytree(comparison, tmp_path / "table/row")
    assert len(find_runs(tmp_path / "table")) == 6
    assert len(find_runs(comparison)) == 6
    assert find_runs(comparison / "fedaws-seed0") == [comparison / "fedaws-seed0"]


def test_a_folder_given_twice_is_shown_once(comparison: Path) -> None:
    assert len(collect([comparison, comparison / "fedaws-seed0"]).runs) == 6


def test_a_report_goes_into_the_one_folder_or_where_it_is_told(comparison: Path, run: Path, cli: Cli) -> None:
    assert cli("report", run).out == f"{run}/report.html\n"
    assert cli("report", run, comparison, "-o", "new/both.html").out == "new/both.html\n"
    assert Path("new/both.html").exists()


def test_several_folders_need_a_name_for_their_report(refused: Callable[..., str], run: Path, comparison: Path) -> None:
    assert "name it: -o report.html" in refused("report", run, comparison)


@pytest.mark.parametrize("place", ["nowhere", "empty", "file"])
def test_no_run_at_all_is_one_line(refused: Callable[..., str], tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    refused("report", place)


def test_a_folder_in_place_of_the_file_is_one_line(refused: Callable[..., str], run: Path, tmp_path: Path) -> None:
    assert "is a folder" in refused("report", run, "-o", tmp_path)


def test_a_report_that_fails_does_not_fail_the_training(
    cli: Cli, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fedaws.report.page.write_report", broken)
    code, out, err = cli("train", tiny_toml, "--out", "run", "--json")
    assert code == 0
    assert json.loads(out)["report"] is None
    assert "warning: no report: ZeroDivisionError" in err


# --- unfinished and damaged -----------------------------------------------------------------------------------------


def test_an_unfinished_run_is_shown_as_far_as_it_has_come(tiny: Config, tmp_path: Path) -> None:
    seen: list[int] = []
    stop = Reporter(on_round=lambda done, loss: seen.append(done), should_stop=lambda: len(seen) == 7)
    with pytest.raises(Interrupted):
        fedaws.train(config=tiny, folder=tmp_path, reporter=stop)
    page = page_of(tmp_path)
    assert "is unfinished: 7 of 12 rounds" in page.text
    assert json.loads(page.data)["charts"]["loss"]["lines"][0]["x"] == [4]
    assert json.loads(page.data)["rounds"][-1] <= 7


def test_a_run_that_has_only_begun_is_shown_with_its_settings(tiny: Config, tmp_path: Path) -> None:
    RunFolder(tmp_path).create(tiny)
    text = page_of(tmp_path).text
    assert "has no figures and no checkpoint yet" in text
    assert "server.momentum" in text


def cut(path: Path) -> None:
    data = path.read_bytes()
    half = len(data) // 2
    # Settings are cut behind a "=": half of their file may be a whole file of fewer settings.
    path.write_bytes(data[: data.index(b"=", half) + 1 if path.suffix == ".toml" else half])


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


FILES = [
    "config.toml",
    "metrics.jsonl",
    "details.json",
    "made_with.json",
    "model/model.safetensors",
    "checkpoints/round-00000012.safetensors",
    "trace/W-00000012.safetensors",
    "trace/W-00000000.safetensors",
]


@pytest.mark.parametrize("damage", [cut, garbage, empty, nested])
@pytest.mark.parametrize("name", FILES)
def test_any_damaged_file_leaves_a_report_with_a_notice_of_it(
    comparison: Path, run: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(run / name)
    target = write_report([comparison / "softmax-seed0", run], tmp_path / "report.html")
    page = Page(target.read_text())
    assert "softmax" in page.text
    # The model has what a checkpoint has, and of an empty file of settings or metrics nothing says that it is damaged.
    harmless = name.startswith("checkpoints") or (damage is empty and name in ("config.toml", "metrics.jsonl"))
    assert ("Please note" in page.text) is not harmless


@pytest.mark.parametrize("name", FILES)
def test_any_missing_file_leaves_a_report(comparison: Path, run: Path, name: str) -> None:
    (run / name).unlink()
    assert "softmax" in page_of(comparison / "softmax-seed0", run).text


def test_a_damaged_run_alone_is_one_line(refused: Callable[..., str], run: Path) -> None:
    (run / "config.toml").write_text("= nonsense")
    assert "config.toml is no sound TOML" in refused("report", run)


@pytest.mark.parametrize(
    "row",
    [
        '{"round": 13, "loss": NaN, "precision@1": Infinity}',
        '{"round": 13, "loss": "much", "precision@1": [1], "max_cosine": null, "min_separation": {}}',
        '{"round": 13, "loss": 1e999, "precision@1": -1e308}',
        '{"round": 13, "loss": ' + "9" * 400 + "}",
        '{"round": true, "loss": 1}',
        '{"round": -5, "loss": 1}',
        '{"round": ' + "9" * 30 + "}",
        '{"round": 13, "seconds": -1, "loss": 0, "precision@1": 2}',
    ],
)
def test_odd_figures_do_not_break_the_page(run: Path, row: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    json.loads(page_of(run).data)


def test_no_axis_has_half_a_round(run: Path) -> None:
    rows = [{"round": number, "loss": 0.5, "precision@1": 0.5} for number in (1, 2)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    chart = re.search(r'data-chart="precision@1".*?</svg>', make_page(collect([run])), re.DOTALL)
    assert chart
    assert re.findall(r'class="tick mid"[^>]*>([^<]*)<', chart[0]) == ["0", "1", "2"]


def test_a_run_over_flower_does_not_say_that_it_came_from_python(tiny: Config, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 4
    fedaws.train(fedaws.from_arrays(x, y), config=tiny, folder=tmp_path)
    assert "Data data of your own, 4 classes" in page_of(tmp_path).text
    line = {"round": 1, "asked": 2, "replies": 2, "answered": ["node-0", "node-1"]}
    (tmp_path / "participants.jsonl").write_text(json.dumps(line) + "\n")
    text = page_of(tmp_path).text
    assert "Python" not in text
    assert "fedaws flower up" in text


def test_who_took_part_in_further_runs_is_not_left_out_in_silence(run: Path, tmp_path: Path) -> None:
    places = [tmp_path / f"copy-{number}" for number in range(5)]
    line = {"round": 1, "asked": 2, "replies": 2, "answered": ["node-0", "node-1"]}
    for place in places:
        shutil.copytree(run, place)
        (place / "participants.jsonl").write_text(json.dumps(line) + "\n")
    told = "5 runs are of devices; who took part is shown of the first 4"
    assert told in make_page(collect(places))
    assert told not in make_page(collect(places[:4]))


def test_a_run_with_one_row_has_a_report(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"round": 3, "loss": 0.0, "precision@1": 0.5}\n')
    assert "50.0 %" in page_of(run).text


@pytest.mark.parametrize(
    "change",
    [
        {"count": [0, 0, 0, 0]},
        {"classes": []},
        {"histogram": [0] * 20},
        {"confusion": [[0] * 4] * 4},
        {"confusion": [[1, 2], [3]]},
        {"pairs": [{"true": 99, "taken": 98, "count": 1, "examples": [], "images": ["<script>"]}]},
        {"examples": 0},
        {"errors": 10**400},
    ],
    ids=str,
)
def test_odd_details_do_not_break_the_page(run: Path, change: dict[str, Any]) -> None:
    details = json.loads((run / "details.json").read_text())
    if change.get("classes") == []:
        change |= {"right": [], "count": []}
    (run / "details.json").write_text(json.dumps(details | change))
    page = page_of(run)
    assert "precision" in page.text


@pytest.mark.parametrize("W", [torch.zeros(4, 5), torch.ones(1, 5), torch.ones(5), torch.ones(4, 5).long()])
def test_an_odd_class_matrix_does_not_break_the_page(run: Path, W: torch.Tensor) -> None:
    facts = fedaws.load(run).facts.model_dump()
    write_tensors(RunFolder(run).model_file, {"W": W}, facts)
    page_of(run)


@pytest.mark.parametrize("rows", [torch.zeros(4, 5), torch.ones(1, 5), torch.ones(4, 3), torch.ones(5)])
def test_odd_rows_along_the_way_do_not_break_the_page(run: Path, rows: torch.Tensor) -> None:
    for path in RunFolder(run).traces()[2:4]:
        write_tensors(path, {"classes": torch.arange(len(rows)), "rows": rows}, {})
    page_of(run)


@pytest.mark.parametrize("name", FILES)
def test_a_notice_names_a_run_and_not_where_it_lies(comparison: Path, run: Path, name: str) -> None:
    garbage(run / name)
    text = make_page(collect([comparison / "softmax-seed0", run]))
    assert str(run.parent) not in text
    assert f"{run.parent.name}/run" in text


# --- what stands in files is only ever text -------------------------------------------------------------------------

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def test_whatever_a_file_says_stays_text(tiny: Config, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    x = (rng.normal(size=(40, 6)) + np.eye(6)[y]).astype(np.float32)
    folder = tmp_path / "<b>&amp;run"
    data = fedaws.from_arrays(x, y, class_names=[f"{NASTY}{i}" for i in range(4)])
    fedaws.train(data, config=tiny.override([f"data.name={NASTY}", "data.root=x"]), folder=folder)
    (folder / "made_with.json").write_text(json.dumps({NASTY: NASTY, "machine": NASTY}))
    (folder / "flower.json").write_text(json.dumps({"rejected": {NASTY: 3}}))
    line = {"round": 1, "asked": 2, "replies": 1, "answered": [NASTY], "dropped": {NASTY + "2": NASTY}}
    (folder / "participants.jsonl").write_text(json.dumps(line) + "\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 13, NASTY: 1.0, "loss": NASTY, "round_seconds": 2.0}) + "\n" + NASTY + "\n")
    page = page_of(folder)
    assert len(page.all("script")) == 2
    assert not [a for _, a in page.seen if "onerror" in a]
    assert NASTY in page.text  # braces and all: nothing is taken for a template either
    assert "<" not in page.data


# --- large ----------------------------------------------------------------------------------------------------------


def test_a_curve_of_very_many_rounds_is_thinned_out(run: Path) -> None:
    rows = (json.dumps({"round": r, "loss": 1 / r, "precision@1": 0.5}) for r in range(1, 20_001))
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    line = json.loads(page_of(run).data)["charts"]["loss"]["lines"][0]
    assert len(line["x"]) <= 300
    assert (line["x"][0], line["x"][-1]) == (1, 20_000)


def test_a_report_of_twelve_runs_with_17913_classes_each_is_small(run: Path, tmp_path: Path) -> None:
    facts, rng = fedaws.load(run).facts.model_dump(), torch.Generator().manual_seed(0)
    for weight in range(12):
        folder = RunFolder(Path(shutil.copytree(run, tmp_path / f"runs/{weight}")))
        (folder.path / "config.toml").write_text(folder.config().override([f"spread.weight={weight}"]).to_toml())
        write_tensors(folder.model_file, {"W": torch.randn(17_913, 5, generator=rng)}, facts)
    target = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert "Nearest pairs of 17,913 classes" in Page(target.read_text()).text
    assert target.stat().st_size < 3_000_000


def test_many_classes_are_shown_as_histogram_and_nearest_pairs(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override(["data.classes=300", "clients.per_round=50", "spread.neighbors=3", "train.rounds=2"])
    fedaws.train(config=cfg, folder=tmp_path, reporter=Reporter(on_warning=lambda message: None))
    target = write_report([tmp_path], tmp_path / "report.html")
    page = Page(target.read_text())
    assert "Nearest pairs of 300 classes" in page.text
    assert "The hardest classes" in page.text
    assert not page.all("table", **{"class": "heat"})
    assert target.stat().st_size < 3_000_000
