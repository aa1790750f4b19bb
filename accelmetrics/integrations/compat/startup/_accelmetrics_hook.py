"""An import hook that gives NVIDIA's Python bindings a library that answers from accelmetrics' readings.

It runs in the program's process, whose Python may be older (3.6 and later) and has no accelmetrics. The program keeps its binding,
because it compares with the binding's constants, structures and exceptions. Bindings are recognised by the names of their modules. Copies
of the binding that decide where work runs (in Ray and vLLM) are left alone, because they must count CUDA's devices and no others.
"""

import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FEED = "ACCELMETRICS_AS_NVML"
"""The variable with the path of the folder of readings."""
CARDS = "/sys/class/drm"
LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")


def _folder() -> str:
    return os.environ.get(FEED, "")


def _answers() -> Any:
    """Return the module with NVML's functions, loaded on first use."""
    # Loaded by path, because the program may have changed sys.path.
    name = "_accelmetrics_nvml"
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, os.path.join(HERE, name + ".py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.setdefault(name, module)
    return sys.modules[name]


def _binding(module: Any, execute: Any) -> None:
    """Execute a binding's module, and replace the library that it would load."""
    execute()
    _answers().attach(module, _folder())


def _loads_before(module: Any, execute: Any) -> None:
    """Execute a program's module that loads the library by ``ctypes`` before it imports the binding."""
    # ctypes.CDLL is replaced for this module's execution, and only on this thread and for this library. Other code that loads the library
    # would conclude that there are CUDA devices.
    genuine, thread = ctypes.CDLL, threading.get_ident()

    def load(name: Any, *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() == thread and str(name).endswith(LIBRARIES):
            return _answers().NvmlStandIn(None, _folder())
        return genuine(name, *arguments, **options)

    changed: Any = ctypes
    changed.CDLL = load
    try:
        execute()
    finally:
        changed.CDLL = genuine


def _counts_amd(program: str, finds_some: Any) -> Any:
    """Return a function that executes a module which reads AMD's devices itself, and warns that they would be counted twice."""

    def run(module: Any, execute: Any) -> None:
        execute()
        if finds_some(module) and "amd" in _latest_reading().get("vendors", ()):
            words = "accelmetrics run: %s reads AMD's devices itself and would count each of them twice: run it without --as-nvml\n"
            sys.stderr.write(words % program)

    return run


def _latest_reading() -> Any:
    """Return the latest reading. Empty if there is none."""
    try:
        with open(os.path.join(_folder(), "reading.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def _cards_of_the_kernel(_module: Any) -> bool:
    """Return whether the kernel lists a card of AMD, by the same check as in glances."""
    try:
        return any(_content(os.path.join(CARDS, card, "device", "vendor")) == "0x1002" for card in os.listdir(CARDS))
    except OSError:
        return False


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:  # no card: a connector, or another file in the folder
        return ""


MODULES = {
    "pynvml": _binding,
    "pynvml.nvml": _binding,  # the package of that name, releases 8 to 11
    "py3nvml.py3nvml": _binding,
    "comet_ml.vendor.nvidia_ml.pynvml": _binding,
    "glances.plugins.gpu.cards.nvidia": _loads_before,
    "glances.plugins.gpu.cards.amd": _counts_amd("glances", _cards_of_the_kernel),
    "codecarbon.core.gpu_amd": _counts_amd("codecarbon", lambda module: getattr(module, "AMDSMI_AVAILABLE", False)),
}
"""The function that executes each module."""


class Loader:
    """A loader that wraps the original loader of a module and calls a function to execute the module.

    Args:
        genuine: The original loader.
        run: Called with the module, and with a function that executes it.
    """

    def __init__(self, genuine: Any, run: Any) -> None:
        self.genuine = genuine
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.genuine, name)

    def create_module(self, spec: Any) -> Any:
        """Create the module as the original loader does."""
        create = getattr(self.genuine, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: Any) -> None:
        """Execute the module by ``run``."""
        # The module may look at its loader, so it sees the original one.
        module.__spec__.loader = module.__loader__ = self.genuine
        self.run(module, lambda: execute(self.genuine, module))


def execute(loader: Any, module: Any) -> None:
    """Execute a module with its loader."""
    if hasattr(loader, "exec_module"):
        loader.exec_module(module)
    else:  # before Python 3.10, the loader of zip files can only return the code
        exec(loader.get_code(module.__name__), module.__dict__)  # noqa: S102 - what loading a module is


class Finder:
    """A finder for the modules in ``MODULES``, which asks the other finders for their place."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a known module with our loader, or None. If the program has no ``pynvml``, accelmetrics' own is used."""
        run = MODULES.get(name)
        if run is None or not _folder():
            return None
        spec = genuine_spec(name, path, target)
        if spec is None and name == "pynvml":
            ours = _latest_reading().get("binding", "")
            spec = importlib.util.spec_from_file_location(name, ours) if ours else None
        if spec is not None and spec.loader is not None:
            loader: Any = Loader(spec.loader, run)
            spec.loader = loader
        return spec


def genuine_spec(name: str, path: Any = None, target: Any = None) -> Any:
    """Return the spec that a module would have without this hook."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        where = path
        # Our folder is on sys.path, and has files with the names of the program's modules.
        if path is None and finder is importlib.machinery.PathFinder:
            where = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
        spec: Any = finder.find_spec(name, where, target)
        if spec is not None:
            return spec
    return None


def install() -> None:
    """Install the import hook, unless it is installed already."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        finder: Any = Finder()
        sys.meta_path.insert(0, finder)


def run_next(name: str) -> None:
    """Execute the module of this name that would run without our folder on the path."""
    spec = genuine_spec(name)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        execute(spec.loader, module)


def become(name: str) -> None:
    """Execute the program's module of this name in place of the module that is being imported from our folder.

    Raises:
        ImportError: The program has no module of this name.
    """
    install()
    spec = next((finder for finder in sys.meta_path if isinstance(finder, Finder)), Finder()).find_spec(name) or genuine_spec(name)
    if spec is None:
        raise ModuleNotFoundError("No module named %r" % name, name=name)
    module: Any = sys.modules[name]
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    execute(spec.loader, module)
