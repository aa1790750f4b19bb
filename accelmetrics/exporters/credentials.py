"""Who may read: passwords kept as scrypt hashes, and a bearer token, both in files that are read again when they change."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accelmetrics.exporters.tls import stamp

log = logging.getLogger("accelmetrics")
_COST, _BLOCK, _LANES = 2**14, 8, 1
"""16 MiB and about 40 ms for each password that is tried."""
_MOST_MEMORY = 64 * 2**20
_LENGTH = 32
_REMEMBERED = 64


def password_line(user: str, password: str) -> str:
    """A line for a password file: the user, a colon and the scrypt hash of the password under a salt of its own.

    Raises:
        ValueError: The user's name is empty or holds a colon or a line break.
    """
    if not user or set(user) & set(":\r\n"):
        raise ValueError(f"{user!r} cannot be a user's name: it must not be empty nor hold a colon or a line break")
    salt = secrets.token_bytes(16)
    numbers = f"{_COST}${_BLOCK}${_LANES}"
    return f"{user}:scrypt${numbers}${_text(salt)}${_text(Hash(_COST, _BLOCK, _LANES, salt, b'').of(password))}"


class Hash(NamedTuple):
    """A password as it is kept: how it was hashed, and what came of it."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes

    def of(self, password: str) -> bytes:
        """What comes of another password in the same way."""
        return hashlib.scrypt(
            password.encode(), salt=self.salt, n=self.cost, r=self.block, p=self.lanes, maxmem=_MOST_MEMORY, dklen=_LENGTH
        )

    def fits(self, password: str) -> bool:
        """Whether it is that password, in a time that does not tell how nearly."""
        return hmac.compare_digest(self.of(password), self.digest)

    @classmethod
    def read(cls, text: str) -> Hash:
        """From ``scrypt$16384$8$1$salt$digest``.

        Raises:
            ValueError: The text is no such hash, or one that would take more than 64 MiB to compute.
        """
        kind, cost, block, lanes, salt, digest = text.split("$")
        found = cls(int(cost), int(block), int(lanes), _bytes(salt), _bytes(digest))
        if kind != "scrypt" or len(found.digest) != _LENGTH or not found.affordable:
            raise ValueError("not a scrypt hash that can be used")
        return found

    @property
    def affordable(self) -> bool:
        """Whether OpenSSL takes the numbers, and computing the hash stays within half of the memory that is allowed."""
        power_of_two = self.cost > 1 and self.cost & (self.cost - 1) == 0
        return power_of_two and min(self.block, self.lanes) > 0 and 128 * self.cost * self.block * self.lanes <= _MOST_MEMORY // 2


_NOBODY = Hash(_COST, _BLOCK, _LANES, bytes(16), bytes(_LENGTH))
"""Tried for users who do not exist, so that time does not tell who does."""


class Credentials:
    """Compares what a client says with what lies in the files. A file that cannot be read lets nobody in.

    Args:
        auth_file: Lines of ``user:scrypt$…``, as :func:`password_line` makes them; others are passed over, which is told.
        bearer_token_file: A token.
    """

    def __init__(self, auth_file: str | None = None, bearer_token_file: str | None = None) -> None:
        self._auth_file = Path(auth_file) if auth_file else None
        self._token_file = Path(bearer_token_file) if bearer_token_file else None
        self._stamp: object = None
        self._users: dict[str, Hash] = {}
        self._token = b""
        # Passwords that were found right, by a keyed digest: nothing that a client sends can stand for another entry.
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, None] = {}
        self._told = ""

    @property
    def schemes(self) -> tuple[str, ...]:
        """How a client may say who it is, as in ``WWW-Authenticate``."""
        basic = ('Basic realm="accelmetrics", charset="UTF-8"',) if self._auth_file else ()
        return (*basic, 'Bearer realm="accelmetrics"') if self._token_file else basic

    def read(self) -> None:
        """Read the files, if they changed since.

        Raises:
            OSError: A file cannot be read.
        """
        paths = tuple(path for path in (self._auth_file, self._token_file) if path)
        found = stamp(paths)
        if found == self._stamp:
            return
        # Until both are read nobody comes in, and the next request tries again.
        self._users, self._token, self._stamp = {}, b"", None
        users = dict(_users(self._auth_file)) if self._auth_file else {}
        token = self._token_file.read_bytes().strip() if self._token_file else b""
        self._users, self._token, self._stamp = users, token, found

    def known(self, authorization: str) -> bool | None:
        """Whether a client may come in, as far as that takes no time; None where a password has to be tried."""
        self._refresh()
        scheme, _, said = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return bool(self._token) and hmac.compare_digest(_mark(said.strip().encode()), _mark(self._token))
        user, password = _basic(said) if scheme.lower() == "basic" else ("", "")
        if not user or not self._auth_file:
            return False
        return True if self._mark(user, password, self._users.get(user, _NOBODY)) in self._verified else None

    def tried(self, authorization: str) -> bool:
        """Whether the password is right. Takes about 40 ms of processor time, whoever the user is."""
        user, password = _basic(authorization.strip().partition(" ")[2])
        expected = self._users.get(user)
        if not (expected or _NOBODY).fits(password) or expected is None:
            return False
        self._verified[self._mark(user, password, expected)] = None
        if len(self._verified) > _REMEMBERED:
            self._verified.pop(next(iter(self._verified)))
        return True

    def _refresh(self) -> None:
        said = ""
        try:
            self.read()
        except OSError as error:
            said = f"nobody can log in, the password or token file cannot be read: {error}"
        if said and said != self._told:
            log.warning(said)
        self._told = said

    def _mark(self, user: str, password: str, expected: Hash) -> bytes:
        """Covers the stored hash too, so that a changed password is not remembered; lengths keep the parts apart."""
        digest = hmac.new(self._key, digestmod="sha256")
        for part in (user.encode(), password.encode(), expected.salt, expected.digest):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def _users(path: Path) -> Iterator[tuple[str, Hash]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:  # as any file that cannot be read; its bytes are not told
        raise OSError(f"{path} is not a password file: it is not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, kept = line.strip().partition(":")
        try:
            yield user, Hash.read(kept)
        except ValueError:  # what the line holds is not told: it may be a password
            log.warning("%s, line %d: not user:scrypt$…, passed over; password_line() makes such lines", path, number)


def _basic(said: str) -> tuple[str, str]:
    """User and password, empty where the text is no such pair."""
    try:
        user, _, password = base64.b64decode(said.strip(), validate=True).decode().partition(":")
    except ValueError:  # not ASCII, not base64 or not UTF-8
        return "", ""
    return user, password


def _mark(data: bytes) -> bytes:
    """Of one length, so that comparing does not tell the token's."""
    return hashlib.sha256(data).digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
