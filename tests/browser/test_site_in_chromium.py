"""The documentation as people open it from disk, in headless Chromium: `make browser-test`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import chromium

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.mark.parametrize("page", ["index.html", "results/digits.html"])
def test_the_search_finds_from_disk_and_asks_no_network(site: Path, page: str) -> None:
    with chromium() as tab:
        tab.open(site / page)
        tab.run("document.querySelector('[data-md-component=search-query]').focus()")
        tab.send("Input.insertText", text="participants.jsonl")
        tab.wait_for("document.querySelectorAll('.md-search-result__item').length")
        found = tab.run("[...document.querySelectorAll('.md-search-result__item a')].map((a) => a.href)")
        assert any(link.startswith((site / "run-folder.html").as_uri()) for link in found), json.dumps(found)
        assert [address for address in tab.requests if not address.startswith(("file:", "about:"))] == []
