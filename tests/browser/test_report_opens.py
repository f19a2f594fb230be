"""One look at a report in a real browser, in every test run where there is one; `make browser-test` looks longer."""

from pathlib import Path

import pytest

from devtools import chromium, find_chromium
from fedaws import Config, Reporter
from fedaws.experiments.compare import compare
from fedaws.report.page import write_report
from report_pages import rename_method

PLACES = "[...document.querySelectorAll('svg[data-plane=\"{}\"] .dot')].map((dot) => dot.style.transform)"


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; on Debian: apt-get install chromium")
def test_a_report_opens_fits_a_phone_and_answers_to_its_slider(tiny: Config, tmp_path: Path) -> None:
    compare(
        ["fedaws", "positive-only", "fixed"], config=tiny, seeds=1, folder=tmp_path, reporter=lambda cfg: Reporter()
    )
    rename_method(tmp_path / "fixed-seed0", "a-method-of-ones-own")
    page = write_report([tmp_path], tmp_path / "report.html")
    with chromium() as tab:
        tab.open(page, width=375, dark=True)
        assert tab.run("document.documentElement.scrollWidth") <= 375
        assert "a-method-of-ones-own" in tab.run("document.querySelector('.summary').innerText")
        ends = [tab.run(PLACES.format(panel)) for panel in range(3)]
        tab.run("document.getElementById('round').focus()")
        tab.press("Home")
        starts = [tab.run(PLACES.format(panel)) for panel in range(3)]
        assert starts[0] == starts[1] == starts[2] == ends[2]  # rows that are fixed never leave
        assert ends[0] != starts[0]
        assert tab.complaints == []
        assert tab.requests == []
