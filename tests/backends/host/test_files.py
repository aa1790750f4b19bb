"""Descriptors that stay open."""

import errno
import os

import pytest

from accelmetrics.backends.kit.system import Files, KeptFile, read_once, reason_of
from tests.backends.host.tree import HostTree


def test_content_that_changes_is_read_anew(tree: HostTree) -> None:
    tree.write("/proc/x", "1")
    file = KeptFile("/proc/x")
    assert file.read() == b"1"
    tree.write("/proc/x", "22")
    assert file.read() == b"22"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
@pytest.mark.parametrize("pieces", [True, False])
def test_every_size_is_read_whole_at_once_and_again(tree: HostTree, size: int, pieces: bool) -> None:
    tree.write("/proc/x", "a" * size)
    file = KeptFile("/proc/x", pieces)
    assert len(file.read()) == len(file.read()) == len(read_once("/proc/x")) == size


def test_a_file_handed_out_a_page_at_a_time_is_read_to_its_end(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("/proc/x", "b" * 1000)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 300), offset))
    assert len(KeptFile("/proc/x", pieces=True).read()) == 1000


def test_a_file_that_comes_later_is_found(tree: HostTree) -> None:
    file = KeptFile("/proc/later")
    with pytest.raises(FileNotFoundError):
        file.read()
    tree.write("/proc/later", "here")
    assert file.read() == b"here"


def test_a_descriptor_that_fails_is_opened_anew(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("/proc/x", "1")
    file = KeptFile("/proc/x")
    file.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(ProcessLookupError(errno.ESRCH, "gone")))
        with pytest.raises(ProcessLookupError):
            file.read()
    tree.remove("/proc/x")
    tree.write("/proc/x", "another")
    assert file.read() == b"another"


def test_one_path_is_one_file_while_somebody_holds_it() -> None:
    files = Files()
    first = files.keep("/proc/stat")
    assert files.keep("/proc/stat") is first
    assert files.keep("/proc/meminfo") is not first


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "no"), "no_permission"),
        (FileNotFoundError(errno.ENOENT, "no"), "not_supported"),
        (OSError(errno.ENODEV, "no"), "not_supported"),
        (OSError(errno.EIO, "Input/output error"), "driver_error"),
        (OSError(errno.EMFILE, "Too many open files"), "driver_error"),
        (ValueError("not a number: b'x'"), "parse_error"),
    ],
)
def test_errors_become_reasons_that_name_the_file(error: OSError | ValueError, reason: str) -> None:
    why = reason_of(error, "/proc/x")
    assert why.reason == reason
    assert "/proc/x" in why.detail
