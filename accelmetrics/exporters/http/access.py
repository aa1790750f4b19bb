"""Access control of the HTTP server: certificates, passwords and tokens, in files that are read again when they change."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.log import log
from accelmetrics.schemas.permissions import file_state, warn_if_loose

COST, BLOCK, LANES = 2**14, 8, 1
"""Parameters of scrypt: a check takes 16 MiB and about 40 ms."""
DIGEST_BYTES = 32


# Certificates


class Tls:
    """The certificates of a server, as PEM files, and the TLS context with their current contents.

    Args:
        cert: The server's certificate and its chain.
        key: Its private key, without a password; None if ``cert`` contains it.
        client_ca: Authorities of client certificates; None accepts clients without a certificate.
        client_names: Comma-separated names. Only client certificates with one of them as a subject alternative name (DNS, IP address,
            URI or e-mail) are accepted; None accepts all.

    Raises:
        InvalidOptionError: An option is given without another one that it needs.
    """

    def __init__(
        self, cert: str | Path, key: str | Path | None = None, client_ca: str | None = None, client_names: str | None = None
    ) -> None:
        self.client_ca = client_ca
        self._files = tuple(Path(file) if file else None for file in (cert, key, client_ca))
        self._names = frozenset(filter(None, (name.strip() for name in (client_names or "").split(","))))
        if client_names is not None and not (client_ca and self._names):
            raise InvalidOptionError("tls_client_names needs tls_client_ca and at least one name")

    def read(self) -> None:
        """Read the files.

        Raises:
            OSError: A file cannot be read or has invalid contents.
        """
        self._states = list(map(file_state, self._files))
        cert, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])  # tornado speaks no HTTP/2
        with _naming("the certificate", cert, key):
            # With an empty password, an encrypted key is an error. Without it, OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(cast(Path, cert), key, password="")
        warn_if_loose(cast(Path, key or cert), "the private key")
        if client_ca:
            with _naming("the authorities", client_ca):
                context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self._context = context

    def current(self) -> ssl.SSLContext:
        """Return the current context. If changed files cannot be read, the last valid context stays in use, with a warning."""
        if list(map(file_state, self._files)) != self._states:
            try:
                self.read()
            except OSError as error:
                log.warning("the TLS certificate %s changed but cannot be read; the previous one stays in use: %s", self._files[0], error)
        return self._context

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client is accepted, by the names of the certificate that the handshake has verified."""
        return not self._names or any(name in self._names for _, name in (certificate or {}).get("subjectAltName", ()))


@contextlib.contextmanager
def _naming(what: str, *paths: Path | None) -> Iterator[None]:
    """Add the files' names to an error of the block: OpenSSL reports none."""
    try:
        yield
    except OSError as error:
        why = f"OpenSSL: {error.reason or error.strerror}" if isinstance(error, ssl.SSLError) else error.strerror or error
        raise OSError(f"{what} in {' and '.join(map(str, filter(None, paths)))} cannot be used: {why}") from error


# Passwords and tokens


PasswordHash = tuple[bytes, bytes]
"""A stored password: salt and digest of ``scrypt$16384$8$1$SALT$DIGEST``."""
UNKNOWN_USER: PasswordHash = (bytes(16), bytes(DIGEST_BYTES))
"""Hash that is checked for users that do not exist, so that the time of an answer does not reveal which users exist."""


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=COST, r=BLOCK, p=LANES, maxmem=64 * 2**20, dklen=DIGEST_BYTES)


def password_line(user: str, password: str) -> str:
    """Return a line for a password file: the user, a colon and the scrypt hash of the password with a random salt.

    Raises:
        ValueError: The user's name is empty or contains a colon or a line break.
    """
    if not user or set(user) & set(":\r\n"):
        raise ValueError(f"{user!r} is no valid user name: it must not be empty or contain a colon or a line break")
    salt = secrets.token_bytes(16)
    stored = (base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt)))
    return f"{user}:scrypt${COST}${BLOCK}${LANES}${'$'.join(stored)}"


