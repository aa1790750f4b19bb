"""The workflows of .github: by the published schemas, and by a linter of what they may do and of where their actions come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.frameworks.deploy.tools import ROOT, run

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.dependabot", [FOLDER / "dependabot.yml"])],
    ids=["workflows", "dependabot"],
)
def test_they_fit_the_published_schemas(schema: str, files: list[Path]) -> None:
    assert files
    done = run("check-jsonschema", "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout


def test_the_linter_finds_nothing() -> None:
    """Rights beyond need, actions that are not pinned by hash, injected expressions, credentials left behind."""
    done = run("zizmor", "--offline", "--no-progress", FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


def test_their_make_targets_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = [job for workflow in WORKFLOWS for job in yaml.safe_load(workflow.read_text())["jobs"].values()]
    called = {step["run"].split()[1] for job in jobs for step in job["steps"] if step.get("run", "").startswith("make ")}
    assert {"docs", "lint", "packages", "test"} <= called <= targets
