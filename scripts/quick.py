"""Checks the generated files, and runs the tests of the core and of what changed: ``python -m scripts.quick [PYTEST OPTIONS]``.

What changed is what differs from where this branch left ``main``, and what is not committed. A changed file's tests are the test file of
its name and those that import it. The nearest come first; beyond ``MOST`` test files the rest is left to ``make test``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts import generate

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "tests/test_house.py",
    "tests/test_public_api.py",
    "tests/test_stability.py",
    "tests/schemas/test_catalogue.py",
    "tests/schemas/test_selection.py",
    "tests/schemas/test_snapshot.py",
    "tests/sampling/test_sampler.py",
    "tests/monitor/test_ticker.py",
    "tests/backends/nvidia/test_values.py",
)
MOST = 15
"""Test files beside those of the core."""
LEFT_OUT = "not slow and not servers and not peers and not browser and not gpu"


def changed() -> list[str]:
    """List the files that differ from the merge base with ``main``, uncommitted and new ones among them."""
    for main in ("main", "origin/main"):
        found = _git("merge-base", "HEAD", main)
        if found:
            break
    listed = _git("diff", "--name-only", *(found or ["HEAD"])) + _git("ls-files", "--others", "--exclude-standard")
    return [name for name in dict.fromkeys(listed) if (ROOT / name).is_file()]


def chosen(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files of changed files: themselves, those of their names, those that import them."""
    texts = {
        str(path.relative_to(root)): path.read_text("utf-8")
        for path in sorted(root.glob("tests/**/test_*.py"))
        if path.relative_to(root).parts[1] not in ("frameworks", "hardware")
    }
    own, named, importing = [], [], []
    for name in names:
        path = Path(name)
        if name in texts:
            own.append(name)
        elif path.suffix == ".py" and path.parts[0] != "tests":
            stem = path.parent.name if path.stem == "__init__" else path.stem
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            folder = Path("tests", *path.parts[1:-1])
            named += [test for test in texts if Path(test) == folder / f"test_{stem}.py"]
            room, _, last = module.rpartition(".")
            imports = re.compile(rf"from {module} import|import {module}\n|from {room} import [^\n]*\b{last}\b")
            importing += [test for test, text in texts.items() if imports.search(text)]
    return list(dict.fromkeys([*own, *named, *importing]))


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def main(arguments: list[str]) -> int:
    """Run them; the exit status is 1 where a generated file is not current, else pytest's."""
    current = generate.main(["--check"])
    tests = [test for test in chosen(changed()) if test not in CORE]
    if len(tests) > MOST:
        print(f"left to `make test`: {', '.join(tests[MOST:])}", file=sys.stderr)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", LEFT_OUT, *CORE, *tests[:MOST], *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode or current


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
