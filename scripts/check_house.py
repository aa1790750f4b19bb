"""Checks the house rules that no linter knows: ``python scripts/check_house.py [ROOT]``.

Reads the sources and runs nothing of them. Prints a line per finding, ``file:line: what is wrong``; exit status 1 if there are any.

- no ``global`` statement in the package;
- at most one broad ``except`` in the package (bare, ``Exception``, ``BaseException``, or ``suppress`` of those);
- no ``shell=True`` and no ``os.system`` or ``os.popen`` anywhere;
- no note of unfinished work anywhere;
- no circle of imports between files of the package, counting imports for typing and leaving out those inside functions;
- no symbolic link: archives, and checkouts on Windows, hold the name of its target instead of the file;
- no ``time.sleep`` in the tests, outside ``tests/support`` and the simulators: a test waits for an event;
- no assertion in the tests that something took less than a given time: a test compares orders, counts, or two things of the same run.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = "accelmetrics"
MAX_BROAD = 1
BROAD = {("Exception",), ("BaseException",)}
SHELL_CALLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}
MAY_SLEEP = (("tests", "support"), ("tests", "simulators"), ("tests", "hardware"))
CLOCKS = {(clock,) for clock in ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")}
UNFINISHED = re.compile(r"\b(TODO|FIXME)\b")


class Finding(NamedTuple):
    """One broken rule and where."""

    path: Path
    line: int
    message: str


class Source(NamedTuple):
    """One file, read once."""

    path: Path
    text: str
    tree: ast.Module


def files(root: Path, pattern: str) -> list[Path]:
    """Every file of the checkout of that pattern, leaving out hidden folders and build outputs."""
    skipped = {"build", "dist", "__pycache__"}
    return sorted(
        path for path in root.rglob(pattern) if not any(part.startswith(".") or part in skipped for part in path.relative_to(root).parts)
    )


def global_statements(source: Source) -> Iterator[Finding]:
    """Each ``global`` statement."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield Finding(source.path, node.lineno, f"global {', '.join(node.names)}: keep state in an object")


def is_broad(caught: ast.expr | None) -> bool:
    """Whether an expression after ``except`` catches everything."""
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(is_broad(item) for item in caught.elts)
    return dotted(caught)[-1:] in BROAD


def broad_excepts(source: Source) -> Iterator[Finding]:
    """Each place that catches everything."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
            yield Finding(source.path, node.lineno, f"broad except: at most {MAX_BROAD} in the package")
        elif isinstance(node, ast.Call) and dotted(node.func)[-1:] == ("suppress",) and any(map(is_broad, node.args)):
            yield Finding(source.path, node.lineno, f"suppress of everything: at most {MAX_BROAD} broad except in the package")


def dotted(node: ast.expr) -> tuple[str, ...]:
    """The parts of a plain dotted name, ``()`` for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        parts = dotted(node.value)
        return (*parts, node.attr) if parts else ()
    return ()


def shells(source: Source) -> Iterator[Finding]:
    """Each call that goes through a shell."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        if dotted(node.func)[-2:] in SHELL_CALLS:
            yield Finding(source.path, node.lineno, f"{'.'.join(dotted(node.func))}: runs a shell, pass an argument list instead")
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
                yield Finding(source.path, keyword.value.lineno, "shell= is set: pass an argument list instead")


def sleeps(source: Source) -> Iterator[Finding]:
    """Each ``time.sleep``."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            sleeping = dotted(node.func) == ("time", "sleep")
        elif isinstance(node, ast.ImportFrom):
            sleeping = node.module == "time" and "sleep" in {name.name for name in node.names}
        else:
            continue
        if sleeping:
            yield Finding(source.path, node.lineno, "time.sleep: wait for an event (tests.support.waiting)")


def bounds_on_time(source: Source) -> Iterator[Finding]:
    """Each assertion that a measured time is less than something that was not measured, or that a time has not come yet."""
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for line in bounds_in(function):
                yield Finding(source.path, line, "a bound on wall-clock time: assert an order, a count, or compare with a control")


def bounds_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """The lines of such assertions in one function."""
    times = names_for(function, is_clock_call)
    spans = names_for(function, lambda value: is_sum(value, ast.Sub, times))
    ahead = names_for(function, lambda value: is_sum(value, ast.Add, times))

    def is_measured(node: ast.expr) -> bool:
        return any(is_named(part, spans) or is_sum(part, ast.Sub, times) for part in ast.walk(node))

    def is_bound(small: ast.expr, large: ast.expr) -> bool:
        if is_clock_call(small) or is_named(small, times):
            return is_named(large, ahead) or is_sum(large, ast.Add, times)
        return is_measured(small) and not is_measured(large)

    for statement in ast.walk(function):
        if isinstance(statement, ast.Assert) and any(is_bound(*sides) for sides in less_than(statement.test)):
            yield statement.lineno


