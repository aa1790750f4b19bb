"""Descriptors that stay open."""

import errno
import os
from pathlib import Path

import pytest

from accelmetrics.backends.kit.system import Files, KeptFile, read_once, reason_of


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_content_that_changes_is_read_anew(root: Path) -> None:
    write(root / "proc/x", "1")
    file = KeptFile("/proc/x")
    assert file.read() == b"1"
    write(root / "proc/x", "22")
    assert file.read() == b"22"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
@pytest.mark.parametrize("pieces", [True, False])
def test_every_size_is_read_whole_at_once_and_again(root: Path, size: int, pieces: bool) -> None:
    write(root / "proc/x", "a" * size)
    file = KeptFile("/proc/x", pieces)
    assert len(file.read()) == len(file.read()) == len(read_once("/proc/x")) == size


@pytest.mark.parametrize("lines", [1, 20, 25, 30, 40, 41, 100, 1000])
def test_a_file_handed_out_a_page_at_a_time_is_read_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    """The kernel puts whole lines into a page; a list that leaves room for more of them is whole, and read in one call."""
    text = "".join(f"{number:099d}\n" for number in range(lines))
    write(root / "proc/x", text)
    real, calls = os.pread, []

    def page(descriptor: int, size: int, offset: int) -> bytes:
        calls.append(offset)
        data = real(descriptor, min(size, 4096), offset)
        return data[: data.rfind(b"\n") + 1]

    monkeypatch.setattr(os, "pread", page)
    assert KeptFile("/proc/x", pieces=True).read() == text.encode()
    assert len(calls) == 1 or lines > 20


def test_a_file_that_comes_later_is_found(root: Path) -> None:
    file = KeptFile("/proc/later")
    with pytest.raises(FileNotFoundError):
        file.read()
    write(root / "proc/later", "here")
    assert file.read() == b"here"


def test_a_descriptor_that_fails_is_opened_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root / "proc/x", "1")
    file = KeptFile("/proc/x")
    file.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(ProcessLookupError(errno.ESRCH, "gone")))
        with pytest.raises(ProcessLookupError):
            file.read()
    (root / "proc/x").unlink()
    write(root / "proc/x", "another")
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
