"""The report as people meet it, in headless Chromium: `make browser-test`."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devtools import Tab, chromium
from fedaws import Config, Reporter, config, train
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.people import examine_people
from fedaws.experiments.compare import compare
from fedaws.record.folder import RunFolder
from fedaws.report.page import write_report
from fedaws.training.session import Interrupted

pytestmark = pytest.mark.browser
QUIET = Reporter(on_warning=lambda message: None)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, tiny: Config) -> dict[str, Path]:
    """Few classes with several methods and seeds, as `make demo` has them; many classes; unfinished and damaged."""
    root = tmp_path_factory.mktemp("runs")
    digits = config.load("digits").override(["train.rounds=60", "train.evaluate_every=10"])
    compare(
        ["positive-only", "fixed", "fedaws", "softmax"],
        config=digits,
        seeds=2,
        folder=root / "few",
        reporter=lambda cfg: QUIET,
    )
    for method, count in (("fedaws", 8), ("fixed", 60)):  # dots of few people, a histogram of many
        RunFolder(root / f"few/{method}-seed0").save_people(people_of(count))
    many = tiny.override(["data.classes=300", "clients.per_round=50", "spread.neighbors=3"])
    train(config=many, folder=root / "many/run", reporter=QUIET)
    seen: list[int] = []
    stop = Reporter(on_round=lambda done, loss: seen.append(done), should_stop=lambda: len(seen) == 7)
    with pytest.raises(Interrupted):
        train(config=tiny, folder=root / "harmed/unfinished", reporter=stop)
    train(config=tiny, folder=root / "harmed/damaged")
    (root / "harmed/damaged/model/model.safetensors").write_bytes(b"nonsense")
    return {name: write_report([root / name], root / f"{name}.html") for name in ("few", "many", "harmed")}


def people_of(count: int) -> dict[str, Any]:
    """Trials of so many people."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(count), 12)
    x = 1.2 * rng.normal(size=(count, 8))[who] + rng.normal(size=(len(who), 8))
    return examine_people(comparisons(x, who), [f"Somebody of a long name {n}" for n in range(count)], draws=20)


