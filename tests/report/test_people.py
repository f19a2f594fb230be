"""The section "People" of the report."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedaws
from fedaws import Config
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.people import examine_people
from fedaws.record.folder import PEOPLE, RunFolder
from fedaws.report.page import write_report

NASTY = "<script>alert(1)</script>{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def run(tiny: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedaws.train(config=tiny, folder=folder)
    return folder


def people(count: int = 6, trained: bool = False, name: str = "person") -> dict[str, Any]:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(count), 12)
    x = 1.2 * rng.normal(size=(count, 8))[who] + rng.normal(size=(len(who), 8))
    return examine_people(comparisons(x, who), [f"{name} {n}" for n in range(count)], trained, draws=20)


def page_of(run: Path, told: object) -> str:
    (run / PEOPLE).write_text(json.dumps(told))
    return write_report([run], run / "report.html").read_text()


def test_a_run_without_trials_has_no_such_section(run: Path) -> None:
    (run / PEOPLE).unlink(missing_ok=True)
    assert 'id="people"' not in write_report([run], run / "report.html").read_text()


def test_rates_thresholds_and_people_are_shown(run: Path) -> None:
    told = people()
    page = page_of(run, told)
    assert "Of 6 people who took no part in training" in page
    assert f"{100 * told['eer']['value']:.3g} %" in page
    assert all(f"{line['threshold']:.3f}" in page for line in told["thresholds"])
    assert all(f"person {n}" in page for n in range(6))
    assert 'data-chart="det"' in page
    assert f"{told['pairs'][0]['share']:.1%}".replace("%", " %") in page


def test_the_det_curve_lies_on_normal_deviates(run: Path) -> None:
    """Two Gaussians of one spread have a straight line: every slope between two of its points is −1."""
    rng = np.random.default_rng(0)
    told = people()
    own, others = np.sort(rng.normal(2, 1, 40_000)), np.sort(rng.normal(0, 1, 40_000))
    at = np.linspace(0.3, 1.7, 15)
    told["det"] = {
        "far": [float(np.mean(others >= t)) for t in at],
        "frr": [float(np.mean(own < t)) for t in at],
    }
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page_of(run, told))[0])
    line = data["charts"]["det"]["lines"][0]
    assert np.diff(line["y"]).sum() / np.diff(line["x"]).sum() == pytest.approx(-1, abs=0.03)
    assert line["told"][0] == f"FAR {100 * told['det']['far'][0]:.2f} %, FRR {100 * told['det']['frr'][0]:.2f} %"


def test_people_who_trained_are_said_to_have(run: Path) -> None:
    page = page_of(run, people(trained=True))
    assert "who took part in training, by test examples" in page
    assert "lets too many strangers" in page


def test_many_people_are_a_histogram_with_the_worst_of_them(run: Path) -> None:
    page = page_of(run, people(60))
    assert 'data-chart="people-0"' in page
    assert "Goats and lambs" in page


def test_names_are_only_text(run: Path) -> None:
    page = page_of(run, people(name=NASTY))
    assert NASTY not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{ 7 * 7 }}" in page


@pytest.mark.parametrize(
    "change",
    [
        {"eer": {"value": 7}},
        {"det": {"far": [0.1], "frr": []}},
        {"det": {"far": [0.1, 0.2], "frr": [0.1]}},
        {"histogram": {"low": 1, "high": 0, "same": [1], "other": [1]}},
        {"each": "nobody"},
        {"same": 0},
    ],
    ids=str,
)
def test_a_damaged_file_is_a_notice(run: Path, change: dict[str, Any]) -> None:
    page = page_of(run, people() | change)
    assert 'id="people"' not in page
    assert "people.json is damaged" in page


def test_the_command_keeps_what_the_report_shows(cli: Callable[..., Any], run: Path) -> None:
    (run / PEOPLE).unlink(missing_ok=True)
    assert cli("trials", run, "--enroll", 1, "--json").code == 0
    told = json.loads((run / PEOPLE).read_text())
    assert (told["trained"], told["people"], told["same"]) == (True, 4, 4)  # two test examples each
    rng = np.random.default_rng(0)
    np.savez("strangers.npz", x=rng.normal(size=(50, 6)).astype(np.float32), y=np.repeat(list("abcde"), 10))
    assert cli("trials", run, "strangers.npz", "--json").code == 0
    told = json.loads((run / PEOPLE).read_text())
    assert (told["trained"], {line["name"] for line in told["each"]}) == (False, set("abcde"))
    assert RunFolder(run).finished


def test_nobody_is_a_goat_and_a_lamb(run: Path) -> None:
    told = people(60)
    for number, (frr, far) in enumerate([(0.5, 0.3), (0.2, 0.6), (0.4, 0.4)]):
        told["each"][number] = {"name": f"worst-{number}", "examples": 9, "frr": frr, "far": far}
    page = page_of(run, told)
    kinds = re.findall(r"(worst-\d)</t[dh]>\s*<td[^>]*>(goat|lamb)", page)
    assert sorted(kinds) == [("worst-0", "goat"), ("worst-1", "lamb"), ("worst-2", "goat")]


def test_several_examples_asked_about_at_once_are_said(run: Path) -> None:
    assert "asked about by 3 examples at once" in page_of(run, people() | {"ask": 3})
    assert "at once: equal error rate" not in page_of(run, people())
