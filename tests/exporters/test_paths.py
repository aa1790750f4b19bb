"""What another user has put where we write: in a folder that all may write to it is refused, and nothing of ours there is read by all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.exporters import files
from accelmetrics.exporters.files import compress, followed
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import InvalidOptionError
from tests.cli.shell import call
from tests.records import record

ANOTHER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="platform: only root can give a file to another user")

Write = Callable[[Path], str]


def exported(name: str) -> Write:
    """By an exporter: what it was refused with."""

    def write(path: Path) -> str:
        try:
            exporter = create(f"{name}:{path}")
            exporter.open()
            exporter.export(record(1))
        except (InvalidOptionError, OSError) as error:
            return str(error)
        exporter.flush()
        return ""

    return write


def dumped(*options: str) -> Write:
    return lambda path: call("dump", "--backends", "host", *options, "--output", str(path)).stderr


WRITERS = {
    "jsonl": exported("jsonl"),
    "csv": exported("csv"),
    "influx": exported("influx"),
    "dump": dumped("--settle", "0"),
    "stream": dumped("--count", "2", "--interval", "0.01"),
}
BY_ALL = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as ``/tmp``."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@AS_ROOT
@BY_ALL
def test_another_users_link_is_not_followed(write: Write, shared: Path, tmp_path: Path) -> None:
    """Nor is one that leads to a folder; what it leads to stays as it is."""
    target, link, way = tmp_path / "precious", shared / "run.lp", shared / "way"
    target.write_text("")
    link.symlink_to(target)
    way.symlink_to(tmp_path)
    for path in (link, way):
        os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
    assert "belongs to another user" in write(link)
    assert "belongs to another user" in write(way / "new.lp")
    assert target.read_text() == ""
    assert not (tmp_path / "new.lp").exists()


@AS_ROOT
@BY_ALL
def test_another_users_file_is_not_written_to(write: Write, shared: Path) -> None:
    """It would be read by that user."""
    path = shared / "run.lp"
    path.write_text("")
    path.chmod(0o666)
    os.chown(path, ANOTHER, ANOTHER)
    assert "belongs to another user" in write(path)
    assert path.read_text() == ""


@BY_ALL
def test_ones_own_links_are_followed(write: Write, shared: Path, tmp_path: Path) -> None:
    """Also there, and several of them."""
    target, second, link = tmp_path / "target.lp", shared / "second", shared / "link.lp"
    second.symlink_to("../target.lp")
    link.symlink_to(second)
    assert write(link) == ""
    assert target.read_text()


@BY_ALL
def test_what_is_new_in_a_shared_folder_is_its_owners_alone(write: Write, shared: Path, tmp_path: Path) -> None:
    """Elsewhere the user's mask decides."""
    before = os.umask(0o022)
    try:
        assert write(shared / "run.lp") == write(tmp_path / "run.lp") == ""
    finally:
        os.umask(before)
    assert stat.S_IMODE((shared / "run.lp").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run.lp").stat().st_mode) == 0o644


FOLDERS = pytest.mark.parametrize("target", ["tensorboard:{}", "training-files:{}", "wandb:?mode=offline&directory={}"])


@AS_ROOT
@FOLDERS
@pytest.mark.parametrize("kind", ["link", "folder"])
def test_another_users_folder_is_not_written_to(target: str, kind: str, shared: Path, tmp_path: Path) -> None:
    """Neither one that was there before, nor one that was put there when it had been looked for."""
    precious, place = tmp_path / "precious", shared / "run"
    precious.mkdir()
    exporter = create(target.format(place))
    if kind == "link":
        place.symlink_to(precious)
    else:
        place.mkdir()
    os.chown(place, ANOTHER, ANOTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to another user"):
        exporter.open()
    with pytest.raises(InvalidOptionError, match="belongs to another user"):
        create(target.format(place))
    assert [*precious.iterdir(), *place.iterdir()] == []


@pytest.mark.parametrize("name", ["tensorboard", "training-files"])
def test_a_new_folder_in_a_shared_one_is_its_owners_alone(name: str, shared: Path, tmp_path: Path) -> None:
    """Elsewhere the user's mask decides."""
    for place, mode in ((shared / "new" / "run", 0o700), (tmp_path / "new" / "run", 0o755)):
        before = os.umask(0o022)
        try:
            exporter = create(f"{name}:{place}")
            exporter.open()
        finally:
            os.umask(before)
        exporter.close()
        assert stat.S_IMODE(place.parent.stat().st_mode) == mode


def test_a_link_put_there_after_it_was_looked_up_is_not_followed(tmp_path: Path) -> None:
    """By the system itself."""
    exporter = create(f"jsonl:{tmp_path / 'run.jsonl'}")
    (tmp_path / "run.jsonl").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("")
    with pytest.raises(OSError, match="symbolic links"):
        exporter.open()
    assert (tmp_path / "precious").read_text() == ""


def test_what_is_compressed_does_not_go_through_a_link(tmp_path: Path) -> None:
    """Under the name that it has until it is whole."""
    closed, precious = tmp_path / "run.20260101T000000.000000Z.jsonl", tmp_path / "precious"
    closed.write_text("{}\n")
    precious.write_text("kept")
    (tmp_path / f".{closed.name}.gz.tmp").symlink_to(precious)
    compress(closed)
    assert precious.read_text() == "kept"
    assert (tmp_path / f"{closed.name}.gz").is_file()


@AS_ROOT
def test_a_text_file_stands_where_its_folder_is(shared: Path, tmp_path: Path) -> None:
    """A link in the place of the file itself is replaced and not followed; another user's to the folder is refused."""
    precious, way = tmp_path / "precious", shared / "way"
    precious.write_text("kept")
    (tmp_path / "x.prom").symlink_to(precious)
    assert exported("textfile")(tmp_path / "x.prom") == ""
    assert precious.read_text() == "kept"
    way.symlink_to(tmp_path)
    os.chown(way, ANOTHER, ANOTHER, follow_symlinks=False)
    assert "belongs to another user" in exported("textfile")(way / "y.prom")
    assert "belongs to another user" in exported("training-files")(way)


def test_links_are_followed_as_the_system_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative, absolute, upwards, through folders; a circle ends."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "up").symlink_to("b/../../a")
    (tmp_path / "abs").symlink_to(tmp_path / "a" / "up")
    assert followed(tmp_path / "abs" / "b" / "new") == (tmp_path / "abs" / "b" / "new").resolve() == tmp_path / "a" / "b" / "new"
    monkeypatch.chdir(tmp_path)
    assert followed(Path("abs/b/new")) == tmp_path / "a" / "b" / "new"
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        followed(tmp_path / "circle")
    with pytest.raises(InvalidOptionError, match="symbolic links"):
        create(f"jsonl:{tmp_path / 'circle'}")
    monkeypatch.setattr(files, "LINKS", 1)
    with pytest.raises(OSError, match="symbolic links"):
        followed(tmp_path / "abs")
