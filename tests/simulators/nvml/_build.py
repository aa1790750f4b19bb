"""Builds the stand-in `libnvidia-ml.so.1` with the system's compiler against NVIDIA's public `nvml.h`.

What can be looked up is read from three sources at build time, so that nothing here repeats them: the C files (functions
that are implemented), pynvml's source and the header (everything else becomes a stub that answers NOT_SUPPORTED).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.locking import locked
from tests.support.missing import MissingHere

from ._clones import FOLDER, Clone

SOURCES = Path(__file__).resolve().parent / "csrc"
REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "nvmlsim"
SONAME = "libnvidia-ml.so.1"
CONTROL = "libnvmlsim.so"
HEADER_PACKAGE = "nvidia-nvml-dev"
EXPORTED = "exported.txt"

# Names that old clients look up and neither pynvml's source nor the header mentions any more.
OLD_NAMES = (
    "nvmlDeviceRemoveGpu",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetGridLicensableFeatures",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlEventSetWait",
    "nvmlComputeInstanceGetInfo",
)

FLAGS = ("-fPIC", "-O2", "-g1", "-std=gnu11", "-Wall", "-Wextra", "-Werror=implicit-function-declaration")
LINK = ("-Wl,--version-script=exports.map", "-Wl,--no-undefined")

_IMPLEMENTED = re.compile(r"^(?:nvmlReturn_t |const char \*|GETTER\w*\()(nvml[A-Z]\w*)", re.MULTILINE)
_LISTS = re.compile(r"^LISTS\((nvml\w+),", re.MULTILINE)
_PYNVML = re.compile(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)')
_PROTOTYPE = re.compile(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Z]\w*)\s*\(")
_GPM = re.compile(r"\bNVML_GPM_METRIC_(\w+)\s*=\s*(\d+)")
_ERROR = re.compile(r"\bNVML_(SUCCESS|ERROR_\w+)\s*=\s*(\d+)")
_VERSION = re.compile(r"^#define\s+NVML_API_VERSION\s+(\d+)", re.MULTILINE)


class SimulatorUnavailable(MissingHere):
    """The simulator cannot be built here; the message says what is missing and how to get it."""


def build(directory: Path | None = None, hide: Iterable[str] = (), clone: Clone | None = None) -> Path:
    """Builds the library, or finds the one built before from the same input, and returns its path.

    It is compiled once per state of the sources and linked once per variant; processes that want it at the same time wait for
    the one that builds. Each variant lies in its own folder below `directory` (default: `.cache/nvmlsim` in the repository)
    as `libnvidia-ml.so.1`, so that the folder can go to `LD_LIBRARY_PATH`; beside it the same code as `libnvmlsim.so`, with
    which a test controls a simulator without having an NVML library in its own process. `hide` names functions that the
    library then does not export, as an older driver's does not. `clone` is another vendor's library of the same form. Variants
    built from the same sources can share a state file.
    """
    return _build_once(directory or CACHE, tuple(sorted(set(hide))), clone)


@functools.cache
def _build_once(directory: Path, hidden: tuple[str, ...], clone: Clone | None) -> Path:
    """Reading the sources to know whether they changed takes 50 ms: once per process is enough."""
    found, header = compiler(), _header()
    generated = _generate(header)
    objects = directory / _digest(header, generated)
    variant = _name_of(hidden) if hidden else "all"
    library = objects / (f"{clone.name}-{variant}" if clone else variant) / (clone.soname if clone else SONAME)
    if not library.exists():
        with locked(directory / "build.lock"):  # test runs and their workers build side by side
            if not objects.exists():
                _compile(found, header, generated, objects)
            if not library.exists():
                _link(found, header, objects, hidden, clone, library.parent)
    return library


def state_variable(clone: Clone | None) -> str:
    """The variable that names the state file: each library of a process has a machine of its own."""
    return f"{clone.name.upper() if clone else 'NVML'}SIM_STATE"


def compiler() -> str:
    """The system's C compiler.

    Raises:
        SimulatorUnavailable: There is none, or this is not Linux.
    """
    if sys.platform != "linux":
        raise SimulatorUnavailable(f"platform: the NVML simulator needs Linux, this is {sys.platform}")
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise SimulatorUnavailable("no C compiler (cc, gcc or clang) on PATH")
    return found


def _header() -> Path:
    """The newest `nvml.h` among the installed packages and the CUDA toolkit."""
    found = sorted(_headers(), key=_api_version)
    if not found:
        raise SimulatorUnavailable(f"no nvml.h: pip install {HEADER_PACKAGE}")
    return found[-1]


def _headers() -> Iterator[Path]:
    for entry in dict.fromkeys(sys.path):
        yield from Path(entry or ".").glob("nvidia/*/include/nvml.h")
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        toolkit = Path(root) / "include" / "nvml.h"
        if root and toolkit.is_file():
            yield toolkit


def _api_version(header: Path) -> tuple[int, int]:
    match = _VERSION.search(header.read_text(errors="replace"))
    return (int(match.group(1)) if match else 0, header.stat().st_size)


def _pynvml_source() -> str:
    spec = importlib.util.find_spec("pynvml")
    return Path(spec.origin).read_text() if spec is not None and spec.origin else ""


def _implemented(header_names: set[str]) -> list[str]:
    text = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.c")))
    names = set(_IMPLEMENTED.findall(text))
    for stem in _LISTS.findall(text):
        names |= {stem, f"{stem}_v2", f"{stem}_v3"}
    return sorted(name for name in names if name in header_names or f"HEADER_HAS_{name}\n" not in text)


def _generate(header: Path) -> dict[str, str]:
    """The generated files, by name, one of which lists what is exported."""
    text = header.read_text(errors="replace")
    header_names = set(_PROTOTYPE.findall(text))
    implemented = _implemented(header_names)
    wanted = set(_PYNVML.findall(_pynvml_source())) | header_names | set(OLD_NAMES)
    stubs = sorted(wanted - set(implemented))
    return {
        "functions.gen.h": _functions_header(implemented, stubs, header_names),
        "functions.gen.c": _functions_source(implemented, stubs, text),
        "stubs.gen.c": _stubs_source(stubs),
        EXPORTED: "\n".join(implemented + stubs),
    }


def _functions_header(implemented: list[str], stubs: list[str], header_names: set[str]) -> str:
    names = implemented + stubs
    checksum = hashlib.sha256("\n".join(names).encode()).hexdigest()[:7]
    lines = ["#ifndef FUNCTIONS_GEN_H", "#define FUNCTIONS_GEN_H", f"#define FN_HASH 0x{checksum}u", "enum {"]
    lines += [f"    FN_{name}," for name in names]
    lines += ["    FN_COUNT", "};", f"#define FN_IMPLEMENTED {len(implemented)}"]
    lines += [f"#define HEADER_HAS_{name} 1" for name in sorted(header_names)]
    lines += ["extern const char *const sim_function_names[];", "extern const char *const sim_gpm_names[];"]
    lines += ["const char *sim_error_name(int code);", "#endif", ""]
    return "\n".join(lines)


def _functions_source(implemented: list[str], stubs: list[str], header: str) -> str:
    lines = ["const char *const sim_function_names[] = {"]
    lines += [f'    "{name}",' for name in implemented + stubs]
    lines += ["};", "const char *const sim_gpm_names[512] = {"]
    gpm = {int(number): name for name, number in _GPM.findall(header)}
    lines += [f'    [{number}] = "{name}",' for number, name in sorted(gpm.items()) if name != "MAX"]
    lines += ["};", "const char *sim_error_name(int code)", "{", "    switch (code) {"]
    errors = {int(number): name for name, number in _ERROR.findall(header)}
    lines += [f'    case {code}: return "{_words(name)}";' for code, name in sorted(errors.items())]
    lines += ['    default: return "Unknown Error";', "    }", "}", ""]
    return "\n".join(lines)


def _words(name: str) -> str:
    return name.removeprefix("ERROR_").replace("_", " ").title()


def _stubs_source(stubs: list[str]) -> str:
    """One function per stub. Its arguments are unknown: it takes the first as a bare number and looks at none."""
    lines = ['#include "functions.gen.h"', "int sim_stub(int function, const void *first);"]
    lines += [f"int {name}(const void *first) {{ return sim_stub(FN_{name}, first); }}" for name in stubs]
    return "\n".join([*lines, ""])


def _export_map(exported: Iterable[str], hidden: tuple[str, ...]) -> str:
    listed, local = ("".join(f" {name};" for name in names) for names in (exported, hidden))
    return f"{{ global:{listed} nvmlsim_*; local:{local} *; }};\n"


def _digest(header: Path, generated: dict[str, str]) -> str:
    digest = hashlib.sha256(header.read_bytes())
    for path in sorted((*SOURCES.iterdir(), *FOLDER.iterdir())):
        digest.update(path.read_bytes())
    for name in sorted(generated):
        digest.update(generated[name].encode())
    return digest.hexdigest()[:16]


def _name_of(hidden: tuple[str, ...]) -> str:
    return f"without-{hashlib.sha256(' '.join(hidden).encode()).hexdigest()[:16]}"


def _compile(program: str, header: Path, generated: dict[str, str], target: Path) -> None:
    """Compile everything that all variants share. The folder is there when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch, "objects")
        folder.mkdir()
        for name, content in generated.items():
            (folder / name).write_text(content)
        sources = [*sorted(SOURCES.glob("*.c")), folder / "functions.gen.c", folder / "stubs.gen.c"]
        _run(folder, [program, "-c", *FLAGS, f"-I{folder}", f"-I{SOURCES}", "-isystem", str(header.parent), *map(str, sources)])
        folder.rename(target)


