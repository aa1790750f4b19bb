"""What programs log, on the page beside the devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from accelmetrics.sampling.node import SHARE_VARIABLE
from accelmetrics.schemas.record import Step
from accelmetrics.views.page.documents import POINTS, READINGS, PageHistory
from tests.sampling.node import job_environment, rank
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.waiting import wait_for
from tests.views.page.browser import AXE, Browser
from tests.views.page.node import Node, serving
from tests.views.page.test_history import reading
from tests.views.page.test_page import clean, opened, over

KEY = "training job 42 of n1"


def step(second: float, node: str = "job 42 of n1", **values: float) -> Step:
    return Step(int(second * 1e9), None, values, 0, node)


def column(history: PageHistory, name: str, since: int = 0) -> list[float | None]:
    """A column of the program; none where it is not there."""
    found = history.columns(since, ["loss", "learning_rate", "step_seconds", "power_watts"])["series"].get(KEY, {})
    return list(found.get(name, []))


def test_the_last_value_is_beside_the_devices_until_the_next() -> None:
    """On their times. A program that logs no more has no value; each program has its columns."""
    history = PageHistory(1.0)
    logged = {
        2: [step(1.5, loss=3.0), step(1.9, loss=2.5, lr=3.21234567e-4)],
        4: [step(4, loss=2.0), step(4, "", loss=9.0)],
        5: [step(5, loss=nan)],
    }
    for second in range(40):
        history.add(second + 1, reading(float(second), **{"0_powerWatts": 300.0}), logged.get(second, ()))
    assert column(history, "loss") == [None, None, 2.5, 2.5, 2.0, *[None] * 35]
    assert column(history, "learning_rate") == [None, None, *[3.21235e-4] * 6, *[None] * 32]
    whole = history.columns(0, ["loss", "power_watts"])
    assert whole["series"]["training "]["loss"] == [*[None] * 4, *[9.0] * 6, *[None] * 30]
    assert whole["series"]["gpu.0"]["power_watts"] == [300.0] * 40
    assert history.training == {
        KEY: {"name": "job 42 of n1", "metrics": ["loss", "learning_rate"]},
        "training ": {"name": "this program", "metrics": ["loss"]},
    }


def test_a_client_gets_what_it_lacks() -> None:
    """Put together, its parts are the whole, with gaps where a value was not finite."""
    history, have, since = PageHistory(1.0), list[float | None](), 0
    for second in range(12):
        history.add(second + 1, reading(float(second)), [step(second, loss=nan if second == 7 else float(second))])
        if second % 2:
            have += column(history, "loss", since)
            since = second + 1
    assert have == column(history, "loss") == [*map(float, range(7)), None, *map(float, range(8, 12))]


def test_a_day_of_training_is_kept_in_stretches() -> None:
    """A long history keeps the greatest loss, and a value that is missing in a stretch is no zero."""
    history = PageHistory(1.0, 86_400.0)
    for second in range(READINGS + 2000):
        logged = [step(second, loss=99.0 if second == 700 else 2.0 + second / 1e6)] if second >= 400 else ()
        history.add(second + 1, reading(float(second)), logged)
    values = column(history, "loss")
    assert len(values) <= POINTS
    assert max(value for value in values if value is not None) == 99.0
    assert min(value for value in values if value is not None) >= 2.0
    assert values[0] is None


def test_a_clock_that_is_set_back_begins_without_programs() -> None:
    """What was logged at a later time is no value of an earlier one."""
    history = PageHistory(1.0)
    history.add(1, reading(1000.0), [step(1000, loss=2.0)])
    history.add(2, reading(10.0))
    assert (history.training, column(history, "loss")) == ({}, [])


def test_programs_that_log_in_turn_do_not_shorten_the_history() -> None:
    """Which of them logged last makes no other columns, so that readings of a long time are still kept in stretches."""
    history = PageHistory(1.0, 86_400.0)
    for second in range(3 * READINGS):
        history.add(second + 1, reading(float(second)), [step(second, f"job {second % 2}", loss=2.0)])
    assert history.columns(0)["times"][0] < 100


@pytest.fixture
def machine() -> Iterator[NvmlSimulator]:
    with NvmlSimulator(2) as simulator:
        for gpu in simulator.gpu:
            gpu.set(gpu_util=90, power_mw=300_000, ecc_uncorrected_volatile=0, energy_mj=Ramp(1e9, rate=300_000))
        yield simulator


TRAINING = """
    import time
    with monitor:
        until(lambda: monitor.channel.file)
        tell("logs")
        for step in range(10**6):
            broken = os.path.exists(os.environ["BREAK"])
            monitor.log(step, loss=float("nan") if broken else 2.5 + step / 10_000, tokens=4096, lr=3e-4)
            time.sleep(0.1)
