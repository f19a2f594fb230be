"""What the tests of downloads share."""

from collections.abc import Iterator

import pytest

from webserver import Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """On this machine, past any proxy."""
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server
