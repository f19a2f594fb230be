"""The documentation: its code runs, its links lead somewhere, its figures are the data's, and the site builds."""

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import fedaws

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("examples/**/*.md")]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+ *\Z")
INTERVAL = re.compile(r"[\d.]+ \([\d.]+ … [\d.]+\)")  # a figure with its interval
SHOWN_ONLY = {"text", "toml"}  # what programs print and files hold

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# --- code -----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A block of code, with as many empty lines before it as it has in its page, so that errors name the page's."""

    language: str
    code: str
    run: bool


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        lines = "\n" * text.count("\n", 0, found.start(3))
        marked = NOT_RUN.search(text[: found.start()]) is not None
        yield Block(found[2], lines + textwrap.dedent(found[3]), not marked and found[2] not in SHOWN_ONLY)


@every_page
def test_every_block_of_a_page_runs(page: Path, cli: Callable[..., Any]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    text = read(page)
    found = list(blocks(text))
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.MULTILINE))
    for block in found:
        assert block.language in {"python", "sh", *SHOWN_ONLY}, f"{page.name} has a block of {block.language!r}"
        if block.run and block.language == "python":
            exec(compile(block.code, str(page), "exec"), namespace)
        elif block.run:
            for words in commands(block.code):
                check_command(words, cli)


def commands(code: str) -> list[list[str]]:
    """The commands of a shell block as words, without comments."""
    return [words for line in code.replace("\\\n", " ").splitlines() if (words := shlex.split(line, comments=True))]


def check_command(words: list[str], cli: Callable[..., Any]) -> None:
    """Run one of ours, with few rounds; see of others that what they name is there."""
    match words:
        case ["fedaws", *args]:
            small = ["-s", "train.rounds=2", "-s", "train.evaluate_every=1"] if args[0] in ("train", "compare") else []
            result = cli(*args, *small)
            assert result.code == 0, (words, result.err)
        case ["make", *targets]:
            assert all(re.search(rf"^{target}:", read(ROOT / "Makefile"), re.MULTILINE) for target in targets)
        case ["pip", "install", *rest]:
            extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
            named = re.findall(r"(?:fedaws|\.)\[([\w,]+)\]", " ".join(rest))
            assert all(name in extras for names in named for name in names.split(","))
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), script
        case _:
            pytest.fail(f"nothing here can check {shlex.join(words)!r}; mark its block <!-- not run: why -->")


def test_the_first_example_shows_fedaws_ahead_of_the_baselines() -> None:
    (example,) = [block.code for block in blocks(read(ROOT / "README.md")) if block.language == "python"]
    namespace: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), namespace)
    data, config = namespace["data"], namespace["config"]
    ours = namespace["run"].metrics[-1]["precision@1"]
    for method in ("fixed", "positive-only"):
        assert ours > fedaws.train(data, config=config.with_(method=method)).metrics[-1]["precision@1"] + 0.02


def test_blocks_keep_their_line_numbers_and_say_when_they_are_not_run() -> None:
    text = "# Title\n```python\na = 1\n```\n<!-- not run: slow -->\n```sh\nls\n```\n- item\n  ```text\n  b\n  ```\n"
    assert list(blocks(text)) == [
        Block("python", "\n\na = 1\n", True),
        Block("sh", "\n" * 6 + "ls\n", False),
        Block("text", "\n" * 10 + "b\n", False),
    ]


def test_commands_are_words_without_comments() -> None:
    assert commands("a 'b c'  # why\n\nd \\\n  e\n# all of it\n") == [["a", "b c"], ["d", "e"]]


def test_few_blocks_are_not_run() -> None:
    assert sum(len(re.findall("<!-- not run: ", read(page))) for page in PAGES) <= 8


# --- links ----------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def links(text: str) -> list[str]:
    """Where the links and images of a page lead, those to the web left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [target for target in found if not re.match(r"(https?|mailto):", target)]


def anchors(text: str) -> set[str]:
    """The names of the headings, as GitHub and our site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", dict.fromkeys(ALL_PAGES), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(read(page)):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name}: {target}"
        assert place.is_relative_to(ROOT), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(read(place)), f"{page.name}: {target}"


def test_links_and_anchors_are_found() -> None:
    text = "# One `two` λ\n[a](b.md#c) ![d](e.png) [f](https://g.h) `[i](j)`\n```sh\n[k](l)\n```\n"
    assert links(text) == ["b.md#c", "e.png"]
    assert anchors(text) == {"one-two-λ"}


# --- figures --------------------------------------------------------------------------------------------------------

