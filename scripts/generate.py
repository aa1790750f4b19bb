"""Writes what is derived from tables of metrics: ``python -m scripts.generate [--check]``.

- ``accelmetrics/backends/nvidia/conversion.py``: the conversion of what NVIDIA's GPUs are read for at every reading;
- ``accelmetrics/schemas/coverage.py``: which metrics the built-in backends give, and where each is read;
- ``accelmetrics/schemas/metrics_models/``: the typed views;
- ``accelmetrics/schemas/identity_models.py``: devices, sources and processes as documents have them;
- ``docs/schema.json``: the JSON Schema of the ``dump --json`` document;
- ``docs/lines-schema.json``: the JSON Schema of the lines that the exporter ``jsonl`` writes;
- ``docs/topology-schema.json``: the JSON Schema of what ``topology --json`` prints;
- ``docs/metrics.md``: the reference for readers;
- ``docs/configuration.md``: the options of commands, variables, the configuration file and ``Monitor``;
- ``docs/findings.md``: its table of rules;
- ``docs/exporters.md``, ``docs/selection.md``, ``docs/why.md``: their numbers of keys, series and calls;
- ``deploy/grafana/dashboards/*.json``: the Grafana dashboards;
- ``deploy/helm/accelmetrics/files``: copies of the dashboards and of Prometheus' rules, since a chart reads only its own folder;
- ``tests/promises.txt``: what users may rely on.

With ``--check`` nothing is written; the exit status is 1 when a file is not current.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONVERSION = Path("accelmetrics/backends/nvidia/conversion.py")
SOURCES = Path("accelmetrics/schemas/coverage.py")
MODELS = Path("accelmetrics/schemas/metrics_models")
IDENTITY = Path("accelmetrics/schemas/identity_models.py")
SCHEMA = Path("docs/schema.json")
LINES = Path("docs/lines-schema.json")
TOPOLOGY = Path("docs/topology-schema.json")
REFERENCE = Path("docs/metrics.md")
CONFIGURATION = Path("docs/configuration.md")
FINDINGS = Path("docs/findings.md")
DASHBOARDS = Path("deploy/grafana/dashboards")
RULES = Path("deploy/prometheus")
CHART = Path("deploy/helm/accelmetrics/files")
PROMISES = Path("tests/promises.txt")


def conversion() -> str:
    """The text of the conversion of NVIDIA's fast metrics."""
    from scripts.generate_conversion import render

    return render()


def sources() -> str:
    """The text of what the backends give."""
    from scripts.generate_sources import render

    return render()


def models(module: str) -> str:
    """The text of a module of the typed views."""
    from scripts.generate_models import render

    return render()[module]


def identity() -> str:
    """The text of the models of devices, sources and processes."""
    from scripts.generate_identity import render

    return render()


def schema() -> str:
    """The text of the document's JSON Schema."""
    from accelmetrics.schemas.document import json_schema

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def lines() -> str:
    """The text of the JSON Schema of lines."""
    from accelmetrics.schemas.document import lines_schema

    return json.dumps(lines_schema(), indent=2, ensure_ascii=False) + "\n"


def topology() -> str:
    """The text of the JSON Schema of how devices are connected."""
    from accelmetrics.schemas.document import topology_schema

    return json.dumps(topology_schema(), indent=2, ensure_ascii=False) + "\n"


def reference() -> str:
    """The text of the reference."""
    from scripts.generate_reference import render

    return render()


def configuration() -> str:
    """The text of the page about options."""
    from scripts.generate_configuration import render

    return render()


def findings() -> str:
    """The page about findings, with the table of rules as they are."""
    from scripts.generate_findings import render

    return render()


def numbers(name: str) -> str:
    """A page with its numbers of keys, series and calls."""
    from scripts.generate_numbers import render

    return render(name)


def dashboard(name: str) -> str:
    """The text of a Grafana dashboard."""
    from scripts.generate_dashboards import DASHBOARDS

    return DASHBOARDS[name]()


def copy(path: Path) -> str:
    """The text of another file of the repository."""
    return (ROOT / path).read_text("utf-8")


def promises() -> str:
    """The text of what users may rely on."""
    from scripts.generate_promises import render

    return render()


# In this order: what comes later is rendered with what comes before it importable and current.
OUTPUTS: dict[Path, Callable[[], str]] = {
    CONVERSION: conversion,
    SOURCES: sources,
    **{MODELS / f"{module}.py": partial(models, module) for module in ("__init__", "common", "gpu", "tpu", "trn", "ipu", "host")},
    IDENTITY: identity,
    SCHEMA: schema,
    LINES: lines,
    TOPOLOGY: topology,
    REFERENCE: reference,
    CONFIGURATION: configuration,
    FINDINGS: findings,
    **{Path("docs", name): partial(numbers, name) for name in ("exporters.md", "selection.md", "why.md")},
    **{DASHBOARDS / f"{name}.json": partial(dashboard, name) for name in ("fleet", "node", "training")},
    **{CHART / "dashboards" / f"{name}.json": partial(copy, DASHBOARDS / f"{name}.json") for name in ("fleet", "node", "training")},
    **{CHART / "prometheus" / f"{name}.yml": partial(copy, RULES / f"{name}.yml") for name in ("alerts", "recording")},
    PROMISES: promises,
}


def stale(root: Path = ROOT) -> list[Path]:
    """The files below ``root`` that are missing or not what would be written."""
    return [path for path, render in OUTPUTS.items() if not (root / path).is_file() or (root / path).read_text("utf-8") != render()]


def write(root: Path = ROOT) -> None:
    """Write all files below ``root``."""
    for path, render in OUTPUTS.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render(), "utf-8")
        importlib.invalidate_caches()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.generate", description="Write the files derived from tables of metrics.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is not current")
    if not parser.parse_args(arguments).check:
        write()
        return 0
    found = stale()
    for path in found:
        print(f"{path} is not current: run 'make generate'", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
