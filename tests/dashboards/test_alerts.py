"""The alerts: when each fires on made-up series, and what stands beside them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from accelmetrics import MetricSelection, Sampler
from accelmetrics.cli.main import root_parser
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.monitor.rules import RULES
from accelmetrics.schemas.record import Record
from tests.dashboards.alert_cases import AWAY, CASES, MINUTES, NODE, NODE_AWAY, Case, Series, ended, flat, healthy, of_node, rising, turned
from tests.exporters.prometheus_server import program
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
ALERTS, RECORDING = ROOT / "deploy" / "prometheus" / "alerts.yml", ROOT / "deploy" / "prometheus" / "recording.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"
SOURCE = "https://github.com/accelmetrics/accelmetrics"
Rule = dict[str, Any]


def groups(path: Path) -> list[dict[str, Any]]:
    """The groups of a file of rules."""
    return list(yaml.safe_load(path.read_text("utf-8"))["groups"])


def rules(path: Path) -> list[Rule]:
    """Its rules."""
    return [rule for group in groups(path) for rule in group["rules"]]


BY_NAME: dict[str, Rule] = {rule["alert"]: rule for rule in rules(ALERTS)}
RECORDED: dict[str, Rule] = {rule["record"]: rule for rule in rules(RECORDING)}
RECORDING_MISSING = "AccelmetricsRecordingMissing"


# On made-up series


def firing(directory: Path, tests: Sequence[Mapping[str, Any]], files: Sequence[Path] = (RECORDING, ALERTS)) -> str:
    """What ``promtool`` says against tests of which alerts fire when; nothing where they are right."""
    document = {
        "rule_files": [str(path) for path in files],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for path in files for group in groups(path)],
        "tests": tests,
    }
    (directory / "tests.yml").write_text(json.dumps(document))
    command = [program("promtool"), "test", "rules", "tests.yml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=4 * HANG)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def given(changed: Series) -> dict[str, Any]:
    """The healthy machine with some of its series changed."""
    series = {**healthy(), **changed}
    return {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items() if values]}


def expected(minute: int, *alerts: tuple[str, str], of: str = "") -> dict[str, Any]:
    """That these alerts fire in a minute, by device, and no others; of one alert's name, or of all."""
    named = f',alertname="{of}"' if of else ""
    samples = [
        {"labels": f'{{alertname="{alert}"{f",accelerator={json.dumps(device)}" if device else ""}}}', "value": 1}
        for alert, device in alerts
    ]
    return {
        "expr": f'group by (alertname, accelerator) (ALERTS{{alertstate="firing"{named}}})',
        "eval_time": f"{minute}m",
        "exp_samples": samples,
    }


@pytest.mark.servers
@pytest.mark.parametrize("case", CASES, ids=[f"{case.alert}-{index}" for index, case in enumerate(CASES)])
def test_an_alert_fires_when_it_should(tmp_path: Path, case: Case) -> None:
    """From one minute on, alone and for the device that is meant; not at all where its limit is not reached, or not for long enough."""
    fires = [expected(case.at - 1), expected(case.at, (case.alert, case.device))]
    near = [expected(minute, of=case.alert) for minute in (case.at - 1, case.at, case.at + 5, case.at + 20)]
    tests = [{**given(case.fires), "promql_expr_test": fires}, {**given(case.near), "promql_expr_test": near}]
    assert firing(tmp_path, tests) == ""


SILENT = NODE_AWAY
STALE: Series = {**AWAY, of_node("accelmetrics_up"): turned(100, 1, 0)}
JOBLESS: Series = {series: ended(flat(1), 90) for series in healthy() if NODE in series and series.startswith(("accel_job", "accel_pod"))}


@pytest.mark.servers
@pytest.mark.parametrize("away", [SILENT, STALE], ids=["away", "nothing read"])
@pytest.mark.parametrize(("held", "severity"), [({}, "critical"), (JOBLESS, "warning")], ids=["jobs", "no jobs"])
def test_the_silence_of_a_node_is_critical_where_jobs_ran(tmp_path: Path, away: Series, held: Series, severity: str) -> None:
    """When it fell silent, and for as long as it is; not where they had ended ten minutes before."""
    expr = 'group by (alertname, severity) (ALERTS{alertname="AccelmetricsDown",alertstate="firing"})'
    sample = {"labels": f'{{alertname="AccelmetricsDown",severity="{severity}"}}', "value": 1}
    tests = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": [sample]} for minute in (105, 120, MINUTES)]
    assert firing(tmp_path, [{**given({**away, **held}), "promql_expr_test": tests}]) == ""


