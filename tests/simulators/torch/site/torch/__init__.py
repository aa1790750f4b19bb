"""The stand-in package: see `tests/simulators/torch/__init__.py`."""

from . import cuda

__version__ = "2.6.0+standin"
__all__ = ["__version__", "cuda"]
