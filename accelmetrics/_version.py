"""The version of the package, as text and as numbers that compare, and nothing else, so that asking for it loads nothing."""

__version__ = "0.1.0"
version_info = (0, 1, 0)