@pytest.mark.servers
@pytest.mark.parametrize("known", [True, False])
def test_a_device_that_is_down_is_named(tmp_path: Path, known: bool) -> None:
    """By what a person in front of the machine looks for, and its last Xid; by its UUID where no more is known."""
    device = {"accelerator": "gpu.1", "uuid": "GPU-1", "job": "accelmetrics", "instance": "n1:22235"}

    def series(name: str, values: str, **labels: str) -> dict[str, str]:
        return {
            "series": f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in (device | labels).items())}}}",
            "values": values,
        }

    made = [series("accel_up", flat(0))]
    if known:
        made += [
            series("accel_info", flat(1), model="H100", pci_bus_id="0000:10:00.0", serial="165"),
            series("accel_xid_last_code", flat(79)),
        ]
    rule, (before, after) = BY_NAME["AccelDeviceDown"], ("H100, PCI address 0000:10:00.0, serial number 165, ", "; its last Xid is 79")
    description = (
        f"{before if known else ''}GPU-1 gives nothing{after if known else ''}. Its last values are not served. "
        "Drain the node, then reset the device or reboot."
    )
    said = {"summary": "n1:22235 gpu.1 is lost or hung", "description": description, "runbook_url": rule["annotations"]["runbook_url"]}
    alert = {"exp_labels": {**device, "severity": "critical"}, "exp_annotations": said}
    test = {"eval_time": "5m", "alertname": "AccelDeviceDown", "exp_alerts": [alert]}
    assert firing(tmp_path, [{"interval": "1m", "input_series": made, "alert_rule_test": [test]}]) == ""


@pytest.mark.servers
def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """Alerts without the recording rules that they need."""
    test = {**given({}), "promql_expr_test": [expected(14), expected(15, (RECORDING_MISSING, ""))]}
    assert firing(tmp_path, [test], [ALERTS]) == ""


@pytest.mark.servers
def test_a_healthy_machine_raises_nothing(tmp_path: Path) -> None:
    """Devices of four vendors with every series that rules read, for four hours."""
    quiet = [expected(minute) for minute in (1, 5, 30, 60, 120, 180, MINUTES)]
    assert firing(tmp_path, [{**given({}), "promql_expr_test": quiet}]) == ""
    names = {series.partition("{")[0] for series in healthy()}
    assert read() <= names | set(RECORDED), "series that no healthy machine has here"


@pytest.mark.servers
def test_a_whole_page_raises_nothing(tmp_path: Path) -> None:
    """All that the endpoint says of two H100s that work: no series among them is taken for an error."""
    with NvmlSimulator(gpus=2, profile="h100") as simulator:
        simulator.load()
        simulator.gpu[1].set(ecc_uncorrected_volatile=0)
        with Sampler(["nvidia"], timeout=HANG) as sampler:
            cache = ScrapeCache("prometheus", max_age=HANG)
            cache.take(Record(sampler.sample()))
    page = [line.rpartition(" ") for line in cache.metrics().decode().splitlines() if not line.startswith("#")]
    series = {of_node(name.partition("{")[0], name.partition("{")[2].rstrip("}")): _going_on(name, value) for name, _, value in page}
    quiet = {"interval": "1m", "promql_expr_test": [expected(minute) for minute in (1, 30, 60, 120, MINUTES)]}
    given = [{"series": name, "values": values} for name, values in series.items()]
    assert len(given) > 150
    assert firing(tmp_path, [{**quiet, "input_series": given}]) == ""


def _going_on(name: str, value: str) -> str:
    """A series' values when all is well: what counts joules goes on, what counts errors does not, and each source has just been read."""
    if "timestamp" in name:
        return rising(60)
    return rising(36_000, float(value)) if name.startswith("accel_energy") else flat(value)


def read() -> set[str]:
    """The series that rules read, by name."""
    expressions = " ".join(re.sub(r'"[^"]*"', "", rule["expr"]) for rule in [*BY_NAME.values(), *RECORDED.values()])
    return {word for word in re.findall(r"[\w:]+", expressions) if re.match(r"(accel|accelmetrics|training)_|\w+:", word)}


# As they are written


