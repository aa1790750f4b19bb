"""The page of a report in a real browser, opened from disk: drawn, quiet, safe, usable by keys, on paper, on a phone, without scripts."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import call
from tests.cli.test_report import write
from tests.views.page.browser import Browser, check_axe
from tests.views.report.runs import run
from tests.views.report.test_plots import paced

pytestmark = pytest.mark.browser

INK = """
const counts = {};
for (const figure of document.querySelectorAll("figure[data-plot]")) {
  const canvas = figure.querySelector("canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 200) colours.add(pixels[i] + "," + pixels[i + 1] + "," + pixels[i + 2]);
  counts[figure.dataset.plot] = colours.size;
}
return counts;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of one run, and that of two."""
    folder = tmp_path_factory.mktemp("pages")
    first = write(folder / "a.jsonl", list(run(300, 3)))
    second = write(folder / "b.jsonl", list(run(250, 3, power=300.0, host="node-2")))
    for arguments in ([first, "--html", str(folder / "run.html")], [first, "--compare", second, "--html", str(folder / "both.html")]):
        done = call("report", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    return folder


def show(browser: Browser, page: Path, **options: Any) -> None:
    """Open a page from disk, and wait until it is drawn."""
    browser.open(page.as_uri(), **options)
    browser.until(lambda: browser.run("return document.body.dataset.drawn"), "the page is not drawn")


@pytest.mark.parametrize("name", ["run", "both"])
def test_it_is_drawn_and_asks_for_nothing(browser: Browser, pages: Path, name: str) -> None:
    """Every plot has ink; the console is empty."""
    show(browser, pages / f"{name}.html")
    counts = browser.run(INK)
    assert len(counts) == int(browser.run("return document.body.dataset.drawn")) >= 8
    assert all(colours > 5 for colours in counts.values()), counts
    assert browser.console() == [] and browser.requests() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    browser.screenshot(f"report-{name}")


def test_one_crosshair_and_one_zoom_over_all_plots(browser: Browser, pages: Path) -> None:
    """By the keyboard alone; the loss has it too."""
    show(browser, pages / "run.html")
    browser.tab_to("Utilisation")
    browser.press("\ue014")  # the right arrow
    told = browser.texts("#plots .readout")
    moments = {text.partition(" UTC")[0] for text in told}
    assert len(told) >= 5 and len(moments) == 1 and moments.pop().startswith("2026-01-01 00:02:3")
    assert "gpu.2" in told[0]
    before = browser.run("return document.querySelector('#plots canvas').toDataURL()")
    other = browser.run("return document.querySelectorAll('#plots canvas')[2].toDataURL()")
    browser.press("+")
    browser.until(lambda: browser.run("return document.querySelector('#plots canvas').toDataURL()") != before, "no zoom")
    browser.until(
        lambda: browser.run("return document.querySelectorAll('#plots canvas')[2].toDataURL()") != other, "the others did not follow"
    )
    browser.press("0")
    browser.press("\ue00c")  # escape
    browser.until(
        lambda: browser.run("return document.querySelectorAll('#plots canvas')[2].toDataURL()") == other, "not all is shown again"
    )


def test_a_line_can_be_switched_off(browser: Browser, pages: Path) -> None:
    """In all plots; the switch says so to a screen reader."""
    show(browser, pages / "run.html")
    browser.tab_to("gpu.1")
    browser.press(" ")
    assert browser.run("return document.activeElement.ariaPressed") == "false"
    browser.tab_to("Power")
    browser.press("\ue014")
    readout = browser.run("return document.activeElement.parentElement.querySelector('.readout').textContent")
    assert "gpu.0" in readout and "gpu.1" not in readout


UNBROKEN = """
const figure = [...document.querySelectorAll("figure")].find((one) => one.querySelector("h3").textContent === arguments[0]);
const canvas = figure.querySelector("canvas");
const colour = getComputedStyle(document.documentElement).getPropertyValue(arguments[1]).trim();
const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const columns = new Set();
for (let i = 0; i < data.length; i += 4) {
  if (Math.abs(data[i] - red) + Math.abs(data[i + 1] - green) + Math.abs(data[i + 2] - blue) < 60) columns.add((i / 4) % width);
}
return columns.size / width;
"""


def test_lines_of_runs_that_were_never_read_at_once_are_whole(browser: Browser, tmp_path: Path) -> None:
    """Beside each other: a line of either has ink in most columns of its plot, over time, steps and epochs."""
    first = write(tmp_path / "a.jsonl", paced(100, 1.0, 0.0, "a"))
    second = write(tmp_path / "b.jsonl", paced(120, 0.83, 7.41, "b", seconds=0.45, watts=300.0))
    for arguments in ([first, second], [first, "--compare", second, "--align", "step"]):
        done = call("report", *arguments, "--html", str(tmp_path / "both.html"))
        assert (done.returncode, done.stderr) == (0, "")
        show(browser, tmp_path / "both.html")
        compared = "--align" in arguments
        if compared:
            assert browser.texts(".choice button[aria-pressed=true]") == ["Steps"]
        for name in ("Time", "Epochs", "Steps"):
            browser.tab_to(name)
            browser.press(" ")
            assert browser.texts(".choice button[aria-pressed=true]") == [name]
            # Two runs that are compared have one colour: the second is dashed, so that the first must not fill the gaps.
            hidden = "A gpu.0" if compared else "run 1 gpu.0"
            for colour in ("--c0", "--c0" if compared else "--c1"):
                assert browser.run(UNBROKEN, "Power, W", colour) > 0.5, (arguments, name, colour)
                browser.tab_to(hidden)
                browser.press(" ")
            browser.tab_to("Power")
            browser.press("\ue014")
            readout = browser.run("return document.activeElement.parentElement.querySelector('.readout').textContent")
            assert readout.startswith({"Steps": "step ", "Epochs": "epoch "}.get(name, "")) and readout.count("gpu.0") == 2


def test_a_finding_is_named_in_the_plot_that_it_is_about(browser: Browser, pages: Path) -> None:
    """In a colour that no device has."""
    show(browser, pages / "run.html")
    marked = {
        title: browser.run(UNBROKEN, title, "--found") > 0.02
        for title in browser.run("return [...document.querySelectorAll('#plots h3')].map((one) => one.textContent)")
    }
    assert [title for title, found in marked.items() if found] == ["Temperature, °C"]


def test_a_changed_script_does_not_run(browser: Browser, pages: Path, tmp_path: Path) -> None:
    """Nor one that was put in, nor an event handler; the static pictures are there all the same."""
    text = (pages / "run.html").read_text()
    changed = text.replace('"use strict";', '"use strict"; document.body.dataset.changed = 1;', 1)
    changed = changed.replace(
        "<main", "<script>document.body.dataset.put = 1</script><img src='x:' onerror='document.body.dataset.img = 1'><main", 1
    )
    assert changed != text
    page = tmp_path / "changed.html"
    page.write_text(changed)
    browser.open(page.as_uri())
    refused = browser.until(browser.console, "nothing was refused")
    assert any("Content Security Policy" in line for line in refused)
    assert browser.run("return JSON.stringify(document.body.dataset)") == "{}"
    assert browser.run("return document.querySelectorAll('.static img').length") >= 8


def test_it_is_whole_without_scripts(browser: Browser, pages: Path) -> None:
    """Sparklines and static pictures are seen."""
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open((pages / "run.html").as_uri())
        tree = browser.command("DOM.getDocument", depth=1)["root"]["nodeId"]
        for selector, least in ((".spark path", 12), (".static img", 8)):
            nodes = browser.command("DOM.querySelectorAll", nodeId=tree, selector=selector)["nodeIds"]
            assert len(nodes) >= least
            box = browser.command("DOM.getBoxModel", nodeId=nodes[0])["model"]
            assert box["width"] > 50 and box["height"] > 5
        assert not browser.command("DOM.querySelectorAll", nodeId=tree, selector="canvas")["nodeIds"]
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_on_paper_the_static_pictures_stand(browser: Browser, pages: Path) -> None:
    """And nothing that needs a screen."""
    show(browser, pages / "run.html")
    browser.command("Emulation.setEmulatedMedia", media="print")
    seen = "return [...document.querySelectorAll(arguments[0])].filter((one) => one.getClientRects().length).length"
    assert browser.run(seen, ".static img") >= 8 and browser.run(seen, ".live") == 0 and browser.run(seen, "button") == 0
    content = base64.b64decode(browser.command("Page.printToPDF")["data"])
    assert content.startswith(b"%PDF") and content.count(b"/Type /Page\n") >= 2
    browser.command("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_on_a_phone_in_light_and_dark(browser: Browser, pages: Path, scheme: str) -> None:
    """Nothing is wider than the screen but what scrolls by itself; the contrast is that of its scheme."""
    browser.media(prefers_color_scheme=scheme)
    show(browser, pages / "run.html", size=(360, 740))
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    colours = browser.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    light = [sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) for colour in colours]
    assert (light[0] > light[1] + 450) is (scheme == "dark") and (light[1] > light[0] + 450) is (scheme == "light")
    assert browser.console() == []


@pytest.mark.parametrize(("name", "scheme"), [("run", "light"), ("run", "dark"), ("both", "light")])
def test_axe_finds_nothing(browser: Browser, pages: Path, name: str, scheme: str) -> None:
    """Contrast, names, order of headings, regions."""
    check_axe()
    browser.media(prefers_color_scheme=scheme)
    show(browser, pages / f"{name}.html")
    browser.command("Page.setBypassCSP", enabled=True)
    assert browser.axe() == []
    browser.media(prefers_color_scheme="light")


def test_a_screen_reader_finds_headings_tables_and_names(browser: Browser, pages: Path) -> None:
    """Every part has a heading, every table a caption, every picture and plot a name."""
    show(browser, pages / "run.html")
    assert browser.run("return [...document.querySelectorAll('section')].every((one) => one.querySelector('h2'))")
    assert browser.run(
        "return [...document.querySelectorAll('table')].every((one) => one.caption.textContent && one.querySelector('th[scope]'))"
    )
    assert browser.run(
        "return [...document.querySelectorAll('svg:not([aria-hidden])')].every((one) => one.querySelector('title')?.textContent)"
    )
    assert browser.run("return [...document.querySelectorAll('img')].every((one) => one.alt)")
    assert browser.run(
        "return [...document.querySelectorAll('.live')].every((one) => one.ariaLabel && one.getAttribute('role') === 'group')"
    )
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_cut(browser: Browser, pages: Path, width: int) -> None:
    """The tables of devices and differences fit a desktop, the page fits a phone, and labels of small numbers are whole."""
    for name in ("run", "both"):
        show(browser, pages / f"{name}.html", size=(width, 900))
        assert browser.run("return document.documentElement.scrollWidth") == width
        if width > 390:
            wide = "return [...document.querySelectorAll('section > .wide')].filter((one) => one.scrollWidth > one.clientWidth).length"
            assert browser.run(wide) == 0
    page = """
    const figure = [...document.querySelectorAll("figure")].find((one) => one.querySelector("h3").textContent === "Learning rate");
    const canvas = figure.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, 3, canvas.height);
    return data.some((value, i) => i % 4 === 3 && value > 0);
    """
    assert browser.run(page) is False, "a label of the axis touches the left edge"
