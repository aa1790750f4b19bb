"""Certificates for a test: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)
_SIGNS = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(_USES, False))


class Authority:
    """Signs certificates into a folder.

    Args:
        directory: Where the files go.
        name: The authority's own name.

    Attributes:
        file: Its certificate, PEM.
    """

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None), _SIGNS)
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, file: str | None = None) -> tuple[Path, Path]:
        """A certificate and its key for a DNS name, valid for 127.0.0.1 too; the files, written over in one step each."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._sign(_named(name), key, names)
        stem = file or name
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return (
            self._write(f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{stem}.key", key.private_bytes(*form)),
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(0o600)
        return new.replace(path)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY)
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (*extensions, x509.SubjectKeyIdentifier.from_public_key(key.public_key()), by):
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage))
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
