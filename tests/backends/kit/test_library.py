"""Loading vendors' shared libraries: one whose constructor never returns costs the thread that loads it, and nothing else."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from accelmetrics.backends.kit import import_library, load_library
from accelmetrics.backends.kit.library import loading_failure
from tests.simulators import hanging
from tests.support.programs import Program

LOADING = """
    import sys, threading
    from accelmetrics.backends.kit import load_library
    from accelmetrics.backends.loading import loading
    hanging, returning = sys.argv[1:]
    thread = threading.Thread(target=load_library, args=(hanging,), daemon=True)
    thread.start()
    while loading.is_free():
        thread.join(0.001)
    thread.join(0.1)
"""
"""A program that is loading a library that hangs."""


def loading(rest: str) -> Program:
    return Program(LOADING + rest, str(hanging.library()), str(hanging.library(returns=True)))


def test_the_program_runs_on_beside_a_constructor_that_hangs() -> None:
    """Other threads too, and what documents are made with is there."""
    with loading("""
    import json
    other = threading.Thread(target=lambda: tell(json.dumps([1])))
    other.start()
    other.join()
    """) as program:
        assert program.told() == ["[1]"]
        assert program.end() == 0, program.errors


def test_exit_does_not_wait_for_a_constructor_that_hangs() -> None:
    """Handlers run, output is flushed, and the status is the program's."""
    with loading("""
    import atexit
    atexit.register(tell, "exit")
    print("printed", end="")
    sys.exit(7)
    """) as program:
        assert program.told() == ["exit"]
        assert (program.end(), program.output) == (7, "printed")


def test_the_child_of_a_fork_loads_other_libraries() -> None:
    with loading("""
    import os
    from accelmetrics.backends import loading as module
    module.FORK_PATIENCE = 0.1
    pid = os.fork()
    if pid == 0:
        os._exit(load_library(returning).answer())
    tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """) as program:
        assert program.told() == [42]


def test_functions_are_called_and_missing_ones_told() -> None:
    library = load_library(str(hanging.library(returns=True)))
    assert isinstance(library, ctypes.CDLL)
    assert (library.answer(), library["answer"]()) == (42, 42)
    assert not hasattr(library, "question")


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"libnowhere\.so\.1"):
        load_library("libnowhere.so.1")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(OSError, match=r"text\.so"):
        load_library(str(tmp_path / "text.so"))


def test_a_module_that_is_no_shared_library_is_imported_as_any() -> None:
    assert import_library("json").__name__ == "json"
    with pytest.raises(ImportError, match="no_such_module"):
        import_library("no_such_module")


def made(folder: Path, code: str, *flags: str) -> Path:
    """A library of this code."""
    library = folder / "libvendor.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-xnone", "-o", library, *flags], input=code, text=True, check=True)
    return library


@pytest.mark.parametrize("how", ["undefined symbol", "missing dependency", "not a library", "cut off"])
def test_a_library_that_is_there_and_does_not_load(tmp_path: Path, how: str) -> None:
    """The loader's own words; that one which it needs is missing is not taken for its own absence."""
    code, words = "int nowhere(void); int start(void) { return nowhere(); }", {"undefined symbol": "nowhere"}
    library = made(tmp_path, code if how == "undefined symbol" else "int start(void) { return 0; }")
    if how == "missing dependency":
        needed = tmp_path / "libneeded.so.2"
        made(tmp_path, "int nowhere(void) { return 0; }").rename(needed)
        library = made(tmp_path, code, "-Wl,--no-as-needed", str(needed), "-Wl,-rpath,/nowhere")
        needed.unlink()
        words = {how: needed.name}
    elif how == "not a library":
        library.write_text("no library")
    elif how == "cut off":
        library.write_bytes(library.read_bytes()[:200])
    with pytest.raises(OSError, match=words.get(how, library.name)) as refused:
        load_library(str(library))
    why = loading_failure(str(library), refused.value)
    assert why is not None
    assert (why.reason, why.detail) == ("driver_unavailable", f"{library} exists but does not load: {refused.value}")


@pytest.mark.parametrize("by", ["path", "name"])
def test_a_library_for_another_architecture(tmp_path: Path, by: str) -> None:
    """The loader says of it that it finds no such file, which is no word of its absence where the file is seen."""
    library = made(tmp_path, "int start(void) { return 0; }")
    content = bytearray(library.read_bytes())
    content[18:20] = b"\xfe\xfe"  # e_machine
    library.write_bytes(content)
    name = str(library) if by == "path" else "libvendor-that-is-not-here.so.1"
    with pytest.raises(OSError, match="No such file") as refused:
        load_library(name)
    why = loading_failure(name, refused.value, seen=by == "name")
    assert why is not None
    assert why.reason == "driver_unavailable"
    assert why.detail.startswith(f"{name} exists but does not load: {refused.value} (")
    assert "another architecture" in why.detail


def test_a_library_that_is_not_there() -> None:
    """By a name that the loader looks for, and by its path."""
    for name in ("libvendor-that-is-not-here.so.1", "/nowhere/libvendor.so.1"):
        with pytest.raises(OSError, match="No such file") as refused:
            load_library(name)
        assert loading_failure(name, refused.value) is None
