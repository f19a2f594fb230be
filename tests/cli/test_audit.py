"""`fedaws audit RUN`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_an_audit_of_a_run_tells_who_learns_what(cli: Callable[..., Any], tiny_toml: Path) -> None:
    assert cli("train", tiny_toml, "--out", "run").code == 0
    code, out, err = cli("audit", "run", "--rounds", "3", "--json")
    assert code == 0, err
    found = json.loads(out)["findings"]
    assert {line["attack"] for line in found} == {"row-theft", "inversion", "membership", "row-inversion", "poisoning"}
    for line in found:
        assert line["figure"]["low"] <= line["figure"]["value"] <= line["figure"]["high"]
    code, out, _ = cli("audit", "run", "--attacks", "membership")
    assert code == 0
    assert "whoever has θ" in out
    kept = json.loads(Path("run/audit.json").read_text(encoding="utf-8"))["findings"]
    assert [line["attack"] for line in kept] == ["membership"]
    assert "What attacks find" in Path("run/report.html").read_text(encoding="utf-8")


def test_mistakes_are_one_line(cli: Callable[..., Any], refused: Callable[..., str], tiny_toml: Path) -> None:
    assert cli("train", tiny_toml, "--out", "run").code == 0
    assert "no attack 'theft'; there are row-theft" in refused("audit", "run", "--attacks", "theft")
    assert "wanted whole numbers" in refused("audit", "run", "--rounds", "0")
    assert cli("train", tiny_toml, "-s", "method=softmax", "--out", "oracle").code == 0
    assert "rows=all" in refused("audit", "oracle")
