"""What the site needs beyond Markdown: formulas that every browser draws by itself, and no link into nothing."""

import html
import posixpath
import re
from importlib.util import find_spec
from typing import Any

from latex2mathml.converter import convert

import fedaws

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<code>|<a)")
_NAMES = re.compile("<!-- the public names -->.*<!-- until here -->", re.DOTALL)
_DEEPER = ("device.Device", "config.load", "config.presets")  # shown with the module they are in


def on_page_content(content: str, **_: Any) -> str:
    """TeX becomes MathML: no script, and nothing to fetch. Names in docstrings lose the role before them."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    return _FORMULA.sub(formula, _ROLE.sub("", content))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A link to a file beside the documentation leads to the repository, or is its text where none is configured.

    The reference has all public names that are no modules, in place of what the repository's page says of them.
    """
    names = [f"::: fedaws.{name}" for name in fedaws.__all__ if find_spec(f"fedaws.{name}") is None]
    names += [f"::: fedaws.{name}\n    options:\n      show_root_full_path: true" for name in _DEEPER]
    markdown = _NAMES.sub("\n\n".join(names), markdown)
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, found[2]))
        if not place.startswith("../"):
            return found[0]
        home = config.repo_url
        return f"[{found[1]}]({home.rstrip('/')}/blob/main/{place[3:]}{found[3] or ''})" if home else found[1]

    return _LINK.sub(link, markdown)
