"""What PyPI shows and what a wheel brings: the page, its links, the pages that --help names."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from accelmetrics.cli.main import COMMANDS
from tests.cli.shell import call

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built in this process."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    pytest.importorskip("hatch_fancy_pypi_readme")
    (built,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What PyPI reads of it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def links(metadata: Message) -> Iterator[str]:
    """Where the links of the rendered page lead."""
    markdown = pytest.importorskip("readme_renderer.markdown")
    page = markdown.render(str(metadata.get_payload()), variant="GFM")
    assert page is not None
    assert "<table>" in page
    yield from re.findall(r'href="([^"]*)"', page)


def test_pypi_accepts_the_wheel(wheel: Path) -> None:
    check = pytest.importorskip("twine.commands.check")
    assert check.check([str(wheel)], strict=True) is False, "twine found something wrong"


def test_the_links_of_the_page_lead_to_files_that_there_are(metadata: Message) -> None:
    """Below the repository's address, since PyPI has no files beside the page."""
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    below = f"{addresses['Source']}/blob/main/"
    found = [link for link in links(metadata) if not link.startswith("#")]
    assert len(found) > 10
    for link in found:
        assert link.startswith(below), link
        assert (ROOT / link.removeprefix(below).partition("#")[0]).exists(), link


def test_the_pictures_of_the_page_are_files_that_there_are(metadata: Message) -> None:
    """Below the address that gives out the file itself."""
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    below = f"{addresses['Source']}/raw/main/"
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", str(metadata.get_payload()))
    assert pictures
    for picture in pictures:
        assert picture.startswith(below), picture
        assert (ROOT / picture.removeprefix(below)).is_file(), picture


def test_the_projects_addresses_stand_below_its_source(metadata: Message) -> None:
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues", "Security"} <= addresses.keys()
    assert all(address.startswith(addresses["Source"]) for address in addresses.values())
    for name in ("Documentation", "Changelog", "Security"):
        assert (ROOT / addresses[name].partition("/blob/main/")[2]).is_file(), name


def test_pages_that_help_names_are_in_the_wheel(wheel: Path) -> None:
    """And help says where they lie."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    named = set()
    for command in COMMANDS:
        text = call(command, "--help").stdout
        pages = set(re.findall(r"docs/[\w-]+\.md", text))
        named |= pages
        assert not pages or str(ROOT / "docs") in text
    assert named
    assert {f"accelmetrics/{page}" for page in named} <= inside


def test_the_page_is_in_the_wheel(wheel: Path) -> None:
    """Every file that it loads, and uPlot with its licence, as its authors published them."""
    views = ROOT / "accelmetrics" / "views"
    files = [file for folder in (views / "page" / "static", views / "assets") for file in folder.iterdir() if file.is_file()]
    assert {"index.html", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"} <= {file.name for file in files}
    with zipfile.ZipFile(wheel) as archive:
        for file in files:
            assert archive.read(str(file.relative_to(ROOT))) == file.read_bytes()
        assert b"MIT License" in archive.read("accelmetrics/views/assets/uPlot.LICENSE")


def test_an_editable_install_brings_no_copy(tmp_path: Path) -> None:
    """Of pages, say: it leads to the checkout and holds nothing else."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    (built,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["editable"])
    with zipfile.ZipFile(built) as archive:
        (pth,) = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert Path(archive.read(pth).decode().strip()).resolve() == ROOT.resolve()
