"""Who may read: passwords, tokens and certificates, compared so that nothing is given away, and read again when they change."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.exporters.http.access import HttpCredentials, password_line
from accelmetrics.exporters.prometheus import PrometheusExporter
from tests.exporters.certificates import Authority
from tests.records import record
from tests.support.waiting import HANG

Open = Callable[..., PrometheusExporter]


@pytest.fixture(autouse=True)
def _private() -> Iterator[None]:
    """Files that are written here are their owner's alone, so that nothing is said about that."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def serve() -> Iterator[Open]:
    """Opens endpoints with these options; closed with the test."""
    with contextlib.ExitStack() as stack:

        def make(**options: str) -> PrometheusExporter:
            exporter = PrometheusExporter("127.0.0.1:0", **options)  # type: ignore[arg-type]  # texts alone
            exporter.open()
            stack.callback(exporter.close)
            exporter.export(record())
            return exporter

        yield make


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def ask(exporter: PrometheusExporter, authorization: str | None = None, path: str = "/metrics") -> http.client.HTTPResponse:
    """The answer to a request with this authorization."""
    connection = http.client.HTTPConnection(exporter.address.host, exporter.address.port, timeout=HANG)
    connection.request("GET", path, headers={"Authorization": authorization} if authorization is not None else {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def rewrite(path: Path, text: str) -> None:
    """Replace a file as an administrator does, with a time of its own."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.utime(new, ns=(time.time_ns(), time.time_ns()))
    new.replace(path)


# Passwords


def test_only_the_right_password_opens(serve: Open, tmp_path: Path) -> None:
    """Every path asks for it, whatever is wrong is answered alike, and the way to say it is named."""
    file = tmp_path / "passwords"
    file.write_text(f"# who\n\n{password_line('ada', 'pass:wörd')}\n{password_line('bob', 'other')}\n")
    exporter = serve(auth_file=str(file))
    assert ask(exporter, basic("ada", "pass:wörd")).status == 200
    assert ask(exporter, basic("bob", "other")).status == 200
    wrong = [None, "", "Basic", "Basic !", "Basic " + base64.b64encode(b"\xff").decode(), "Bearer x", basic("ada", "other")]
    wrong += [basic("ada", ""), basic("", ""), basic("eve", "pass:wörd"), basic("ada", "pass")]
    for said in wrong:
        answer = ask(exporter, said)
        assert answer.status == 401, said
        assert answer.headers["WWW-Authenticate"].startswith('Basic realm="accelmetrics"')
    assert ask(exporter, path="/api/snapshot").status == 401
    assert ask(exporter, path="/nothing").status == 401


def test_probes_need_no_password(serve: Open, tmp_path: Path) -> None:
    """Whether it lives and is ready is no secret; whatever else there is stays closed."""
    (tmp_path / "token").write_text("t0ken")
    exporter = serve(bearer_token_file=str(tmp_path / "token"))
    assert [ask(exporter, path=path).status for path in ("/-/healthy", "/-/ready", "/")] == [200, 200, 401]


def test_a_right_password_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thereafter it is known without the cost of the hash; a wrong one is never known, whatever right one came before."""
    file = tmp_path / "passwords"
    file.write_text(password_line("ada", "secret"))
    credentials = HttpCredentials(str(file))
    right = basic("ada", "secret")
    assert credentials.known(right) is None
    assert credentials.tried(right)
    assert credentials.known(right) is True
    for poison in (basic("ada", "secre"), basic("ad", "asecret"), basic("ada", "secrets"), basic("adas", "ecret")):
        assert credentials.known(poison) is None
        assert not credentials.tried(poison)
        assert credentials.known(poison) is None


def test_a_changed_password_holds_at_once(serve: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old one is refused though it was known; without the file nothing is let in, and one line says why."""
    file = tmp_path / "passwords"
    file.write_text(password_line("ada", "old"))
    exporter = serve(auth_file=str(file))
    assert ask(exporter, basic("ada", "old")).status == 200
    rewrite(file, password_line("ada", "new"))
    assert ask(exporter, basic("ada", "old")).status == 401
    assert ask(exporter, basic("ada", "new")).status == 200
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        file.unlink()
        assert [ask(exporter, basic("ada", "new")).status for _ in range(3)] == [401] * 3
    assert len(caplog.messages) == 1
    rewrite(file, password_line("ada", "back"))
    assert ask(exporter, basic("ada", "back")).status == 200


def test_an_unknown_user_is_hashed_like_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same numbers, so that time does not tell who has a password."""
    file = tmp_path / "passwords"
    file.write_text(password_line("ada", "secret"))
    credentials = HttpCredentials(str(file))
    credentials.read()
    hashed: list[dict[str, object]] = []
    real = hashlib.scrypt

    def scrypt(password: bytes, **numbers: Any) -> bytes:
        hashed.append({name: value for name, value in numbers.items() if name != "salt"})
        return real(password, **numbers)

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    assert not credentials.tried(basic("ada", "wrong"))
    assert not credentials.tried(basic("eve", "wrong"))
    assert hashed[0] == hashed[1]


def test_lines_that_are_no_hashes_let_nothing_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A password in the clear, or a hash that would take gigabytes, is passed over; what it says is not told."""
    file = tmp_path / "passwords"
    good = password_line("ada", "secret")
    file.write_text("eve:clear-text\nbob:" + good.partition(":")[2].replace("$16384$", "$1073741824$") + "\nnobody\n" + good)
    credentials = HttpCredentials(str(file))
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        credentials.read()
    assert len(caplog.messages) == 3
    assert "line 1" in caplog.text and "accelmetrics serve --make-password USER" in caplog.text
    assert "clear-text" not in caplog.text
    assert not credentials.tried(basic("eve", "clear-text"))
    assert not credentials.tried(basic("bob", "secret"))
    assert credentials.tried(basic("ada", "secret"))


def test_files_in_which_nothing_opens_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when they are read, or the first sign would be a scrape that fails."""
    passwords, token = tmp_path / "passwords", tmp_path / "token"
    passwords.write_text("# none yet\n")
    token.write_text("\n")
    credentials = HttpCredentials(str(passwords), str(token))
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        credentials.read()
        credentials.read()
    assert caplog.messages == [f"{file} contains no valid entry: all clients are refused" for file in (passwords, token)]


def test_a_name_that_cannot_stand_in_the_file_is_refused() -> None:
    """A colon or a line break would make another user of it."""
    for user in ("", "a:b", "a\nb"):
        with pytest.raises(ValueError, match="is no valid user name"):
            password_line(user, "secret")


# Tokens


def test_only_the_token_opens(serve: Open, tmp_path: Path) -> None:
    """It is read again when it changes, and an empty file is no token."""
    file = tmp_path / "token"
    file.write_text("t0ken\n")
    exporter = serve(bearer_token_file=str(file))
    assert ask(exporter, "Bearer t0ken").status == 200
    assert ask(exporter, "bearer  t0ken ").status == 200
    for said in (None, "Bearer", "Bearer t0ke", "t0ken", basic("t0ken", ""), "Bearer t0kén"):
        assert ask(exporter, said).status == 401, said
    assert ask(exporter).headers["WWW-Authenticate"] == 'Bearer realm="accelmetrics"'
    rewrite(file, "another")
    assert ask(exporter, "Bearer t0ken").status == 401
    assert ask(exporter, "Bearer another").status == 200
    rewrite(file, "\n")
    assert [ask(exporter, said).status for said in ("Bearer another", "Bearer ", "Bearer")] == [401] * 3


def test_a_password_or_a_token_opens(serve: Open, tmp_path: Path) -> None:
    """With both files either will do."""
    passwords, token = tmp_path / "passwords", tmp_path / "token"
    passwords.write_text(password_line("ada", "secret"))
    token.write_text("t0ken")
    exporter = serve(auth_file=str(passwords), bearer_token_file=str(token))
    assert [ask(exporter, said).status for said in (basic("ada", "secret"), "Bearer t0ken", None)] == [200, 200, 401]


def test_a_file_that_is_not_there_keeps_it_closed(tmp_path: Path) -> None:
    """The endpoint does not open without what protects it."""
    missing = str(tmp_path / "missing")
    for options in ({"auth_file": missing}, {"bearer_token_file": missing}, {"tls_cert": missing}):
        with pytest.raises(OSError, match=r"missing|No such file"):
            PrometheusExporter("127.0.0.1:0", **options).open()  # type: ignore[arg-type]  # texts alone


def test_a_password_file_that_is_no_text_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    """It is an error that names the file and nothing of what it holds, and it lets nothing in."""
    file = tmp_path / "binary"
    file.write_bytes(b"ada:\xff\xfesecret")
    with pytest.raises(OSError, match=r"binary is not a password file: it is not UTF-8 at byte 4") as caught:
        PrometheusExporter("127.0.0.1:0", auth_file=str(file)).open()
    assert "secret" not in str(caught.value)
    assert HttpCredentials(str(file)).known(basic("ada", "secret")) is None
    assert not HttpCredentials(str(file)).tried(basic("ada", "secret"))


# Certificates


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_cert": "nonsense"}, "the certificate in {0}/nonsense and {0}/key.pem cannot be used: OpenSSL: "),
        ({"tls_cert": "missing"}, "the certificate in {0}/missing and {0}/key.pem cannot be used: No such file"),
        (
            {"tls_cert": "accelmetrics.pem", "tls_key": "nonsense"},
            "the certificate in {0}/accelmetrics.pem and {0}/nonsense cannot be used: OpenSSL: ",
        ),
        ({"tls_client_ca": "nonsense"}, "the authorities in {0}/nonsense cannot be used: "),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(options: dict[str, str], words: str, tmp_path: Path) -> None:
    """OpenSSL's words do not say which file they are about."""
    certificate, key = Authority(tmp_path).issue("accelmetrics")
    (tmp_path / "nonsense").write_text("no PEM")
    certificate.replace(tmp_path / "accelmetrics.pem")
    key.replace(tmp_path / "key.pem")
    chosen = {"tls_cert": "accelmetrics.pem", "tls_key": "key.pem", **options}
    with pytest.raises(OSError, match=f"^{words.format(tmp_path)}"):
        PrometheusExporter("127.0.0.1:0", **{name: str(tmp_path / file) for name, file in chosen.items()}).open()  # type: ignore[arg-type]


def secure(
    exporter: PrometheusExporter, authority: Authority, pair: tuple[Path, Path] | None = None, **options: ssl.TLSVersion
) -> tuple[int, str]:
    """Status of a scrape by TLS, and the serial number of the server's certificate."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair:
        context.load_cert_chain(*pair)
    if "maximum" in options:
        context.maximum_version = options["maximum"]
    connection = http.client.HTTPSConnection(exporter.address.host, exporter.address.port, timeout=HANG, context=context)
    try:
        connection.request("GET", "/metrics")
        assert isinstance(connection.sock, ssl.SSLSocket)
        served = connection.sock.getpeercert() or {}
        return connection.getresponse().status, str(served["serialNumber"])
    finally:
        connection.close()


def test_only_clients_with_a_listed_certificate_come_in(serve: Open, tmp_path: Path) -> None:
    """The authority must have signed it and the name must be listed; TLS below 1.2 is refused."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "another authority")
    certificate, key = authority.issue("accelmetrics")
    exporter = serve(tls_cert=str(certificate), tls_key=str(key), tls_client_ca=str(authority.file), tls_client_names="scraper, spare")
    for name, status in (("scraper", 200), ("spare", 200), ("stranger", 403)):
        assert secure(exporter, authority, authority.issue(name))[0] == status
    assert secure(exporter, authority, authority.issue("scraper"), maximum=ssl.TLSVersion.TLSv1_2)[0] == 200
    for pair in (None, other.issue("scraper", "forged")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secure(exporter, authority, pair)
    assert secure(exporter, authority, authority.issue("scraper"))[0] == 200


def test_a_renewed_certificate_is_served_to_the_next_client(serve: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a restart; one that cannot be read leaves the old one in force, which is told once."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("accelmetrics")
    exporter = serve(tls_cert=str(certificate), tls_key=str(key))
    first = secure(exporter, authority)[1]
    authority.issue("accelmetrics")
    renewed = secure(exporter, authority)[1]
    assert renewed != first
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        rewrite(certificate, "half a certificate")
        assert [secure(exporter, authority)[1] for _ in range(2)] == [renewed] * 2
    assert len(caplog.messages) == 1
    authority.issue("accelmetrics")
    assert secure(exporter, authority)[1] not in (first, renewed)