def names_for(function: ast.AST, wanted: Callable[[ast.expr], bool]) -> set[str]:
    """The names that a function gives to certain expressions."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and wanted(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_clock_call(node: ast.AST) -> bool:
    """Whether an expression asks a clock for the time."""
    return isinstance(node, ast.Call) and dotted(node.func)[:-1] in {("time",), ()} and dotted(node.func)[-1:] in CLOCKS


def is_named(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is one of these names."""
    return isinstance(node, ast.Name) and node.id in names


def is_sum(node: ast.AST, operator: type[ast.operator], times: set[str]) -> bool:
    """Whether an expression adds something to a time, or subtracts it."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, operator):
        return False
    return any(is_clock_call(side) or is_named(side, times) for side in (node.left, node.right))


def less_than(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The two sides of each comparison by size, the smaller first."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                if isinstance(operator, ast.Lt | ast.LtE):
                    yield left, right
                elif isinstance(operator, ast.Gt | ast.GtE):
                    yield right, left


def unfinished(source: Source) -> Iterator[Finding]:
    """Each comment that says the work is unfinished."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        found = UNFINISHED.search(token.string) if token.type == tokenize.COMMENT else None
        if found:
            yield Finding(source.path, token.start[0], f"{found.group()}: finish it or leave it out")


def imported(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module, for typing too, without those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node)


def circles(sources: Iterable[Source]) -> Iterator[Finding]:
    """Find the imports that are part of a circle."""
    files = {".".join(source.path.with_suffix("").parts).removesuffix(".__init__"): source for source in sources}
    imports: dict[str, dict[str, int]] = {}
    for name, source in files.items():
        package = name if source.path.stem == "__init__" else name.rpartition(".")[0]
        found = imports[name] = {}
        for node in imported(source.tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join((*above, *filter(None, [node.module])))
                targets = [one if one in files else module for one in (f"{module}.{alias.name}" for alias in node.names)]
            found.update({target: node.lineno for target in targets if target in files and target != name})
    for name, found in imports.items():
        for target, line in found.items():
            if name in reached(imports, target):
                yield Finding(files[name].path, line, f"{target} imports this file, by itself or by others: a circle of imports")


def reached(imports: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or not."""
    seen, waiting = set(), [start]
    while waiting:
        for target in imports[waiting.pop()]:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


Rule = Callable[[Source], Iterator[Finding]]

EVERYWHERE: tuple[Rule, ...] = (shells, unfinished)
IN_PACKAGE: tuple[Rule, ...] = (global_statements, broad_excepts)
IN_TESTS: tuple[Rule, ...] = (sleeps, bounds_on_time)
AT_MOST: dict[Rule, int] = {broad_excepts: MAX_BROAD}
"""How many findings of a rule are none; 0 for the others."""


def rules_of(path: Path) -> tuple[Rule, ...]:
    """The rules for a file by its place in the checkout."""
    if path.parts[0] == PACKAGE:
        return (*EVERYWHERE, *IN_PACKAGE)
    if path.parts[0] == "tests" and path.parts[:2] not in MAY_SLEEP:
        return (*EVERYWHERE, *IN_TESTS)
    return EVERYWHERE


def check(root: Path) -> list[Finding]:
    """All findings below ``root``."""
    found: dict[Rule, list[Finding]] = {rule: [] for rule in (*EVERYWHERE, *IN_PACKAGE, *IN_TESTS)}
    package = []
    for path in files(root, "*.py"):
        relative = path.relative_to(root)
        text = path.read_text(encoding="utf-8")
        source = Source(relative, text, ast.parse(text, filename=str(relative)))
        for rule in rules_of(relative):
            found[rule] += rule(source)
        if relative.parts[0] == PACKAGE:
            package.append(source)
    broken = (finding for rule, findings in found.items() if len(findings) > AT_MOST.get(rule, 0) for finding in findings)
    links = (Finding(path.relative_to(root), 1, "a symbolic link: keep a copy") for path in files(root, "*") if path.is_symlink())
    return sorted((*broken, *circles(package), *links))


def main(arguments: list[str]) -> int:
    """Print the findings; the exit status says whether there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    findings = check(root)
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.message}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
