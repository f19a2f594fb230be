"""The report's section of attacks."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedaws
from fedaws import Config, Reporter
from report_pages import page_of

FIGURE = {"value": 0.875, "low": 0.5, "high": 1.0, "chance": 0.25, "n": 8}
FINDING = {
    "attack": "membership",
    "who": "whoever has θ",
    "does": "asks <b>who</b> took part",
    "learns": "ε is at least 0.50",
    "figure": FIGURE,
}


def run_with(tiny: Config, folder: Path, audit: Any, *settings: str) -> Path:
    cfg = tiny.override(["method=fixed", *settings])
    fedaws.train(config=cfg, folder=folder, reporter=Reporter(on_warning=lambda _: None))
    text = audit if isinstance(audit, str) else json.dumps({"name": "x", "method": "fixed", "findings": audit})
    (folder / "audit.json").write_text(text, encoding="utf-8")
    return folder


def test_what_attacks_found_stands_in_a_table(tiny: Config, tmp_path: Path) -> None:
    page = page_of(run_with(tiny, tmp_path / "run", [FINDING]))
    words = " ".join(page.words)
    assert ("section", {"id": "audit"}) in page.seen
    for part in ("whoever has θ", "asks <b>who</b> took part", "0.88", "0.50 … 1.00", "0.25", "No ε was promised"):
        assert part in words


def test_a_private_runs_upper_bound_stands_beside_the_attacks(tiny: Config, tmp_path: Path) -> None:
    private = ["privacy.clip=0.1", "privacy.noise=3", "privacy.delta=1e-3"]
    page = page_of(run_with(tiny, tmp_path / "run", [FINDING], *private))
    spent = fedaws.load(tmp_path / "run").facts.privacy
    assert spent is not None
    assert f"The accountant's upper bound is ε = {spent.epsilon:.2f} at δ = 1.0e-03." in " ".join(page.words)


def test_without_an_audit_there_is_no_such_section(tiny: Config, tmp_path: Path) -> None:
    page = page_of(run_with(tiny, tmp_path / "run", []))
    assert ("section", {"id": "audit"}) not in page.seen


@pytest.mark.parametrize("text", ["[", "[]", '{"findings": 3}', '{"findings": [{"who": "a"}]}'])
def test_an_audit_that_cannot_be_read_is_a_notice(tiny: Config, tmp_path: Path, text: str) -> None:
    page = page_of(run_with(tiny, tmp_path / "run", text))
    assert ("section", {"id": "audit"}) not in page.seen
    assert "audit.json" in " ".join(page.words)