NAMES = ["few", "many", "harmed"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("name", NAMES)
def test_it_opens_from_disk_without_error_or_request_and_fits(
    tab: Tab, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    tab.open(pages[name], width, dark)
    assert tab.run("window.innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.complaints == []
    assert tab.requests == []
    assert pages[name].stat().st_size < 3_000_000


@pytest.mark.parametrize("width", [375, 1440])
def test_no_word_sticks_out_of_its_card(tab: Tab, pages: dict[str, Path], width: int) -> None:
    tab.open(pages["few"], width)
    script = """[...document.querySelectorAll('.card > *:not(.scroll), .card svg text')].filter((e) => {
        const box = e.getBoundingClientRect(), card = e.closest('.card').getBoundingClientRect();
        return box.width && !e.closest('.scroll') && (box.right > card.right + 1 || box.left < card.left - 1);
    }).map((e) => e.outerHTML.slice(0, 80))"""
    assert tab.run(script) == []


def test_figures_in_tables_are_not_broken_over_lines(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"], width=375)
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    heights = tab.run("[...document.querySelectorAll('tbody tr')].map((row) => row.getBoundingClientRect().height)")
    assert len(heights) > 50
    assert max(heights) < 80  # a method and its role below it, or a folder's name


@pytest.mark.parametrize("width", [375, 768, 1440])
def test_words_in_charts_are_about_as_large_as_those_around_them(tab: Tab, pages: dict[str, Path], width: int) -> None:
    tab.open(pages["few"], width)
    script = """[...document.querySelectorAll('svg.chart, svg.dots')].map((svg) => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return scale * parseFloat(getComputedStyle(svg.querySelector('text')).fontSize);
    })"""
    sizes = tab.run(script)
    assert len(sizes) > 10
    assert min(sizes) >= 10.5
    assert max(sizes) <= 15


def test_captions_are_seen_whole_on_a_phone(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"], width=375)
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    ends = tab.run("[...document.querySelectorAll('caption span')].map((s) => s.getBoundingClientRect().right)")
    assert len(ends) > 15
    assert max(ends) <= 375


def test_on_paper_no_table_sticks_out_of_its_card(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"], width=718)  # A4 without its margins
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    tab.send("Emulation.setEmulatedMedia", media="print")
    script = """[...document.querySelectorAll('.card table')].map((table) => table.getBoundingClientRect().right
        - table.closest('.card').getBoundingClientRect().right)"""
    beyond = tab.run(script)
    tab.send("Emulation.setEmulatedMedia", media="")
    assert len(beyond) > 10
    assert max(beyond) <= 0


def places(tab: Tab, panel: int) -> list[str]:
    return list(
        tab.run(f"[...document.querySelectorAll('svg[data-plane=\"{panel}\"] .dot')].map((d) => d.style.transform)")
    )


def test_the_slider_moves_the_classes_back_to_where_all_methods_start(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    ends = [places(tab, panel) for panel in range(4)]
    tab.run("document.getElementById('round').focus()")
    tab.press("Home")
    starts = [places(tab, panel) for panel in range(4)]
    assert tab.run("document.getElementById('round-name').textContent") == "round 0"
    assert tab.run("document.getElementById('round').getAttribute('aria-valuetext')") == "round 0"
    assert len(starts[0]) == 10
    assert starts[0] == starts[1] == starts[2] == starts[3]
    assert ends[0] != ends[1]
    assert all(a != b for a, b in zip(starts[0], ends[0], strict=True))  # fedaws: every class has moved
    tab.press("End")
    assert [places(tab, panel) for panel in range(4)] == ends


def test_play_runs_from_the_start_to_the_end_and_stops(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    tab.point_at("#play", click=True)
    assert tab.run("document.getElementById('play').getAttribute('aria-pressed')") == "true"
    tab.wait_for("Number(document.getElementById('round').value) > 2")
    tab.wait_for("document.getElementById('round').value === document.getElementById('round').max")
    tab.wait_for("document.getElementById('play').getAttribute('aria-pressed') === 'false'")
    assert tab.complaints == []


def tip(tab: Tab) -> str:
    """What the tooltip says, line by line; nothing if it is not to be seen."""
    return str(tab.run("(t => t.hidden ? '' : t.innerText)(document.getElementById('tip'))"))


def test_a_tooltip_tells_the_values_of_the_round_under_the_pointer(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    assert tip(tab) == ""
    tab.point_at('svg[data-chart="precision@1"]', x=0.96)
    assert tip(tab).startswith("round 60")
    table = tab.run("document.querySelector('.summary').innerText")
    for method in ("fedaws", "positive-only", "fixed", "softmax"):
        told = re.search(rf"{method}\s+([\d.]+) %", tip(tab))
        assert told, tip(tab)
        assert f"{told[1]} ±" in table  # the figure of the summary
    tab.point_at("h1")
    assert tip(tab) == ""


def test_a_tooltip_on_a_det_curve_tells_both_rates(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    tab.point_at("svg[data-chart=det]", 0.5, 0.5)
    assert re.search(r"FAR \d+\.\d\d %, FRR \d+\.\d\d %", tab.run("document.getElementById('tip').textContent"))


def test_arrow_keys_walk_along_a_curve_and_are_spoken(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    tab.run("document.querySelector('svg[data-chart=\"loss\"]').focus()")
    tab.press("Home")
    assert tip(tab).startswith("round 10")
    tab.press("ArrowRight")
    assert tip(tab).startswith("round 20")
    tab.run("window.scrollBy({top: 40, behavior: 'instant'})")
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert tip(tab).startswith("round 20")
    assert tab.run("document.getElementById('live').textContent").startswith("round 20: fedaws")


@pytest.mark.parametrize("selector", [".mark", ".bar .part", "svg[data-plane] .dot"])
def test_marks_tell_their_values(tab: Tab, pages: dict[str, Path], selector: str) -> None:
    tab.open(pages["few"])
    tab.point_at(selector)
    assert re.search(r"\d", tip(tab))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of rgb(r, g, b)."""
    numbers = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    r, g, b = (n / 12.92 if n <= 0.04045 else ((n + 0.055) / 1.055) ** 2.4 for n in numbers)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_the_formula_of_contrast_is_the_known_one() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_and_curves_stand_out_from_their_background(tab: Tab, pages: dict[str, Path], dark: bool) -> None:
    tab.open(pages["harmed"], dark=dark)
    script = """(() => {
        const probe = document.body.appendChild(document.createElement('i')), found = {};
        for (const name of ['page', 'card', 'ink', 'soft', 'accent', 'warn', 'warn-page', 'pos', 'neg', 'on-strong',
                            'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7']) {
            probe.style.color = `var(--${name})`;
            found[name] = getComputedStyle(probe).color;
        }
        return found;
    })()"""
    colours = tab.run(script)
    assert (luminance(colours["page"]) < 0.05) is dark
    for words in ("ink", "soft", "accent"):
        assert min(contrast(colours[words], colours[back]) for back in ("page", "card")) >= 4.5, words
    assert contrast(colours["warn"], colours["warn-page"]) >= 4.5
    assert min(contrast(colours["on-strong"], colours[back]) for back in ("pos", "neg")) >= 3
    for number in range(8):
        assert contrast(colours[f"c{number}"], colours["card"]) >= 3, number


def test_it_can_be_printed(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["few"])
    printed = base64.b64decode(tab.send("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    assert tab.complaints == []


def test_notices_are_told_first(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["harmed"])
    notices = tab.run("document.querySelector('.notices').innerText")
    assert "7 of 12 rounds" in notices
    assert "model.safetensors is damaged" in notices