"""


@pytest.fixture
def node(machine: NvmlSimulator, tmp_path: Path) -> Iterator[Node]:
    """A machine on which a program of a job logs."""
    environment = job_environment(tmp_path, SLURM_JOB_ID="42", BREAK=str(tmp_path / "break"))
    with (
        serving(machine, XDG_RUNTIME_DIR=str(tmp_path)) as served,
        rank(TRAINING, environment, labels={"hostname": "n1", "rank": "0"}) as program,
    ):
        program.told()
        yield served


@pytest.mark.parametrize("job", ["42", ""], ids=["job", "no job"])
def test_programs_that_a_daemon_reads_for_are_heard(machine: NvmlSimulator, tmp_path: Path, job: str) -> None:
    """``serve --share --ui`` reads for them and shows what they log: the value of the same step as theirs, on the times of the devices."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    given = job_environment(tmp_path, **machine.environment(), **{SHARE_VARIABLE: str(shared), "BREAK": "", "SLURM_JOB_ID": job})
    environment = {name: value for name, value in given.items() if value and not name.startswith("MASTER_")} | {"BREAK": ""}
    options = {"backends": ["nvidia", "host"], "metrics": "core", "labels": {"hostname": "n1"}}
    with serving(machine, "--share", str(shared), XDG_RUNTIME_DIR=str(tmp_path)) as node, rank(TRAINING, environment, **options) as program:
        program.told()
        wait_for(lambda: any("tokens_per_joule" in one["metrics"] for one in node.get("api/state")["training"].values()))
        [(key, told)] = node.get("api/state")["training"].items()
        history = node.get("api/history?metrics=loss,tokens_per_joule,power_watts")
    assert told["name"] == ("job 42 of n1" if job else f"pid {program.process.pid} of n1")
    losses = [value for value in history["series"][key]["loss"] if value is not None]
    assert losses == sorted(losses) and losses[0] >= 2.5
    assert len(history["series"][key]["loss"]) == len(history["series"]["gpu.0"]["power_watts"]) == len(history["times"])


@pytest.mark.browser
def test_a_training_is_beside_the_devices(browser: Browser, node: Node, tmp_path: Path) -> None:
    """Loss, step time, tokens a second and per joule in one graph, which can be read, saved, enlarged and linked as the others."""
    opened(browser, node)
    figure = 'figure[data-key="training"]'
    browser.until_text(f"{figure} .readout", "tokens/J")
    shown = re.compile(r"loss 2\.\S+ \(2\.\S+ to 2\.\S+\) +step 0\.\S+ s \(.+\) +tokens/s \d+ \(.+\) +tokens/J [\d.]+ \(.+\)")
    browser.until(lambda: shown.search(browser.text(f"{figure} .readout")), "not all four lines have a value and their range")
    label = browser.run("return document.querySelector(arguments[0]).ariaLabel", f"{figure} canvas")
    assert label.startswith("Training, each line to its own scale. loss: now 2.")
    browser.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return 'data:,'; };"
        "HTMLAnchorElement.prototype.click = () => {};"
    )
    browser.one(f"{figure} .csv").click()
    heading, *lines = browser.until(lambda: browser.run("return window.saved")).splitlines()
    assert heading == "time,loss,step (s),tokens/s,tokens/J"
    assert any(line.split(",")[1].startswith("2.") for line in lines)
    browser.one("#choice summary").click()
    [box] = [box for box in browser.driver.find_elements("css selector", "#metrics label") if box.text.strip() == "Training: learning rate"]
    box.click()
    browser.until_text('figure[data-key="training_learning_rate"] .readout', "job 42 of n1 0.0003")
    browser.one(f"{figure} .fill").click()
    browser.until(lambda: browser.run("return document.body.dataset.full") == "training")
    linked = browser.driver.current_url
    assert "full=training" in linked and "training_learning_rate" in linked
    opened(browser, node, url=linked)
    browser.until(lambda: browser.run("return document.body.dataset.full") == "training")
    browser.press(Keys.ESCAPE)
    browser.until(lambda: browser.run("return document.body.dataset.full ?? ''") == "")
    webdriver.ActionChains(browser.driver).move_to_element(over(browser, "training")).perform()
    browser.until_text(f"{figure} .tip", "tokens/s")
    (tmp_path / "break").touch()
    browser.until_text(f"{figure} .marks", "critical")
    marks = browser.text(f"{figure} .marks")
    assert marks.startswith("▲ ")
    assert marks in browser.run("return document.querySelector(arguments[0]).ariaLabel", f"{figure} canvas")
    assert not AXE.exists() or browser.axe() == []
    browser.screenshot("page-training")
    clean(browser, node)


@pytest.mark.browser
def test_a_program_that_has_ended_is_named_only_where_it_logged(browser: Browser, machine: NvmlSimulator, tmp_path: Path) -> None:
    """Its line stays in the graph; the crosshair over it says whose it was."""
    environment = job_environment(tmp_path, SLURM_JOB_ID="42", BREAK=str(tmp_path / "break"))
    figure = 'figure[data-key="training"]'
    with serving(machine, XDG_RUNTIME_DIR=str(tmp_path)) as node:
        with rank(TRAINING, environment, labels={"hostname": "n1", "rank": "0"}) as program:
            program.told()
            opened(browser, node)
            browser.until_text(f"{figure} .readout", "loss 2.")
            node.read_on(4)
        browser.until(lambda: "loss" not in browser.text(f"{figure} .readout"), "it is still named")
        assert "loss" in browser.run("return document.querySelector(arguments[0]).ariaLabel", f"{figure} canvas")
        browser.run("document.querySelector(arguments[0]).focus()", f"{figure} .plot")
        for _ in range(100):
            browser.press(Keys.ARROW_LEFT)
            if "loss 2." in browser.text(f"{figure} .readout"):
                break
        else:
            raise AssertionError("its values are not named")
