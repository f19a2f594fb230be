"""`fedaws privacy plan`, and what a private run shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedaws.cli.console import _figures
from fedaws.privacy.accountant import AtMost, Fixed, Poisson, epsilon, epsilon_if_known

Cli = Callable[..., Any]
Refused = Callable[..., str]


def planned(cli: Cli, *args: str) -> dict[str, Any]:
    result = cli("privacy", "plan", *args, "--json")
    assert result.code == 0
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_small_federations_are_told_that_it_will_not_train(cli: Cli) -> None:
    found = planned(cli, "--people", "60", "--rounds", "200", "--epsilon", "8")
    assert found["plans"][0]["advice"] == "60 people at ε = 8: noise 21 × the signal: will not train"
    assert found["delta"] == pytest.approx(60**-1.1)


@pytest.mark.parametrize(
    ("args", "cohorts"),
    [
        ([], Poisson(0.1)),
        (["--sampling", "uniform"], Fixed(1000, 100)),
        (["--participations", "5"], AtMost(5)),
    ],
)
def test_noise_is_turned_into_epsilon_by_the_kind_of_cohort(
    cli: Cli, args: list[str], cohorts: Poisson | Fixed | AtMost
) -> None:
    usual = ["--people", "1000", "--per-round", "100", "--rounds", "50", "--delta", "1e-5", "--noise", "2"]
    found = planned(cli, *usual, *args)
    assert found["plans"][0]["epsilon"] == pytest.approx(epsilon(2.0, 1e-5, 50, cohorts))
    assert found["neighbours"] == cohorts.neighbours


def test_what_sampling_hides_is_told_beside_what_it_does_not(cli: Cli) -> None:
    args = ["--people", "1000", "--per-round", "100", "--rounds", "200", "--delta", "1e-5", "--noise", "4"]
    (row,) = planned(cli, *args)["plans"]
    assert row["epsilon"] < 1.5
    assert row["epsilon_if_known"] == pytest.approx(epsilon_if_known(4.0, 1e-5, 200, Poisson(0.1)))
    assert "cohorts known" in cli("privacy", "plan", *args).out


def test_a_million_people_pay_next_to_nothing(cli: Cli) -> None:
    args = ["--people", "1000000", "--rounds", "10", "--epsilon", "2"]
    assert planned(cli, *args)["plans"][0]["advice"].endswith("nearly free")


def test_without_a_target_the_usual_ones_are_shown(cli: Cli) -> None:
    result = cli("privacy", "plan", "--people", "500", "--rounds", "5")
    assert result.code == 0
    assert re.findall(r"ε = (\d+)", result.out) == ["1", "2", "4", "8"]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--people", "10", "--per-round", "11"], "wanted all, or a number of clients from 1 to 10"),
        (["--people", "10", "--per-round", "x"], "--per-round"),
        (["--people", "10", "--delta", "0"], "wanted a number above 0 and below 1"),
        (["--people", "10", "--epsilon", "-1"], "epsilon=-1; wanted a number of at least 0.001"),
        (["--people", "10", "--epsilon", "0"], "epsilon=0; wanted a number of at least 0.001"),
        (["--people", "1000", "--per-round", "100", "--epsilon", "1e-6"], "epsilon=1e-06; wanted a number of at least"),
        (["--people", "10", "--epsilon", "nan"], "epsilon=nan; wanted a number of at least 0.001"),
        (["--people", "10", "--noise", "0"], "noise=0; wanted at least 0.1: less hides nobody"),
        (["--people", "10", "--noise", "0.01"], "noise=0.01; wanted at least 0.1: less hides nobody"),
        (
            ["--people", "40", "--per-round", "20", "--rounds", "6", "--participations", "2"],
            "40 clients are 80 in all, and 6 rounds of 20 need 120; set rounds to 4",
        ),
        (["--people", "1"], "--people"),
        ([], "--people"),
    ],
)
def test_a_mistake_is_one_line(refused: Refused, args: list[str], part: str) -> None:
    assert part in refused("privacy", "plan", *args)


PRIVATE = ("-s", "method=positive-only", "-s", "privacy.clip=0.1", "-s", "privacy.noise=0.1")


def test_a_private_run_says_what_it_has_spent(cli: Cli, tiny_toml: Path, tmp_path: Path) -> None:
    result = cli("train", str(tiny_toml), *PRIVATE, "--out", str(tmp_path / "run"), "--json")
    assert result.code == 0
    told = json.loads(result.out)
    expected = epsilon(0.1, 4**-1.1, 12, AtMost())
    assert told["dp_epsilon"] == pytest.approx(expected)
    assert f"ε {expected:.2f}" in result.err  # the progress line
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"user-level ε = {expected:.2f}" in report
    assert "it covers θ only (class embeddings: none)" in report


def test_the_progress_line_has_no_epsilon_where_nothing_is_promised() -> None:
    assert "ε" not in _figures({"precision@1": 0.5, "max_cosine": 0.1}, 0.2)
