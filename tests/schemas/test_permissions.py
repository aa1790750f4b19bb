"""Files with secrets: what is said where others can read or change them, and to whom nothing is said."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from accelmetrics.schemas.permissions import warn_if_loose


@pytest.mark.parametrize(
    ("mode", "secret", "words"),
    [
        (0o600, True, ""),
        (0o440, True, ""),  # a Secret of Kubernetes, of the pod's own group
        (0o660, True, ""),
        (0o644, True, "other users can read passwords in {file} (mode 0644): chmod 640 {file}"),
        (0o666, True, "other users can change passwords in {file} (mode 0666): chmod 660 {file}"),
        (0o644, False, ""),
        (0o646, False, "other users can change passwords in {file} (mode 0646): chmod 644 {file}"),
    ],
)
def test_what_others_can_do_is_a_line(mode: int, secret: bool, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the file, its mode and the command that mends it."""
    file = tmp_path / "users"
    file.touch()
    file.chmod(mode)
    warn_if_loose(file, "passwords", secret)
    assert caplog.messages == ([words.format(file=file)] if words else [])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="platform: only root can give files to another group")
def test_the_group_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this process is not in is others; so is one of the system's that it is in, as other users may be, and not a pod's own."""
    users, nameless = max(one.gr_gid for one in grp.getgrall() if one.gr_gid < 1000), 47_110_815
    file = tmp_path / "users"
    file.touch()
    file.chmod(0o440)
    os.chown(file, 0, nameless)
    warn_if_loose(file, "passwords")
    monkeypatch.setattr(os, "getgroups", lambda: [users, nameless])
    warn_if_loose(file, "passwords")
    os.chown(file, 0, users)
    warn_if_loose(file, "passwords")
    assert caplog.messages == [f"other users can read passwords in {file} (mode 0440): chmod 400 {file}"] * 2


def test_what_is_no_file_is_told_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is missing, and a stream that a shell gave."""
    for file in (tmp_path / "none", tmp_path):
        warn_if_loose(file, "passwords")
    assert caplog.messages == []
