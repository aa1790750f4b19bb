"""The image: its file, the image that it makes, and Compose beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.frameworks.deploy.tools import DEPLOY, ROOT, run, tool
from tests.support.missing import MissingHere
from tests.support.waiting import HANG

FILE = DEPLOY / "container" / "Containerfile"
COMPOSE = DEPLOY / "compose"
MOST_ADDED = 160 * 2**20
"""Bytes that the image adds to its base: pydantic, grpc, tornado and the exposition's library."""


def test_the_file_is_clean() -> None:
    """By its linter."""
    done = run("hadolint", FILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_file_takes_from_elsewhere_is_pinned() -> None:
    """The base by its digest, and in the lock each package that pyproject.toml names for the image's extras, with hashes."""
    text = FILE.read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    lock = FILE.with_name("requirements.txt").read_text()
    assert "".join(f" --extra {extra}" for extra in extras.split(",")) in lock
    locked = {Requirement(found).name: found for found in re.findall(r"^(\S+==\S+)", lock, re.MULTILINE)}
    for wanted in map(Requirement, requires("accelmetrics") or ()):
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras.split(",")):
            version = locked[canonicalize_name(wanted.name)].partition("==")[2]
            assert wanted.specifier.contains(version), wanted


def test_compose_takes_its_file() -> None:
    """By the Compose specification's own schema; what it mounts is there."""
    done = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    for volume in (volume for service in services.values() for volume in service.get("volumes", ())):
        source = volume.partition(":")[0]
        assert not source.startswith(".") or (COMPOSE / source).exists(), source
    build = services["accelmetrics"]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).samefile(FILE)


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """As it lies in the container: what Compose mounts, in one folder."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    mounted = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"] if volume.startswith("."))
    for source, target in mounted.items():
        assert target.startswith("/etc/prometheus/")
        (tmp_path / Path(target).name).write_text((COMPOSE / source).read_text())
    done = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for path in sorted((DEPLOY / "prometheus").iterdir()):
        done = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / path.name)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_finds_its_alertmanager() -> None:
    """Under the name that Compose gives it, with the configuration of the example."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    (told,) = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["alerting"]["alertmanagers"]
    assert all(name in services for found in told["dns_sd_configs"] for name in found["names"])
    (configuration, *_) = services["alertmanager"]["volumes"]
    source, target, _ = configuration.split(":")
    assert f"--config.file={target}" in services["alertmanager"]["command"]
    assert (COMPOSE / source).samefile(DEPLOY / "alertmanager" / "alertmanager.yml")


def test_grafana_finds_its_dashboards_and_its_data() -> None:
    """Where Compose mounts them; from the Prometheus that Compose starts, as often as that scrapes; under the choice of the dashboards."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    mounted = dict(volume.split(":")[1::-1] for volume in services["grafana"]["volumes"])
    provisioning = COMPOSE / mounted["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "accelmetrics.yml").read_text())["providers"]
    folder = COMPOSE / mounted[provider["options"]["path"]]
    assert {path.name for path in folder.iterdir()} == {"fleet.json", "node.json", "training.json"}
    (source,) = yaml.safe_load((provisioning / "datasources" / "accelmetrics.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    scraping = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))


class Store:
    """Images of a test's own, which no other program sees."""

    def __init__(self, folder: Path) -> None:
        self._where = [tool("buildah"), "--root", f"{folder}/images", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*self._where, *map(str, arguments)], capture_output=True, text=True, timeout=4 * HANG, stdin=subprocess.DEVNULL
        )
        if done.returncode and "permission" in done.stderr.lower() and "newuidmap" in done.stderr:
            raise MissingHere("platform: containers cannot be built by this user")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a base image of Debian with Python, made here since no registry is asked."""
    folder = tmp_path_factory.mktemp("store")
    rootfs = folder / "rootfs.tar"
    made = run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv", "bookworm", rootfs)
    assert made.returncode == 0, made.stderr
    store = Store(folder)
    base = store("from", "scratch")
    store("add", "--quiet", base, rootfs, "/")
    store("commit", "--quiet", base, "base")
    rootfs.unlink()
    yield store
    store("rm", "--all")
    store("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def image(store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image that the file makes, from packages that lie ready."""
    wheels = tmp_path_factory.mktemp("wheels")
    for locked in ("requirements.txt", "build-requirements.txt"):
        where: list[str | Path] = ["--quiet", "--require-hashes", "--dest", wheels, "-r", FILE.with_name(locked)]
        subprocess.run([sys.executable, "-m", "pip", "download", *where], check=True, timeout=4 * HANG)
    arguments = ("BASE=localhost/base", "PIP_ARGS=--no-index --find-links=/wheels")
    options = [f"--build-arg={argument}" for argument in arguments]
    store("bud", "--isolation=chroot", *options, f"--volume={wheels}:/wheels", "-f", FILE, "-t", "accelmetrics", ROOT)
    return "localhost/accelmetrics"


@pytest.mark.timeout(8 * HANG)
def test_the_image_runs_without_rights(store: Store, image: str) -> None:
    """As a number that is no user, with what the command line says it does by default."""
    said = json.loads(store("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert said["User"] == "65532:65532"
    assert (said["Entrypoint"], said["Cmd"]) == (["accelmetrics"], ["serve", "--listen", "0.0.0.0:22235"])
    container = store("from", image)
    document = json.loads(store("run", "--isolation=chroot", container, "--", "accelmetrics", "dump", "--json", "--settle", "0"))
    assert [one["status"] for one in document["backends"] if one["name"] == "host"] == ["ok"]
    assert store("run", "--isolation=chroot", container, "--", "id", "-u") == "65532"
    extras = "import google.protobuf, grpc, opentelemetry.proto, prometheus_client, tornado"
    store("run", "--isolation=chroot", container, "--", "/opt/accelmetrics/bin/python", "-c", extras)


def test_the_image_is_small(store: Store, image: str) -> None:
    """Neither pip nor sources are in it."""
    container = store("from", image)
    size = store("run", "--isolation=chroot", container, "--", "du", "-sb", "/opt/accelmetrics").split()[0]
    assert int(size) < MOST_ADDED
    absent = "test ! -e /source && test ! -e /opt/accelmetrics/bin/pip"
    store("run", "--isolation=chroot", container, "--", "sh", "-c", absent)
