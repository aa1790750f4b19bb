"""The version of the package, as text and as a tuple that compares. Nothing else is here, so reading it loads nothing."""

__version__ = "0.1.0"
version_info = (0, 1, 0)
