"""The page of `serve --ui` in a real browser, on simulated devices: what it shows is what was read."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from accelmetrics.exporters.http.access import password_line
from accelmetrics.schemas.document import parse
from accelmetrics.schemas.record import Record
from accelmetrics.views.node_view import node_view
from accelmetrics.views.terminal.choices import DEVICE_FIELDS, PROCESS_FIELDS, Choices, filtered
from accelmetrics.views.terminal.tables import process_fields, row_name, shown_devices
from accelmetrics.visibility.processes import ProcessLookup
from tests.cli.shell import Tree
from tests.schemas.test_text import ROWS as NUMBERS_IN_WORDS
from tests.simulators.nvml import NvmlSimulator, Process, Ramp, Ret
from tests.support.programs import Program
from tests.support.waiting import wait_for
from tests.views.page.browser import WIDE, Browser, check_axe
from tests.views.page.node import Node, serving
from tests.views.page.test_files import ask

pytestmark = pytest.mark.browser
ROWS = """
const rows = [...document.querySelectorAll("#devices tbody tr")];
const cells = (row) => Object.fromEntries([...row.cells].map((cell) => [cell.dataset.column, cell.textContent]));
return [
  Number(document.getElementById("main").dataset.sequence ?? 0),
  rows.map((row) => [row.dataset.key, { ...cells(row), mark: row.dataset.state }]),
];
"""
COLOURED = """
// Columns of the canvas, left to right, with whether anything coloured is drawn there: grid, axes and texts are grey.
const canvas = document.querySelector(arguments[0]);
const { width, height } = canvas;
const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
const columns = new Array(width).fill(false);
for (let at = 0; at < data.length; at += 4) {
  const [red, green, blue, alpha] = data.subarray(at, at + 4);
  if (alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) columns[(at / 4) % width] = true;
}
return columns;
"""


@pytest.fixture
def machine() -> Iterator[NvmlSimulator]:
    """Three GPUs in which nothing is wrong, and whose values stand still."""
    with NvmlSimulator(3) as simulator:
        for index, gpu in enumerate(simulator.gpu):
            gpu.set(gpu_util=90 - 20 * index, temperature=50 + index, power_mw=300_000 + 10_000 * index)
            gpu.set(ecc_uncorrected_volatile=0, energy_mj=Ramp(1e9, rate=300_000))
        yield simulator


@pytest.fixture
def node(machine: NvmlSimulator) -> Iterator[Node]:
    with serving(machine) as served:
        yield served


@pytest.fixture
def page(browser: Browser, node: Node) -> Browser:
    """The page with its first reading."""
    return opened(browser, node)


def opened(browser: Browser, node: Node, size: tuple[int, int] = WIDE, url: str = "") -> Browser:
    browser.open(url or node.url, size)
    browser.until_text("#connection", "live")
    return browser


def rows(browser: Browser) -> tuple[int, dict[str, dict[str, str]]]:
    """The sequence of the reading that the page shows, and its devices: the text of each cell by its column's name."""
    sequence, found = browser.run(ROWS)
    return sequence, dict(found)


def split(key: str) -> tuple[str, str]:
    """The device of a key, and the metric's name."""
    device = ".".join(key.split(".")[:2])
    return device, key.removeprefix(f"{device}.")


def row(browser: Browser, key: str) -> dict[str, str]:
    return rows(browser)[1][key]


def shown(browser: Browser, node: Node) -> tuple[dict[str, dict[str, str]], dict[str, Any], dict[str, Any]]:
    """The devices on the page, the state and the snapshot, all of one reading."""

    def same() -> tuple[dict[str, dict[str, str]], dict[str, Any], dict[str, Any]] | None:
        state, snapshot = node.get("api/state"), node.get("api/snapshot")
        sequence, found = rows(browser)
        return (found, state, snapshot) if sequence == state["sequence"] and snapshot["timestamp"] == state["timestamp"] else None

    return wait_for(same)  # type: ignore[return-value]  # what it waits for is not None


def clean(browser: Browser, node: Node) -> None:
    """Nothing was complained of, and nothing was asked of any other machine."""
    assert browser.console() == []
    asked = browser.requests()
    assert asked
    assert [url for url in asked if not url.startswith(node.url)] == []


def test_the_page_words_numbers_as_python_does(page: Browser) -> None:
    script = """
    import("/static/numbers.js").then((words) => arguments[1](arguments[0].map(([name, values]) => words[name](...values))));
    """
    asked = [(name, values) for name, values, _ in NUMBERS_IN_WORDS]
    assert page.driver.execute_async_script(script, asked) == [words for _, _, words in NUMBERS_IN_WORDS]


