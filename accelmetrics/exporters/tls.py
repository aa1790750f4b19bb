"""TLS for a listener: certificates that are read again when their files change, and which clients may come in."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.schemas.errors import InvalidOptionError

log = logging.getLogger("accelmetrics")
_OLDEST = ssl.TLSVersion.TLSv1_2
_SAN = "subjectAltName"


class TlsFiles(NamedTuple):
    """Where the certificates lie.

    Attributes:
        cert: The server's certificate and its chain, PEM.
        key: Its private key, PEM without a password; empty when it stands in ``cert``.
        client_ca: Authorities whose clients are let in, PEM; empty lets in clients without a certificate.
        client_names: Of those clients, only the ones whose certificate carries one of these names (DNS, IP address, URI or
            e-mail among its subject alternative names); empty allows all.
    """

    cert: str
    key: str = ""
    client_ca: str = ""
    client_names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, cert: str | None, key: str | None, client_ca: str | None, client_names: str | None) -> TlsFiles | None:
        """From options, None where TLS is not asked for; names are separated by commas.

        Raises:
            InvalidOptionError: An option is given without the one that it needs.
        """
        names = frozenset(filter(None, (name.strip() for name in (client_names or "").split(","))))
        if not cert and (key or client_ca):
            raise InvalidOptionError("tls_key and tls_client_ca need tls_cert, the server's certificate")
        if client_names is not None and not (client_ca and names):
            raise InvalidOptionError("tls_client_names needs tls_client_ca and at least one name")
        return cls(cert, key or "", client_ca or "", names) if cert else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that are named."""
        return tuple(Path(name) for name in (self.cert, self.key, self.client_ca) if name)


class TlsContexts:
    """Gives each new connection the context of the certificates that lie there now."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamp = stamp(files.paths)
        self._context = _load(files)

    def current(self) -> ssl.SSLContext:
        """The context; files that cannot be read leave the last good one in force, which is told once."""
        found = stamp(self.files.paths)
        if found != self._stamp:
            self._stamp = found
            try:
                self._context = _load(self.files)
            except OSError as error:
                log.warning("the TLS certificate %s changed and cannot be read, the old one stays: %s", self.files.cert, error)
        return self._context

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client may come in, by the certificate that the handshake has verified."""
        if not self.files.client_names:
            return True
        return any(name in self.files.client_names for _, name in (certificate or {}).get(_SAN, ()))


def stamp(paths: tuple[Path, ...]) -> tuple[tuple[int, ...], ...]:
    """What changes when one of the files does; a missing file is one state of it."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load(files: TlsFiles) -> ssl.SSLContext:
    """A context from the files.

    Raises:
        OSError: One cannot be read, or does not hold what it should.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _OLDEST
    context.set_alpn_protocols(["http/1.1"])
    with _naming("the certificate", files.cert, files.key):
        # An empty password makes a key that has one an error; without it, OpenSSL would ask on the terminal.
        context.load_cert_chain(files.cert, files.key or None, password="")
    if files.client_ca:
        with _naming("the authorities", files.client_ca):
            context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def _naming(what: str, *paths: str) -> Iterator[None]:
    """Put the files' names into an error: OpenSSL gives none."""
    try:
        yield
    except OSError as error:
        why = f"OpenSSL says {error.reason or error.strerror}" if isinstance(error, ssl.SSLError) else error.strerror or error
        raise OSError(f"{what} in {' and '.join(filter(None, paths))} cannot be used: {why}") from error