class HttpCredentials:
    """Checks a client's credentials against the files. While a file cannot be read, no client is accepted.

    Args:
        auth_file: Lines of ``user:scrypt$…`` from :func:`password_line`; invalid lines are skipped and logged.
        bearer_token_file: A file with a token.
    """

    def __init__(self, auth_file: str | None = None, bearer_token_file: str | None = None) -> None:
        self._auth_file = Path(auth_file) if auth_file else None
        self._token_file = Path(bearer_token_file) if bearer_token_file else None
        self._states: object = None
        self._users: dict[str, PasswordHash] = {}
        self._token = b""
        # The latest correct passwords, so that they need not be hashed again, as keyed digests: a client cannot construct credentials that
        # match another entry.
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, None] = {}
        self._last_problem = ""

    @property
    def schemes(self) -> str:
        """The accepted authentication schemes, for the header ``WWW-Authenticate``."""
        basic = ['Basic realm="accelmetrics", charset="UTF-8"'] if self._auth_file else []
        return ", ".join([*basic, 'Bearer realm="accelmetrics"'] if self._token_file else basic)

    def read(self) -> None:
        """Read the files if they have changed.

        Raises:
            OSError: A file cannot be read.
        """
        states = file_state(self._auth_file), file_state(self._token_file)
        if states == self._states:
            return
        # Until both are read no client is accepted, and the next request tries again.
        self._users, self._token, self._states = {}, b"", None
        users = dict(_users(self._auth_file)) if self._auth_file else {}
        token = _contents("the token file", self._token_file).strip() if self._token_file else b""
        for file, secrets_found in ((self._auth_file, users), (self._token_file, token)):
            if file:
                warn_if_loose(file, "passwords" if file is self._auth_file else "a token")
            if file and not secrets_found:
                log.warning("%s contains no valid entry: all clients are refused", file)
        self._users, self._token, self._states = users, token, states

    def known(self, authorization: str) -> bool | None:
        """Return whether a client is accepted, if this is known without hashing; None if a password has to be hashed."""
        problem = ""
        try:
            self.read()
        except OSError as error:
            problem = f"no log-in is possible: {error}"
        if problem and problem != self._last_problem:
            log.warning(problem)
        self._last_problem = problem
        scheme, _, credentials = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":  # digests have equal lengths, so that the time of the comparison does not reveal the token's length
            digests = (hashlib.sha256(token).digest() for token in (credentials.strip().encode(), self._token))
            return bool(self._token) and hmac.compare_digest(*digests)
        user, password = _basic(authorization)
        if not user or not self._auth_file:
            return False
        return True if self._mark(user, password, self._users.get(user, UNKNOWN_USER)) in self._verified else None

    def tried(self, authorization: str) -> bool:
        """Return whether the password is correct. This takes about 40 ms of processor time, also for unknown users."""
        user, password = _basic(authorization)
        stored = self._users.get(user, UNKNOWN_USER)
        salt, digest = stored
        if not hmac.compare_digest(_scrypt(password, salt), digest) or stored is UNKNOWN_USER:
            return False
        self._verified[self._mark(user, password, stored)] = None
        if len(self._verified) > 64:
            self._verified.pop(next(iter(self._verified)))
        return True

    def _mark(self, user: str, password: str, expected: PasswordHash) -> bytes:
        """Return the digest under which a correct password is remembered."""
        # It covers the stored hash, so that an old password is not accepted after a change.
        return hmac.digest(self._key, repr((user, password, expected)).encode(), "sha256")


def _contents(what: str, path: Path) -> bytes:
    """Read a file. An error contains its name and purpose."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise OSError(f"{what} {path} cannot be read: {error.strerror}") from error


def _users(path: Path) -> Iterator[tuple[str, PasswordHash]]:
    try:
        text = _contents("the password file", path).decode()
    except UnicodeDecodeError as error:  # the message omits the bytes: they may be a password
        raise OSError(f"{path} is not a password file: it is not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, stored = line.strip().partition(":")
        try:
            kind, cost, block, lanes, *parts = stored.split("$")
            salt, digest = (base64.b64decode(part, validate=True) for part in parts)
            if (kind, cost, block, lanes) != ("scrypt", str(COST), str(BLOCK), str(LANES)):
                raise ValueError(kind)
            yield user, (salt, digest)
        except ValueError:  # the message omits the line: it may be a password
            log.warning("%s, line %d: not user:scrypt$…, skipped; `accelmetrics serve --make-password USER` makes such lines", path, number)


def _basic(authorization: str) -> tuple[str, str]:
    """Return user and password of a basic authentication header; empty for any other header."""
    scheme, _, credentials = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except ValueError:  # not ASCII, not base64 or not UTF-8
        return "", ""
    return user, password