def test_what_is_shown_is_what_was_read(page: Browser, node: Node, machine: NvmlSimulator) -> None:
    """Each number equals the snapshot's of the same reading, whatever moved in between."""
    for watts in (300_000, 412_345):
        machine.gpu[0].set(power_mw=watts, gpu_util=watts // 10_000)
        page.until(lambda watts=watts: f"{round(watts / 1000)}/" in row(page, "gpu.0")["power"])  # type: ignore[misc]
        found, state, snapshot = shown(page, node)
        metrics = snapshot["metrics"]
        assert list(found) == ["gpu.0", "gpu.1", "gpu.2"]
        for key, cells in found.items():
            assert cells["utilization"] == f"{round(metrics[f'{key}.gpu'])} %"
            assert cells["temperature"] == f"{round(metrics[f'{key}.temp'])} °C"
            assert cells["clock"] == f"{round(metrics[f'{key}.smClock'])} MHz"
            assert cells["power"].startswith(f"{round(metrics[f'{key}.powerWatts'])}/")
            assert cells["memory"].startswith(f"{round(metrics[f'{key}.memoryAllocated'])} %")
        assert page.text("#hostname") == snapshot["hostname"] == state["hostname"]
    clean(page, node)


def test_a_lost_gpu_and_its_return(page: Browser, machine: NvmlSimulator, node: Node) -> None:
    """Its row says so in a mark, a word and a colour; the others go on; and it recovers."""
    machine.lose(1)
    page.until(lambda: row(page, "gpu.1")["power"] == "- lost")
    lost = row(page, "gpu.1")
    assert lost["state"] == "Xlost"
    assert "lost" in lost["note"]
    for column in ("utilization", "memory", "power", "temperature", "clock"):
        assert lost[column] == "- lost"
    machine.gpu[0].set(temperature=66)
    page.until(lambda: row(page, "gpu.0")["temperature"] == "66 °C")
    assert row(page, "gpu.0")["mark"] == "ok"
    page.screenshot("page-lost")
    machine.recover(1)
    page.until(lambda: row(page, "gpu.1")["temperature"] == "51 °C")
    clean(page, node)


def test_a_finding_is_announced_once(page: Browser, machine: NvmlSimulator, node: Node) -> None:
    """To screen readers, which hear nothing of the readings that follow; devices of which the same is found share a line."""
    page.run(SAID)
    machine.xid(0, 79)
    page.until_text("#announcer", "critical, gpu.0: ")
    machine.xid(2, 79)
    page.until_text("#announcer", "critical, gpu.2: ")
    assert page.text("#findings-summary") == "2 critical"
    (line,) = page.texts("#findings li span")
    assert line.startswith("critical: gpu.0, gpu.2: ")
    node.read_on(4)
    assert page.run("return window.said") == ["announcer", "findings-summary"] * 2
    clean(page, node)


def test_a_source_that_cannot_be_read_is_a_row(browser: Browser, machine: NvmlSimulator, tmp_path: Path) -> None:
    """Where the bus has devices of which none is known: what it says, and what to do."""
    machine.fail_init()
    bus = Tree(tmp_path / "machine").gpu("0000:01:00.0", "0x10de").environment()
    with serving(machine, ACCELMETRICS_SYSROOT=bus["ACCELMETRICS_SYSROOT"]) as node:
        opened(browser, node)
        cells = row(browser, "nvidia")
        assert cells["mark"] == "bad"
        assert cells["power"] == "- failed"
        assert "LIB_RM_VERSION_MISMATCH" in cells["note"]
        browser.press("d", Keys.ENTER)
        browser.until_text("#detail", "accelmetrics doctor")
        clean(browser, node)


def test_a_driver_that_hangs_for_one_gpu(page: Browser, machine: NvmlSimulator, node: Node) -> None:
    """That one timed out, for as long as it does; the others' values go on."""
    machine.rule("*", gpu=2, hang=True)
    page.until(lambda: "timed out" in row(page, "gpu.2")["power"])
    assert "timed out" in row(page, "gpu.2")["note"]
    machine.gpu[0].set(temperature=67)
    page.until(lambda: row(page, "gpu.0")["temperature"] == "67 °C")
    page.screenshot("page-hung")
    machine.clear_rules()
    page.until(lambda: row(page, "gpu.2")["temperature"] == "52 °C")
    clean(page, node)


def test_a_reload_of_the_driver_is_a_gap(page: Browser, machine: NvmlSimulator, node: Node) -> None:
    """While it is away each row says why it has no value; then values go on in the same rows, and the graphs have a gap."""
    node.read_on(6)
    machine.driver_away(Ret.UNINITIALIZED)
    page.until(lambda: all(cells["power"].startswith("- ") for cells in rows(page)[1].values()))
    words = {cells["power"] for cells in rows(page)[1].values()}
    assert not words & {"- not read", "- n/a"}
    node.read_on(4)
    machine.driver_back()
    page.until(lambda: row(page, "gpu.2")["temperature"] == "52 °C")
    assert list(rows(page)[1]) == ["gpu.0", "gpu.1", "gpu.2"]
    node.read_on(6)
    canvas = 'figure[data-key="utilization"] canvas'

    def pieces() -> list[str]:
        return "".join("x" if drawn else " " for drawn in page.run(COLOURED, canvas)).split()

    page.until(lambda: len(pieces()) == 2, "the line has not two pieces")
    assert "missing at" in page.run("return document.querySelector(arguments[0]).ariaLabel", canvas)
    page.screenshot("page-reload")
    clean(page, node)


def test_a_slow_link_does_not_pile_up_requests(page: Browser, node: Node) -> None:
    """Readings come by the one request that the page has made."""
    page.requests()
    page.network(latency_ms=1200)
    for _ in range(3):
        before = rows(page)[0]
        page.until(lambda before=before: rows(page)[0] > before)  # type: ignore[misc]
    assert page.requests() == []
    assert page.text("#connection") == "live"


@pytest.mark.slow
def test_a_proxy_that_holds_readings_back(browser: Browser, node: Node) -> None:
    """The page asks for each reading by itself where a proxy passes no line on before the answer's end."""
    with holding_back(node.url) as url:
        opened(browser, node, url=url)
        before = rows(browser)[0]
        browser.until(lambda: rows(browser)[0] > before + 2)
        asked = [urlsplit(one).path for one in browser.requests()]
    assert asked.count("/api/updates") == 1
    assert asked.count("/api/history") > 2


@contextmanager
def holding_back(url: str) -> Iterator[str]:
    """A proxy of a server, which never ends an answer of ``/api/updates``."""
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path.startswith("/api/updates"):
                ended.wait()
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() in ("host", "if-none-match")}
            status, told, body = ask(url.rstrip("/") + self.path, **headers)
            self.send_response(status)
            for name in ("Content-Type", "Etag", "Cache-Control"):
                if name in told:
                    self.send_header(name, told[name])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}/"
        finally:
            ended.set()
            proxy.shutdown()


