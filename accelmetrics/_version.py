"""The version of the package, and nothing else, so that asking for it loads nothing."""

__version__ = "0.1.0"