def _link(program: str, header: Path, objects: Path, hidden: tuple[str, ...], clone: Clone | None, target: Path) -> None:
    """Link one variant: what it exports, and under which names. The folder is there when it is complete."""
    known = set((objects / EXPORTED).read_text().split("\n"))
    functions = clone.functions if clone else {}
    unknown = set(hidden) - known - functions.keys()
    if unknown:
        raise ValueError(f"cannot hide what is not exported: {', '.join(sorted(unknown))}")
    files = sorted(str(path) for path in objects.glob("*.o"))
    with tempfile.TemporaryDirectory(dir=objects) as scratch:
        folder = Path(scratch, "libraries")
        folder.mkdir()
        (folder / "exports.map").write_text(_export_map(functions or ("nvml*",), hidden))
        (folder / "variant.c").write_text(f'const char sim_state_variable[] = "{state_variable(clone)}";\n')
        own = [FOLDER / f"{clone.name}.c"] if clone else []
        includes = [f"-I{objects}", f"-I{SOURCES}", "-isystem", str(header.parent)]
        _run(folder, [program, "-c", *FLAGS, *includes, "variant.c", *map(str, own)])
        written = {name for path in own for name in re.findall(r"^nvmlReturn_t (\w+)\(.*\)$", path.read_text(), re.MULTILINE)}
        renamed = [(name, nvmls) for name, nvmls in functions.items() if name not in written | {nvmls} and nvmls in known]
        aliases = [f"-Wl,--defsym={name}={nvmls}" for name, nvmls in renamed]
        files += ["variant.o", *(f"{path.stem}.o" for path in own)]
        for name in (CONTROL, clone.soname if clone else SONAME):
            _run(folder, [program, "-shared", f"-Wl,-soname,{name}", *LINK, *aliases, *files, "-lpthread", "-lm", "-o", name])
        folder.rename(target)


def _run(folder: Path, command: list[str]) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SimulatorUnavailable(f"the simulator does not build: {' '.join(command[:6])} …\n{done.stderr[-4000:]}")