def test_a_server_that_ends_and_comes_back(page: Browser, node: Node) -> None:
    """The values stay, greyed, under a line that says for how long there was no answer; they go on by themselves."""
    values = row(page, "gpu.0")
    node.kill()
    page.until_text("#banner", "no answer for ")
    assert "cannot be reached" in page.text("#banner")
    assert page.text("#connection") == "not connected"
    assert row(page, "gpu.0") == values
    assert float(page.run("return getComputedStyle(document.getElementById('devices')).opacity")) < 1
    page.screenshot("page-no-answer")
    node.start()
    page.until_text("#connection", "live")
    assert page.one("#banner").is_displayed() is False
    page.until_text("#announcer", "live again")


def test_rules_about_a_training_run_are_no_alarm_where_no_program_logs(page: Browser) -> None:
    """One sentence, and nothing of devices that all rules can judge but by what these do not have."""
    page.until_text("#not-logged", "At rest: rules about a training run: no program logs here")
    assert "hang" not in page.text("#not-judged")
    assert page.one("#not-judged").is_displayed() == (page.texts("#not-judged li") != [])


def test_nothing_is_asked_while_it_is_not_seen(page: Browser, node: Node) -> None:
    """A tab in the background costs nothing; seen again, it asks at once."""
    page.driver.minimize_window()
    page.until(lambda: page.run("return document.hidden"))
    node.read_on(2)  # what was under way is answered
    page.requests()
    node.read_on(4)
    assert page.requests() == []
    before = rows(page)[0]
    page.driver.set_window_rect(0, 0, 1280, 900)
    page.until(lambda: rows(page)[0] >= before + 4)


def test_a_pause_keeps_what_is_shown(page: Browser, node: Node, machine: NvmlSimulator) -> None:
    """The button, or `p`: nothing moves until it is pressed again."""
    page.press("p")
    page.until_text("#connection", "paused")
    node.read_on(2)
    before = rows(page)
    machine.gpu[0].set(temperature=70)
    node.read_on(3)
    assert rows(page) == before
    page.press("p")
    page.until(lambda: row(page, "gpu.0")["temperature"] == "70 °C")


