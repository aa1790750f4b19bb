"""A browser, and a page that was made once."""

from __future__ import annotations

from tests.views.page.conftest import browser, running_browser

__all__ = ["browser", "running_browser"]
