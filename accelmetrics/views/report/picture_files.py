"""The pictures of a report as files: SVG of our own writing, and PNG made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from accelmetrics.exporters.files import replace_file
from accelmetrics.schemas.errors import AccelMetricsError, require
from accelmetrics.views.report import svg
from accelmetrics.views.report.markup import to_svg
from accelmetrics.views.report.plots import Pictures

EXTRA = "png"
ZOOM = 2
"""Pixels of a PNG for one of the picture: sharp on screens of twice the density."""
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20" font-family="{}"><text x="2" y="15">{}</text></svg>'
NO_FONT = "no font was found to write PNG pictures with: install one (Debian: apt-get install fonts-dejavu-core), or take SVG"

Render = Callable[[str], bytes]


class PictureFile(NamedTuple):
    """A picture that was written: its title, and its file."""

    title: str
    path: Path


def renderer() -> Render:
    """Return what makes PNG of SVG.

    resvg, since it is one wheel of 1.4 MB for each platform and stands on nothing else: cairosvg needs the system's cairo library, which
    macOS and containers lack; matplotlib brings numpy, 50 MB together, and draws no SVG. It has no font of its own.

    Raises:
        MissingDependencyError: It is not installed.
        AccelMetricsError: This machine has no font.
    """
    module = require("resvg_py", EXTRA, "resvg-py")

    def render(picture: str) -> bytes:
        return bytes(module.svg_to_bytes(svg_string=picture, zoom=ZOOM))

    if render(PROBE.format(svg.FONTS, "Wy")) == render(PROBE.format(svg.FONTS, "")):
        raise AccelMetricsError(NO_FONT)
    return render


def write_pictures(found: Pictures, folder: Path, render: Render | None = None) -> list[PictureFile]:
    """Write all pictures of a report, each whole or not at all; files of the same name are replaced.

    Args:
        found: What is to be drawn.
        folder: Where; it is made where it is not there.
        render: Makes PNG of SVG; none are written when left out.

    Returns:
        What was written, to be shown in this order: PNG where there are any.

    Raises:
        AccelMetricsError: Something cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, title, picture in svg.files(found):
            content = to_svg(picture)
            path = folder / f"{name}.svg"
            replace_file(path, content)
            if render is not None:
                path = folder / f"{name}.png"
                replace_file(path, render(content.decode()))
            written.append(PictureFile(title, path))
    except OSError as error:
        raise AccelMetricsError(f"cannot write pictures to {folder}: {error.strerror or error}") from error
    return written


def markdown_pictures(written: list[PictureFile]) -> str:
    """Return a section of Markdown with the pictures, by paths from where this process was started."""
    parts = ["", "## Pictures", ""]
    for one in written:
        words = "".join(f"\\{letter}" if letter in "\\[]()!<>*_`" else letter for letter in one.title)
        parts.append(f"![{words}](<{one.path.as_posix().replace('<', '%3C').replace('>', '%3E')}>)")
    return "\n".join(parts) + "\n"