def test_texts_of_devices_are_texts(browser: Browser) -> None:
    """A product name that is markup is shown as it stands, in the table and in the detail."""
    name = '</script><img src=x onerror="alert(1)">'
    with NvmlSimulator(1) as machine:
        machine.gpu[0].set(name=name)
        with serving(machine) as node:
            opened(browser, node)
            assert name in row(browser, "gpu.0")["device"]
            browser.one("#devices .open").click()
            browser.until_text("#detail", name)
            assert browser.run("return document.querySelectorAll('img').length") == 0
            clean(browser, node)


def test_processes_have_a_program_and_no_command_line(browser: Browser, machine: NvmlSimulator) -> None:
    """Which may hold secrets: only where it is asked for."""
    with Program("wait_to_go_on()", "--token=hush") as program:
        machine.processes(1, [Process(program.pid, used=3 << 30, sm=40)])
        for arguments in ((), ("--show-commands",)):
            with serving(machine, *arguments) as node:
                opened(browser, node)
                browser.until(lambda: browser.texts("#processes tbody tr"), "no process")
                cells = browser.texts("#processes tbody tr > *")
                assert cells[:3] == [str(program.pid), "gpu.1", getpass.getuser()]
                assert cells[4] == "3.0 GiB"
                assert "python" in cells[3]
                assert ("hush" in cells[3]) == ("hush" in json.dumps(node.get("api/state"))) == bool(arguments)


def test_keys_alone_reach_everything(page: Browser, node: Node) -> None:
    """Sorting, one device in full, the crosshair, help: with focus where it was afterwards."""
    page.tab_to("Power")
    page.press(Keys.ENTER)
    assert page.one('#devices th[data-column="power"]').get_attribute("aria-sort") == "descending"
    assert list(rows(page)[1]) == ["gpu.2", "gpu.1", "gpu.0"]
    page.press(Keys.ENTER)
    assert page.one('#devices th[data-column="power"]').get_attribute("aria-sort") == "ascending"
    page.press(Keys.ENTER)
    assert page.one('#devices th[data-column="power"]').get_attribute("aria-sort") is None
    assert list(rows(page)[1]) == ["gpu.0", "gpu.1", "gpu.2"]

    page.press("d", Keys.ARROW_DOWN, Keys.ENTER)
    page.until_text("#detail-title", "gpu.1")
    snapshot = node.get("api/snapshot")
    own = {name for key, name in map(split, snapshot["metrics"]) if key == "gpu.1"}
    reasons = {split(key): why["reason"].replace("_", " ") for key, why in snapshot["unavailable"].items()}
    missing = {name: reason for (key, name), reason in reasons.items() if key == "gpu.1"}
    page.until(lambda: set(page.texts("#detail-raw table:nth-of-type(1) tbody th")) == own)
    told = page.texts("#detail-raw table:nth-of-type(2) tbody td:nth-child(2)")
    assert dict(zip(page.texts("#detail-raw table:nth-of-type(2) tbody th"), told, strict=True)) == missing
    page.screenshot("page-detail")
    page.press(Keys.ESCAPE)
    assert not page.one("#detail").is_displayed()
    assert page.focused().startswith("gpu.1")

    page.press("?")
    assert page.one("#help").is_displayed()
    page.press(Keys.ESCAPE, "/")
    assert page.focused() == "filter"
    page.press(*"gpu.2")
    page.until(lambda: list(rows(page)[1]) == ["gpu.2"])
    assert page.text("#shown") == "1 of 3"
    clean(page, node)


def test_one_crosshair_for_all_graphs(page: Browser, node: Node) -> None:
    """Moved by keys, and every graph says what was read then."""
    node.read_on(4)
    page.press("g", Keys.HOME)

    def times() -> set[str]:
        return {words.split()[0] for words in page.texts("#graphs .readout")}

    first = times()
    assert len(first) == 1
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.until(lambda: len(times()) == 1 and times() != first)
    assert page.one("#graphs .readout").get_attribute("aria-live") == "polite"
    page.press(Keys.TAB)
    assert page.one("#graphs .readout").get_attribute("aria-live") == "off"


READOUT = """
// The read-out of the graph with a name, where it is seen: its lines, and whether any crosshair goes across.
const tip = document.querySelector(`figure[data-key="${arguments[0]}"] .tip`);
const across = [...document.querySelectorAll("#graphs .u-cursor-y")].some((line) => line.checkVisibility());
return [tip.checkVisibility() ? [...tip.querySelectorAll(".entry")].map((line) => line.innerText.trim()) : [], across];
"""


