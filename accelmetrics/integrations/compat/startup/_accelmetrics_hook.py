"""Gives NVIDIA's Python bindings, when a program imports one, a library that answers from accelmetrics' readings.

Works in the program's own process, which may be of an older Python (3.6 and later) and has no accelmetrics. The binding itself stays the
program's: its constants, structures and exceptions are what the program compares with. Bindings are known by their modules' names. Copies
that decide where work runs (Ray's, vLLM's) are none of them: those must count CUDA's devices and no others.
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
"""The variable that names the folder in which the readings lie."""
CARDS = "/sys/class/drm"
LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")


def _folder() -> str:
    return os.environ.get(FEED, "")


def _answers() -> Any:
    """Load the library's stand-in, by its path: the program may have changed ``sys.path``."""
    name = "_accelmetrics_nvml"
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, os.path.join(HERE, name + ".py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.setdefault(name, module)
    return sys.modules[name]


def _binding(module: Any, execute: Any) -> None:
    """Run a binding's module, and put the stand-in where it would load its library."""
    execute()
    _answers().attach(module, _folder())


def _loads_before(module: Any, execute: Any) -> None:
    """Run a module of a program that loads the library by ``ctypes`` before it imports the binding.

    ``ctypes.CDLL`` is replaced meanwhile, for this thread and this library alone: whatever else loads it would believe in CUDA devices.
    """
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
    """Return what runs a module that reads AMD's devices itself: where there are some, they would be there twice."""

    def run(module: Any, execute: Any) -> None:
        execute()
        if finds_some(module) and "amd" in _told().get("vendors", ()):
            words = "accelmetrics run: %s reads AMD's devices itself, and would count each of them twice: run it without --as-nvml\n"
            sys.stderr.write(words % program)

    return run


def _told() -> Any:
    """Return what was told with the latest reading; nothing where there is none."""
    try:
        with open(os.path.join(_folder(), "reading.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def _cards_of_the_kernel(_module: Any) -> bool:
    """Return whether the kernel lists a card of AMD's, as glances looks for them."""
    try:
        return any(_content(os.path.join(CARDS, card, "device", "vendor")) == "0x1002" for card in os.listdir(CARDS))
    except OSError:
        return False


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:  # no card: a port, or a file about the folder
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
"""By module, what runs it."""


class Loader:
    """The loader of a module, which has something done when it runs the module.

    Args:
        genuine: What loads it.
        run: Called with the module and with what executes it.
    """

    def __init__(self, genuine: Any, run: Any) -> None:
        self.genuine = genuine
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.genuine, name)

    def create_module(self, spec: Any) -> Any:
        """Create it as ever."""
        create = getattr(self.genuine, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: Any) -> None:
        """Execute it, with what is done about it. Within it the module has the loader that it would have without us."""
        module.__spec__.loader = module.__loader__ = self.genuine
        self.run(module, lambda: execute(self.genuine, module))


def execute(loader: Any, module: Any) -> None:
    """Have a loader execute a module; that of zip files knows of the code alone, before Python 3.10."""
    if hasattr(loader, "exec_module"):
        loader.exec_module(module)
    else:
        exec(loader.get_code(module.__name__), module.__dict__)  # noqa: S102 - what loading a module is


class Finder:
    """Finds the modules that are known, where the others find them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find one, wherever it lies; for NVIDIA's own where the program has none, the one that we have."""
        run = MODULES.get(name)
        if run is None or not _folder():
            return None
        spec = genuine_spec(name, path, target)
        if spec is None and name == "pynvml":
            ours = _told().get("binding", "")
            spec = importlib.util.spec_from_file_location(name, ours) if ours else None
        if spec is not None and spec.loader is not None:
            loader: Any = Loader(spec.loader, run)
            spec.loader = loader
        return spec


def genuine_spec(name: str, path: Any = None, target: Any = None) -> Any:
    """Find a module as it would be found without us."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        where = path
        if path is None and finder is importlib.machinery.PathFinder:
            where = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
        spec: Any = finder.find_spec(name, where, target)
        if spec is not None:
            return spec
    return None


def install() -> None:
    """Have modules found through here from now on, once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        finder: Any = Finder()
        sys.meta_path.insert(0, finder)


def run_next(name: str) -> None:
    """Run the module of a name that would have run without ours."""
    spec = genuine_spec(name)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        execute(spec.loader, module)


def become(name: str) -> None:
    """Run, in the module that is being imported from this folder, what the program would have imported without it.

    Raises:
        ImportError: The program has no such module.
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
