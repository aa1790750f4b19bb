"""Configuration of the documentation site, which `make docs` builds."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import accelmetrics

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = dict(line.split(", ") for line in metadata("accelmetrics").get_all("Project-URL") or ())["Source"]

project = "accelmetrics"
author = "The accelmetrics authors"
version = release = accelmetrics.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]  # GitHub shows it for the folder; the site's index begins with its text
myst_heading_anchors = 4
# Logs and shortened documents are no valid JSON or shell text: they are shown without colours.
# Two classes have an attribute `type`, so that Sphinx cannot link the word in signatures.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]

html_theme = "furo"
html_title = f"accelmetrics {release}"
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes are described in the docstring of their class, once

LINK = re.compile(r"\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def adapt(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the text of `README.md` before the index, and point links that leave `docs/` at the repository."""
    text = content[0]
    if page == "index":
        text = (DOCS / "README.md").read_text(encoding="utf-8") + text
    folder = (DOCS / page).parent

    def link(found: re.Match[str]) -> str:
        target = (folder / found["path"]).resolve()
        anchor = found["anchor"] or ""
        if target == DOCS / "README.md":
            return f"](/index.md{anchor})"
        if not target.exists() or (target.is_relative_to(DOCS) and target.suffix != ".json"):
            return found[0]  # a page of the site, or a broken link, which fails the build
        kind = "tree" if target.is_dir() else "blob"
        return f"]({SOURCE}/{kind}/main/{target.relative_to(ROOT)}{anchor})"

    content[0] = LINK.sub(link, text)


def setup(app: Sphinx) -> None:
    """Connect what adapts the pages."""
    app.connect("source-read", adapt)