def over(page: Browser, name: str) -> WebElement:
    """The area of a graph that a pointer is moved over."""
    return page.one(f'figure[data-key="{name}"] .u-over')


def test_the_read_out_at_the_pointer(page: Browser, node: Node) -> None:
    """The greatest value first, with its unit; the crosshair goes over all graphs by time alone."""
    node.read_on(4)
    webdriver.ActionChains(page.driver).move_to_element(over(page, "power_watts")).perform()
    page.until(lambda: page.run(READOUT, "power_watts")[0] == ["gpu.2 320 W", "gpu.1 310 W", "gpu.0 300 W"])
    assert page.run(READOUT, "power_watts")[1] is False
    assert page.run(READOUT, "utilization")[0] == []  # the pointer is not there
    network = over(page, "host_network")  # at its end: the first reading has no rates
    webdriver.ActionChains(page.driver).move_to_element_with_offset(network, network.size["width"] // 2 - 4, 0).perform()
    page.until(lambda: page.run(READOUT, "power_watts")[0] == [])
    lines = page.until(lambda: page.run(READOUT, "host_network")[0])
    assert sorted(line.split()[0] for line in lines) == ["received", "sent"]
    assert all(line.endswith("B/s") for line in lines)


def chosen(page: Browser) -> dict[str, str]:
    """The choices in the page's address."""
    return dict(parse_qsl(urlsplit(page.driver.current_url).query))


def test_drag_zooms_and_double_click_goes_back(page: Browser, node: Node) -> None:
    """All graphs go to the part of the time, which is in the address; keys do the same."""
    node.read_on(8)
    area = over(page, "power_watts")
    webdriver.ActionChains(page.driver).move_to_element_with_offset(area, 80, 0).click_and_hold().move_by_offset(60, 0).release().perform()
    page.until_text("#zoom-out", "show all")
    part = float(chosen(page)["to"]) - float(chosen(page)["from"])
    assert 2 <= part < 30
    page.driver.refresh()
    page.until_text("#zoom-out", "show all")
    assert page.one("#zoom-out").is_displayed()
    webdriver.ActionChains(page.driver).double_click(over(page, "utilization")).perform()
    page.until(lambda: not page.one("#zoom-out").is_displayed())
    assert not {"from", "to"} & chosen(page).keys()
    page.press("g", "+")
    page.until(lambda: page.one("#zoom-out").is_displayed())
    page.press("0")
    page.until(lambda: not page.one("#zoom-out").is_displayed())


def test_a_link_shows_the_same(browser: Browser, machine: NvmlSimulator) -> None:
    """Filter, time, graphs and theme are in the address; the filter rules the tables and the graphs."""
    for index in range(3):
        machine.processes(index, [Process(os.getpid(), used=1 << 30)])
    with serving(machine) as node:
        opened(browser, node, url=f"{node.url}?show=gpu.1&span=60&metrics=power_watts,host_cpu&theme=dark&full=power_watts")
        browser.until(lambda: list(rows(browser)[1]) == ["gpu.1"])
        browser.until(lambda: browser.texts("#graphs h3") == ["Power, W", "Host CPU, %"])
        assert browser.texts('figure[data-key="power_watts"] .entry span') == ["gpu.1 310 W"]
        assert browser.texts("#processes tbody td:nth-child(2)") == ["gpu.1"]
        assert browser.text("#theme") == "Theme: dark"
        assert browser.one("#span").get_attribute("value") == "60"
        full = browser.one('figure[data-key="power_watts"] .plot')
        browser.until(lambda: full.size["height"] > 400)
        assert not browser.one("#devices").is_displayed()
        browser.press(Keys.ESCAPE)
        browser.until(lambda: full.size["height"] == 150)
        assert browser.one("#devices").is_displayed()
        assert browser.focused() == "Power: fill the window"
        browser.press("/", Keys.BACKSPACE, "2")
        browser.until(lambda: list(rows(browser)[1]) == ["gpu.2"])
        assert chosen(browser) == {"show": "gpu.2", "span": "60", "metrics": "power_watts,host_cpu", "theme": "dark"}
        clean(browser, node)


FILTERED = """
import("/static/filter.js").then(({ Filter }) => {
  const [filters, devices, processes] = arguments;
  const kept = (text) => {
    const filter = new Filter(text);
    return devices.filter((device) => filter.device(device, processes.filter((one) => one.device === device.key))).map(({ key }) => key);
  };
  const deviceOf = (process) => devices.find(({ key }) => key === process.device);
  const held = (text) => processes.filter((one) => new Filter(text).process(one, deviceOf(one))).map(({ pid }) => pid);
  arguments[3]([filters.map(kept), filters.map(held), new Filter("size=1").error]);
});
"""
USER = getpass.getuser()
FILTERS = (
    *("util<50", "gpu%>=80", "mem>1.5", "mem>1.5GiB", "mem%!=3", "power<=310W", "temp=51", "state=ok", "state!=critical state~crit"),
    *("name~sim", "vendor=NVIDIA gpu.2", "holder=ann", "holder!=ann", "uuid=x", "kind=gpu util>60 note~x", "gpu.1", "GPU- nvidia"),
    *(f"user={USER}", f"user!={USER}", f"user~{USER[:2].upper()} util<80", "user=nobody", USER),
)
PROCESS_FILTERS = (
    *(
        "pid>1",
        f"pid={os.getpid()}",
        "pid!=1",
        f"user={USER} program~py",
        f"user!={USER}",
        "device=gpu.1",
        "device!=gpu.1",
        "holder=x",
        "type=compute",
    ),
    *("mem>=3G", "mem<3", "gpu%>=0", "cpu%>=0", "cpu%<0", "time>=0", "time<0", "PYTHON", "nothing of the kind"),
)


def test_the_filter_has_the_language_of_watch(page: Browser, node: Node, machine: NvmlSimulator) -> None:
    """Each filter keeps the rows that it keeps in `watch`; a wrong condition is left out, and a message says why."""
    machine.processes(1, [Process(os.getpid(), used=3 << 30)])
    page.until(lambda: page.texts("#processes tbody tr"))
    _, state, snapshot = shown(page, node)
    record = Record(parse(snapshot), {})
    view = node_view(record, processes=ProcessLookup().listing(record.snapshot))
    kept = [[row_name(one) for one in shown_devices(view, Choices(device_filter=text))] for text in FILTERS]
    listed = (state["devices"], state["processes"])
    found, _, error = page.driver.execute_async_script(FILTERED, list(FILTERS), *listed)
    assert dict(zip(FILTERS, found, strict=True)) == dict(zip(FILTERS, kept, strict=True))
    assert 0 < sum(map(len, kept)) < 3 * len(kept)
    held = [[one.pid for one in filtered(view.processes, text, PROCESS_FIELDS, process_fields)] for text in PROCESS_FILTERS]
    _, found, _ = page.driver.execute_async_script(FILTERED, list(PROCESS_FILTERS), *listed)
    assert dict(zip(PROCESS_FILTERS, found, strict=True)) == dict(zip(PROCESS_FILTERS, held, strict=True))
    assert set(error.removeprefix("no field size: use ").split(", ")) == {*DEVICE_FIELDS, *PROCESS_FIELDS}
    page.press("/", *f"user={USER} util<80")
    page.until(lambda: list(rows(page)[1]) == ["gpu.1"])
    assert chosen(page)["show"] == f"user={USER} util<80"
    page.press(" ", *"mem>")
    page.until_text("#shown", "mem>: write a number after >")
    assert list(rows(page)[1]) == ["gpu.1"] and page.one("#filter").get_attribute("aria-invalid") == "true"
    page.press("1")
    page.until_text("#shown", "1 of 3")
    page.press(" ", *"size=1")
    page.until_text("#shown", "no field size: use device, name")
    clean(page, node)


def test_a_graph_as_csv(page: Browser, node: Node, tmp_path: Path) -> None:
    """A column a device with its unit, a line a reading."""
    node.read_on(3)
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.one('figure[data-key="power_watts"] .csv').click()
    (file,) = wait_for(lambda: [*tmp_path.glob("*.csv")], what="no file was saved")
    head, *lines = file.read_text().splitlines()
    assert file.name.endswith("-power_watts.csv")
    assert head == "time,gpu.0 (W),gpu.1 (W),gpu.2 (W)"
    assert len(lines) >= 3
    assert {line.partition(",")[2] for line in lines} == {"300,310,320"}


def test_one_device_in_full(page: Browser, node: Node, machine: NvmlSimulator) -> None:
    """Its numbers in words and units, a graph of each group, its processes, and what is missing by reason."""
    machine.processes(0, [Process(os.getpid(), used=3 << 30, sm=40)])
    machine.gpu[0].set(fan_speed=Ret.NOT_SUPPORTED, clocks_event_reasons=0x4)
    page.press("d", Keys.ENTER)
    pairs = "return Object.fromEntries([...document.querySelectorAll('#detail-groups dl > div')].map((one) => one.innerText.split('\\n')))"
    page.until(lambda: {"Util": "90 %", "Power": "300/700 W", "Temp": "50 °C"}.items() <= page.run(pairs).items())
    page.until(lambda: any("GiB" in words for words in page.texts("#detail-body > table tbody td")), "no process")
    titles = page.texts("#detail-groups h3")
    assert {"Utilisation, %", "Power, W", "Temperature, °C", "Clocks, MHz", "Links", "Errors"} <= set(titles)
    page.until(lambda: "Power 300 W" in page.texts("#detail-groups .entry span"))
    assert any(words.startswith("PCIe ") and "NVLink" in words for words in page.texts("#detail-groups p"))
    page.until(lambda: "throttled by: power cap" in page.texts("#detail-groups p"))  # the words of `watch`
    (missing,) = [words for words in page.texts("#detail-body > ul li") if words.startswith("not supported: ")]
    assert "fan speed" in missing
    assert not page.one("#detail-raw table").is_displayed()  # raw keys are folded
    clean(page, node)


def test_a_machine_without_accelerators(browser: Browser, machine: NvmlSimulator) -> None:
    """Its host in graphs, and what says why there is nothing else."""
    with serving(machine, "--backends", "host,graphcore") as node:
        opened(browser, node)
        browser.until(lambda: "Host CPU, %" in browser.texts("#graphs h3"))
        assert browser.one("#no-devices").is_displayed()
        assert "accelmetrics doctor" in browser.text("#no-devices")
        absent = node.get("api/state")["absent"]["graphcore"]
        assert (browser.texts("#no-devices dt"), browser.texts("#no-devices dd")) == (["graphcore"], [absent])
        assert browser.texts("#graphs h3") == ["Host CPU, %", "Host memory, %", "Host disk, the busiest", "Host network"]
        clean(browser, node)


def test_any_metric_can_be_drawn(page: Browser) -> None:
    """What is chosen stays so when the page is opened again."""
    page.one("#choice summary").click()
    choices = page.texts("#metrics label")
    assert len(choices) > len(page.texts("#graphs h3")) >= 5
    before = page.texts("#graphs h3")
    page.one("#metrics input:not(:checked)").click()
    page.until(lambda: len(page.texts("#graphs h3")) == len(before) + 1)
    page.one("#metrics input:checked").click()
    page.until(lambda: before[0] not in page.texts("#graphs h3"))
    after = page.texts("#graphs h3")
    page.until(lambda: all("-" not in words for words in page.texts("#graphs .readout")), "a graph without values")
    page.driver.refresh()
    page.until(lambda: page.texts("#graphs h3") == after)


def test_a_metric_that_is_chosen_while_the_line_is_down_has_its_history(page: Browser, node: Node) -> None:
    """The answer that did not come is asked for again, from the beginning."""
    node.read_on(4)
    before = page.texts("#graphs h3")
    page.command("Network.enable")
    page.command("Network.setBlockedURLs", urls=["*/api/updates*"])
    page.one("#choice summary").click()
    page.one("#metrics input:not(:checked)").click()
    page.until_text("#banner", "no answer for ")
    page.command("Network.setBlockedURLs", urls=[])
    page.until_text("#connection", "live")
    page.until(lambda: len(page.texts("#graphs h3")) == len(before) + 1)
    labels = page.run("return [...document.querySelectorAll('#graphs canvas')].map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == len(before) + 1
    assert [label for label in labels if "missing" in label and not label.startswith("Host")] == []  # rates begin at the second reading


def test_light_and_dark(page: Browser) -> None:
    """As the system is, or as was chosen, which is kept."""

    def dark() -> bool:
        return bool(page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 128)"))

    assert not dark()
    page.media(prefers_color_scheme="dark")
    page.until(dark)
    page.screenshot("page-dark")
    page.press("t")
    assert page.text("#theme") == "Theme: light"
    assert not dark()
    page.driver.refresh()
    page.until_text("#connection", "live")
    assert not dark()
    page.media(prefers_color_scheme="light")


def test_on_a_phone(browser: Browser, node: Node) -> None:
    """360 pixels are enough for the page: what is wide is folded, or scrolls by itself."""
    opened(browser, node, (360, 740))
    browser.until(lambda: browser.texts("#graphs canvas") != [] or browser.run("return document.querySelector('canvas')"))
    browser.until(lambda: browser.run("return document.documentElement.scrollWidth") == 360)
    browser.screenshot("page-phone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(browser: Browser, machine: NvmlSimulator, scheme: str) -> None:
    """What axe finds, with a finding, a lost device, processes and graphs on the page: nothing."""
    check_axe()
    machine.processes(0, [Process(os.getpid(), used=1 << 30)])
    machine.lose(1)
    with serving(machine) as node:
        browser.media(prefers_color_scheme=scheme)
        opened(browser, node)
        browser.until(lambda: row(browser, "gpu.1")["power"] == "- lost")
        for keys in ((), ("d", Keys.ENTER), (Keys.ESCAPE, "?")):
            browser.press(*keys)
            assert browser.axe() == []
        browser.press(Keys.ESCAPE)
        browser.one("figure .fill").click()
        browser.until(lambda: browser.run("return document.body.dataset.full"))
        assert browser.axe() == []
        browser.media(prefers_color_scheme="light")


def test_without_scripts(browser: Browser, node: Node) -> None:
    """The page leads to tables that the server writes."""
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(node.url)
    browser.until(lambda: browser.driver.current_url.endswith("/plain"))
    cells = [cell.text for cell in browser.driver.find_elements("css selector", "table:first-of-type tbody tr:first-child > *")]
    assert cells[2] == "90 %"
    assert cells[5] == "50 °C"
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
    clean(browser, node)


def test_who_is_not_signed_in_is_told(browser: Browser, machine: NvmlSimulator, tmp_path: Path) -> None:
    """With the password the page works, also where it stands in the address; when it no longer is right, the page says so."""
    users = tmp_path / "users"
    users.write_text(password_line("ann", "open sesame") + "\n")
    users.chmod(0o600)
    with serving(machine, "--auth", str(users), user="ann:open sesame") as node:
        opened(browser, node, url=node.url.replace("http://", "http://ann:open%20sesame@"))
        assert row(browser, "gpu.0")["temperature"] == "50 °C"
        users.write_text(password_line("ben", "open sesame") + "\n")
        browser.until_text("#banner", "not signed in (401)")


SAID = """
// What a screen reader is told: the changes of every live region, by its id.
window.said = [];
for (const region of document.querySelectorAll("[role=status]")) {
  new MutationObserver(() => window.said.push(region.id)).observe(region, { subtree: true, childList: true, characterData: true });
}
"""
CHANGES = """
window.observer ??= new MutationObserver((records) => { window.changes += records.length; });
window.observer.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
"""


def test_sixty_four_devices(browser: Browser) -> None:
    """A reading in which little moved writes little: what 64 rows have to do does not grow with them. Graphs are bands."""
    with NvmlSimulator(64) as machine:
        for gpu in machine.gpu:
            gpu.set(gpu_util=50, temperature=50, power_mw=300_000, memory_used=1 << 33, ecc_uncorrected_volatile=0)
        with serving(machine) as node:
            opened(browser, node)
            browser.until(lambda: len(rows(browser)[1]) == 64)
            assert "median" in browser.text("#graphs .readout")
            still = changes_of_a_reading(browser)
            for gpu in machine.gpu:
                gpu.set(temperature=Ramp(50, step=1, low=50, high=60))
            moving = changes_of_a_reading(browser)
            assert still < 64  # nothing is written for a row of which nothing has changed,
            assert 64 <= moving <= still + 3 * 64  # and little where one cell has
            machine.lose(63)
            machine.gpu[5].set(gpu_util=51)
            cells = "return [...document.querySelectorAll('#map-cells li')].map((cell) => cell.dataset.key)"
            browser.until(lambda: browser.run(cells)[0] == "gpu.63", "the worst is not first")
            browser.until(lambda: browser.run(cells).index("gpu.5") < browser.run(cells).index("gpu.0"))
            assert browser.texts("#map-cells .cell")[0] == "Xgpu.63 - lost"
            browser.screenshot("page-64")
            clean(browser, node)


def changes_of_a_reading(browser: Browser) -> float:
    """How much is written into the document for a reading: the median of five looks, of which one may bring news or several readings."""
    browser.run(CHANGES)
    counted: list[float] = []
    for _ in range(5):
        before = browser.run("window.changes = 0; return Number(document.querySelector('main').dataset.sequence)")
        browser.until(lambda before=before: rows(browser)[0] > before)  # type: ignore[misc]
        after, changes = browser.run("return [Number(document.querySelector('main').dataset.sequence), window.changes]")
        counted.append(changes / (after - before))
    return median(counted)
