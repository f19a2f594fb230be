"""Every method has a colour, and no two methods of a page the same."""

import re
from importlib import resources
from itertools import permutations
from pathlib import Path

import pytest

from fedaws.core.methods import method_names
from fedaws.report.charts import dash
from fedaws.report.collect import collect
from fedaws.report.colours import PALETTE, colour_of
from fedaws.report.page import make_page
from report_pages import Page, page_of, rename_method, runs_of

INVENTED = ["fedmine", "uniformity", "my own+1"]


def looks(names: list[str]) -> set[tuple[int, str]]:
    """What the eye can tell apart: a colour and the dashes."""
    return {(colour_of(name, names) % len(PALETTE), dash(colour_of(name, names))) for name in names}


def test_known_methods_keep_their_colours_beside_any_others() -> None:
    numbers = {"fedaws": 0, "positive-only": 1, "fixed": 2, "softmax": 3, "contrastive": 4, "triplet": 5, "fedavg": 6}
    assert {name: colour_of(name, [*method_names(), *INVENTED]) for name in numbers} == numbers


def test_invented_methods_have_colours_of_their_own_whatever_their_order() -> None:
    for names in permutations([*INVENTED, "fedaws", "softmax"]):
        assert len({colour_of(name, names) % len(PALETTE) for name in names}) == 5
        assert [colour_of(name, names) for name in INVENTED] == [colour_of(name, sorted(names)) for name in INVENTED]


def test_a_method_that_is_alone_does_not_look_like_fedaws() -> None:
    assert all(colour_of(f"method-{number}", [f"method-{number}"]) != 0 for number in range(50))


def test_sixty_four_methods_all_look_different() -> None:
    assert len(looks([*method_names(), *(f"method-{number}" for number in range(57))])) == 64


def test_the_palette_is_that_of_the_page() -> None:
    style = (resources.files("fedaws.report") / "style.css").read_text(encoding="utf-8")
    assert tuple(re.findall(r"--c\d: (#\w{6})", style)[:8]) == PALETTE


def test_a_report_of_three_invented_methods_shows_each_with_its_name_and_colour(tmp_path: Path) -> None:
    runs_of(tmp_path, fedaws=[0.9], softmax=[0.8], fixed=[0.7], triplet=[0.6])
    for method, name in zip(["softmax", "fixed", "triplet"], INVENTED, strict=True):
        rename_method(tmp_path / f"{method}-0", name)
    text = make_page(collect([tmp_path]))
    summary = text[text.index('<table class="summary">') :]
    swatches = re.findall(r'<th scope="row"><svg.*?<line class="(c\d)"', summary)
    assert len(set(swatches)) == len(swatches) == 4
    page = Page(text)
    assert "fedmine a method of your own" in page.text
    assert "fedaws is right about 90.0 % of the test examples: 10.0 points above fedmine" in page.text
    assert "my own+1" in page.text


@pytest.mark.parametrize("name", ["", "  ", "x" * 5000, "a\nb", "<b>bold</b>"])
def test_a_run_with_a_method_that_no_settings_can_name_is_left_out_with_a_notice(tmp_path: Path, name: str) -> None:
    runs_of(tmp_path, fedaws=[0.9], softmax=[0.8])
    rename_method(tmp_path / "softmax-0", name)
    page = page_of(tmp_path)
    assert "fedaws is right about 90.0 %" in page.text
    assert "config.toml: method: got" in page.text
