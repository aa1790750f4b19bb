"""A headless Chromium, driven through its own driver, and what tests ask of a page in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.missing import MissingHere
from tests.support.waiting import HANG, wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
ARTEFACTS = REPOSITORY / ".cache" / "artefacts"
"""Where screenshots are left; `.ci/run` lists them."""
AXE = REPOSITORY / ".cache" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--force-device-scale-factor=1"),
)
WIDE = (1280, 900)


def check_axe() -> None:
    """Have a test that needs axe-core end before it changes anything."""
    if not AXE.exists():
        raise MissingHere(f"axe-core is not installed: npm install --prefix {AXE.parents[2]} axe-core")


class Browser:
    """One window of a running Chromium. Each test has a window of its own."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, size: tuple[int, int] = WIDE) -> None:
        """Show an address in a window of this size, in CSS pixels."""
        self.resize(size)
        self.driver.get(url)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def command(self, name: str, **arguments: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def media(self, **features: str) -> None:
        """Have media features such as ``prefers_color_scheme="dark"``."""
        chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", features=chosen)

    def network(self, latency_ms: float, bytes_per_second: float = -1, offline: bool = False) -> None:
        """Have a slow link, or none."""
        self.command("Network.enable")
        limits = {"downloadThroughput": bytes_per_second, "uploadThroughput": bytes_per_second}
        self.command("Network.emulateNetworkConditions", offline=offline, latency=latency_ms, **limits)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and give what it returns."""
        return self.driver.execute_script(script, *arguments)

    def axe(self) -> list[object]:
        """Return what axe-core finds wrong with the page as it is: rule, words, and the first elements."""
        self.run(AXE.read_text())
        found = self.driver.execute_async_script(
            "axe.run(document, { resultTypes: ['violations'] }).then((found) => arguments[0](found.violations));"
        )
        return [(one["id"], one["help"], [part["html"] for part in one["nodes"]][:3]) for one in found]

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What an element says, seen or not."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """What elements say, all of one moment."""
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector))

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        """The name of what has the focus: its text, or its label."""
        return str(self.run("const one = document.activeElement; return one.ariaLabel || one.textContent.trim() || one.id"))

    def tab_to(self, name: str, most: int = 60) -> None:
        """Press the Tab key until something of this name has the focus."""
        passed = []
        for _ in range(most):
            self.press(Keys.TAB)
            passed.append(self.focused())
            if passed[-1].startswith(name):
                return
        raise AssertionError(f"no {name!r} among {passed}")

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait for something in the page."""
        return wait_for(condition, what=lambda: f"{what}: {self.one('body').text[:1500]}\n{self.console()}")

    def until_text(self, selector: str, words: str) -> None:
        self.until(lambda: words in self.text(selector), f"no {words!r} in {selector}: {self.text(selector)!r}")

    def console(self) -> list[str]:
        """What was written to the console since this was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """The addresses that were asked for since this was asked last, whatever asked for them."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]  # type: ignore[no-untyped-call]
        sent = (event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent")
        return [url for url in sent if urlsplit(url).scheme in ("http", "https", "ws", "wss")]

    def screenshot(self, name: str) -> Path:
        """Keep a picture of the whole page as an artefact."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        width = self.run("return innerWidth")
        height = min(6000, self.run("return document.documentElement.scrollHeight"))
        self.resize((width, height))
        self.driver.save_screenshot(str(path))
        self.resize((width, WIDE[1]))
        return path


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """Run a Chromium with a new profile in a folder.

    Raises:
        MissingHere: It is not installed.
    """
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise MissingHere("chromium or chromedriver is not installed: apt-get install chromium chromium-driver")
    os.environ["SE_OFFLINE"] = "true"  # selenium looks for no driver elsewhere
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in (*SWITCHES, f"--user-data-dir={folder}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    program = webdriver.Chrome(options=options, service=Service(driver))
    try:
        program.set_page_load_timeout(HANG)
        yield program
    finally:
        program.quit()
