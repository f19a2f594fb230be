"""Reports taken apart, and small run folders to make them of."""

import json
from html.parser import HTMLParser
from pathlib import Path

from fedaws import Config
from fedaws.record.folder import RunFolder
from fedaws.report.collect import collect
from fedaws.report.page import make_page

VOID = {"meta", "link", "img", "input", "br", "line", "circle", "rect", "path", "polyline", "polygon"}


class Page(HTMLParser):
    """A page taken apart; tags that do not close are told."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.data = self.data or data  # the first script is the data
        elif self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.seen if t == tag and attributes.items() <= a.items()]


def page_of(*paths: Path) -> Page:
    return Page(make_page(collect(paths)))


def runs_of(tmp_path: Path, **precisions: list[float]) -> Path:
    """Runs of these methods (seeds 0, 1, …) with nothing but settings and a last row."""
    for name, values in precisions.items():
        for seed, value in enumerate(values):
            folder = RunFolder(tmp_path / f"{name}-{seed}")
            method, _, weight = name.replace("_", "-").partition("-at-")
            folder.create(Config().override([f"method={method}", f"seed={seed}", f"spread.weight={weight or 10}"]))
            folder.metrics_file.write_text(
                json.dumps({"round": 9, "precision@1": value, "max_cosine": 1 - value}) + "\n"
            )
    return tmp_path


def rename_method(folder: Path, name: str) -> None:
    """The run's method by a name that no configuration knows, as methods of one's own have."""
    path = folder / "config.toml"
    lines = path.read_text().splitlines()
    named = [f"method = {json.dumps(name)}" if line.startswith("method = ") else line for line in lines]
    path.write_text("\n".join(named) + "\n")