def test_every_alert_has_its_case() -> None:
    """And no case is of an alert that there is not."""
    assert {case.alert for case in CASES} | {RECORDING_MISSING} == set(BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_an_alert_says_what_to_do(name: str) -> None:
    """For how long, how grave, what is the case, what to do, and where more stands."""
    rule = BY_NAME[name]
    assert set(rule) - {"keep_firing_for"} == {"alert", "expr", "for", "labels", "annotations"}
    severity = rule["labels"]["severity"]
    assert severity in {"critical", "warning", "info", "{{ $labels.severity }}"} or name == "AccelmetricsDown"
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["description"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"{SOURCE}/blob/main/docs/runbook.md#{name.lower()}"


@pytest.mark.parametrize("name", BY_NAME)
def test_an_alert_has_its_paragraph(name: str) -> None:
    """Which says what it means, how sure it is and when it is wrong, and ends in a command that there is."""
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK.read_text("utf-8"), re.DOTALL | re.MULTILINE))
    text = sections[name].rstrip()
    assert all(f"**{word}**" in text for word in ("Certainty", "False alarms")), "how certain, and when it is wrong"
    *_, block = re.findall(r"```\n(.*?)\n```", text, re.DOTALL)
    assert text.endswith(f"{block}\n```"), "something stands behind the command"
    known, *arguments = shlex.split(block.splitlines()[-1].removeprefix("$ "), comments=True)
    assert known == "accelmetrics"
    root_parser(whole=True).parse_args(arguments)
    selected = [value for option, value in pairwise(arguments) if option == "--metrics"]
    assert all(MetricSelection(value) for value in selected)


def test_the_runbook_has_no_others() -> None:
    """A paragraph for each alert, in their order."""
    assert re.findall(r"^### (\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE) == list(BY_NAME)


def test_recorded_names_say_of_what() -> None:
    """Of what they are, the metric, how it was reckoned; each is used by an alert, or named in the documentation."""
    used = " ".join(str(rule["expr"]) for rule in [*BY_NAME.values(), *RECORDED.values()])
    documented = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    for name in RECORDED:
        assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9]+", name)
        assert name in used or name in documented, name
        assert f"`{name}`" in documented, name


def test_findings_have_their_alerts() -> None:
    """The page says which; what no other alert covers goes to AccelFinding, which leaves the others out."""
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs" / "findings.md").read_text("utf-8"), re.MULTILINE)
    told = {rule: re.findall(r"\w+", alerts) for rule, alerts in rows}
    assert set(told) == {rule.name for rule in RULES}
    assert {alert for alerts in told.values() for alert in alerts} <= set(BY_NAME)
    (left_out,) = re.findall(r'rule!~"([^"]+)"', BY_NAME["AccelFinding"]["expr"])
    assert set(left_out.split("|")) == {rule for rule, alerts in told.items() if "AccelFinding" not in alerts}


@pytest.mark.parametrize(
    ("alert", "rule", "limit"),
    [
        ("AccelHot", "hot", 1),
        ("AccelOverheating", "overheating", 1),
        ("AccelNearSlowdown", "near_slowdown", 1),
        ("AccelMemoryFull", "memory_full", 0.01),
        ("AccelStraggler", "straggler", 0.01),
        ("AccelIdleButHeld", "idle_held", 0.01),
        ("AccelThermalThrottling", "throttled", 0.01),
        ("TrainingGradientNormHigh", "gradient", 1),
    ],
)
def test_an_alert_has_the_limit_of_its_finding(alert: str, rule: str, limit: float) -> None:
    """Alerts count in ratios, findings in percent."""
    (found,) = [one for one in RULES if one.name == rule]
    bound = found.above if found.above is not None else found.below
    assert bound is not None
    assert re.search(rf"(?<![\d.]){bound * limit:g}(?![\d.])", BY_NAME[alert]["expr"]), BY_NAME[alert]["expr"]


def test_xids_are_those_of_the_findings() -> None:
    """The same codes are the hardware's, and the same a program's."""
    codes = {found.name: {str(code) for code in found.options["codes"]} for found in RULES if "codes" in found.options}
    named = {
        alert: set(re.findall(r"\d+", re.findall(r'code[=!]~"([^"]+)"', BY_NAME[alert]["expr"])[0])) for alert in BY_NAME if "Xid" in alert
    }
    assert named == {"AccelXidCritical": codes["xid_hardware"], "AccelXidProgram": codes["xid_program"], "AccelXidWarning": codes["xid"]}