METHODS = ("positive-only", "fixed", "fedaws", "softmax")


def results(name: str) -> dict[str, Any]:
    return json.loads(read(ROOT / f"docs/results/{name}.json"))


def figure(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def measured_figure(ours: dict[str, Any] | None) -> str:
    """Fewer than three runs are told one by one; a stale figure says so."""
    if ours is None:
        return "–"
    found = ours["precision@1"]
    several = len(found["runs"]) >= 3
    text = figure(found["mean"], found["sd"]) if several else ", ".join(figure(run, None) for run in found["runs"])
    return f"{text} (stale)" if ours.get("stale") else text


def table_row(label: str, classes: int, figures: dict[str, str], paper: str) -> str:
    """A row of the results table, but for its last column."""
    own = [f"**{figures[m]}**" if m == "fedaws" else figures[m] for m in METHODS]
    cells = [label, f"{classes:,}", *own, paper]
    return f"| {' | '.join(cells)} | "


def rows_of_the_data() -> list[str]:
    demo = results("digits")["methods"]
    digits = {m: figure(*(100 * demo[m]["precision@1"][part] for part in ("mean", "std"))) for m in METHODS}
    rows = [table_row("digits, MLP", 10, digits, "–")]
    for table, row, label, classes in (
        ("table1", "cifar10-resnet8", "CIFAR-10, ResNet-8", 10),
        ("table1", "cifar10-resnet32", "CIFAR-10, ResNet-32, 14 epochs", 10),
        ("table1", "cifar100-resnet32", "CIFAR-100, ResNet-32, 16 epochs", 100),
        ("table3", "delicious", "Delicious, one label an example", 983),
        ("table3", "yso-finna-en", "Library titles (yso-finna-en), one label an example", 17913),
    ):
        cells = results(table)["rows"][row]["methods"]
        ours = {m: measured_figure(cells[m]["ours"]) for m in METHODS}
        papers = [cells[m]["paper"] for m in ("fedaws", "softmax")]
        paper = " / ".join(f"{cell['precision@1']:.1f}" for cell in papers) if all(papers) else "–"
        rows.append(table_row(label, classes, ours, paper))
    return rows


@pytest.mark.parametrize("page", ["README.md", "docs/results/index.md"])
def test_the_results_table_has_the_figures_of_the_data(page: str) -> None:
    assert all(row in read(ROOT / page) for row in rows_of_the_data())


def test_the_tables_for_choosing_are_those_of_the_sweeps() -> None:
    rows = [line for line in read(ROOT / "docs/choosing.md").splitlines() if line.startswith("| precision@1 (%) |")]
    assert len(rows) >= 5
    measured = read(ROOT / "docs/results/choosing.md").splitlines()
    assert [row for row in rows if row not in measured] == []


def test_the_table_of_stolen_private_rows_is_the_measured_one() -> None:
    measured = [line for line in read(ROOT / "docs/results/private-row-theft.md").splitlines() if line.startswith("|")]
    found = results("private-row-theft")
    assert len(measured) == 4 + len(found["lines"]) + len(found["noisy"])
    assert [line for line in measured if line not in read(ROOT / "docs/private-rows.md").splitlines()] == []


def test_every_interval_among_the_limits_stands_among_the_results() -> None:
    pages = ("audit", "private-row-theft", "unlearning")
    measured = {each for page in pages for each in INTERVAL.findall(read(ROOT / f"docs/results/{page}.md"))}
    found = INTERVAL.findall(read(ROOT / "docs/limits.md"))
    assert len(found) > 50
    assert [each for each in found if each not in measured] == []


def test_the_readme_compares_with_the_figures_of_the_data() -> None:
    rows = results("competitors")["entries"].values()
    found = {(row["model"], row["labels"]): row["precision@1"] for row in rows if row["data"] == "delicious"}
    tree, ours = found["probabilistic label tree (napkinxc)", "one"], found["`fedaws`", "one"]
    best = max(value for (_, labels), value in found.items() if labels == "all")
    assert f"({best:.1f} on Delicious)" in read(ROOT / "README.md")
    assert f"reach {tree:.1f} against {ours:.1f}" in read(ROOT / "README.md")
    titles = {(row["model"], row["labels"]): row["precision@1"] for row in rows if row["data"] == "yso-finna-en"}
    best = max(value for (model, labels), value in titles.items() if labels == "one" and "`" not in model)
    assert f"subjects {best:.1f} against {titles['`fedaws`', 'one']:.1f}" in read(ROOT / "README.md")


def test_the_readme_says_of_training_w_what_the_data_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    family = importlib.import_module("code_family")
    sets, page = results("code-family")["sets"], read(ROOT / "README.md")
    few, some, *more = (family.gain(sets["delicious"], dim, after=False) for dim in (16, 32, 128, 256, 512, 1024))
    assert f"{few:.1f} points ahead of fixed ones with 16 dimensions, {some:.1f} with 32" in page
    assert max(more) < 0  # "not ahead from 128 on"
    less, most = (family.gain(sets["omniglot"], dim, after=False) for dim in (256, 64))
    assert f"{most:.1f} ahead with 64 and {less:.1f} with 256" in page
    assert max(abs(family.gain(sets["digits"], dim, after=False)) for dim in family.DIMS) < 1  # "nowhere"
    assert max(family.gain(sets["delicious"], dim, after=True) for dim in family.DIMS) < 0  # "only on omniglot"
    assert min(family.gain(sets["omniglot"], dim, after=True) for dim in (64, 256)) > 0


# --- the paper beside the code --------------------------------------------------------------------------------------

BESIDE = read(ROOT / "docs/paper-beside-code.md")


@pytest.mark.parametrize(("name", "path"), re.findall(r"\[`(\w+\.\w+)`\]\(\.\./src/([\w/]+)\.py\)", BESIDE))
def test_a_function_beside_the_paper_is_there(name: str, path: str) -> None:
    home, attribute = name.split(".")
    assert Path(path).name == home
    assert hasattr(importlib.import_module(path.replace("/", ".").removesuffix(".__init__")), attribute)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(\.\./tests/([\w/]+\.py)\)", BESIDE))))
def test_a_test_beside_the_paper_is_there(path: str) -> None:
    sentences = re.findall(rf"\[([\w ]+)\]\(\.\./tests/{re.escape(path)}\)", BESIDE)
    tree = ast.parse(read(ROOT / "tests" / path))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {f"test_{sentence.replace(' ', '_')}" for sentence in sentences} <= tests


def test_all_of_the_paper_has_its_place_beside_the_code() -> None:
    numbers = {int(n) for cell in re.findall(r"^\| ([^|]*)\|", BESIDE, re.MULTILINE) for n in numbers_of(cell)}
    assert numbers == set(range(1, 23))  # the paper's equations
    section = BESIDE[BESIDE.index("## Algorithm 1") : BESIDE.index("## Spreadout")]
    lines = {int(n) for cell in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for n in cell.split(", ")}
    assert lines == set(range(1, 17))
    for statement in (
        "Prop. 1",
        "Prop. 2",
        "Lemma 1",
        "Theorem 1",
        "Claim 1",
        "Remark 1",
        "Table 1",
        "Table 2",
        "Table 3",
        "Table 4",
    ):
        assert f"{statement}" in BESIDE


def numbers_of(cell: str) -> list[str]:
    """The equations that a cell names; (13)–(15) are three."""
    ends = re.findall(r"\((\d+)\)–\((\d+)\)", cell)
    return re.findall(r"\((\d+)\)", cell) + [str(n) for a, b in ends for n in range(int(a), int(b) + 1)]


# --- the site -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "expected"),
    [("", "a `b.py` c"), ("https://g.h/us/", "a [`b.py`](https://g.h/us/blob/main/src/b.py#L3) c")],
)
def test_a_link_out_of_the_documentation_leads_to_the_repository_if_there_is_one(home: str, expected: str) -> None:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page, config = SimpleNamespace(file=SimpleNamespace(src_uri="results/x.md")), SimpleNamespace(repo_url=home)
    kept = " [d](../theory.md#e) ![f](../images/f.png)"
    got = hooks.on_page_markdown(f"a [`b.py`](../../src/b.py#L3) c{kept}", page=page, config=config)
    assert got == expected + kept


def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    theory = read(tmp_path / "site" / "theory.html")
    assert "<math" in theory
    assert "$" not in re.sub(r"<code.*?</code>|<script.*?</script>", "", theory, flags=re.DOTALL)
    reference = read(tmp_path / "site" / "reference.html")
    names = set(fedaws.__all__) - {"config", "core", "data"}  # modules
    assert "fedaws.device.Device" in reference
    assert "this page is empty" not in reference
    assert "::: " not in read(ROOT / "docs/reference.md")  # what only the site understands
    assert {name for name in names if f">{name}</span>" not in reference} == set()
    fetched = [
        address
        for page in (tmp_path / "site").rglob("*.html")
        for address in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", read(page))
    ]
    assert fetched == []
