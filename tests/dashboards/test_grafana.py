"""The Grafana dashboards: what each query gives on a real Prometheus, and that the JSON is what Grafana imports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest

from tests.cli.shell import environment
from tests.dashboards.site import DEVICES, NODE, PROGRAM, TRAINING, XID, Site, site
from tests.exporters.prometheus_server import PrometheusServer, fetch
from tests.simulators.nvml import NvmlSimulator
from tests.support.network import free_port
from tests.support.programs import Program
from tests.support.waiting import HANG, wait_for

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
TYPES = ROOT / ".cache" / "grafana-schema"
"""Grafana's own types, where ``.ci/run`` installs them."""
Json = dict[str, Any]
DASHBOARDS: dict[str, Json] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTOR = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)?\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}')
INTERVALS = {"$__rate_interval": "4s", "$__range": "60s"}
PANEL_TYPES = {
    "bargauge": "bargauge",
    "gauge": "gauge",
    "heatmap": "heatmap",
    "stat": "stat",
    "state-timeline": "statetimeline",
    "table": "table",
    "timeseries": "timeseries",
}
"""By panel, the folder of its types."""
STANDS = {
    "accel_ecc_errors_total": "what stood at the first scrape counts",
    "accel_remapped_rows_total": "as above",
    "accel_xid_code_errors_total": "a code has no series before its first error",
}
"""Counters that are shown as they stand, and why."""


class Query(NamedTuple):
    """One query of a dashboard, with where it stands."""

    dashboard: str
    panel: Json
    target: Json

    @property
    def name(self) -> str:
        """What tests call it."""
        return f"{self.dashboard}: {self.panel['title']}: {self.target['refId']}"


def panels(document: Json) -> Iterator[Json]:
    """All panels but rows, with those in collapsed rows."""
    for panel in document["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def variables(document: Json) -> dict[str, Json]:
    """The variables whose values a query gives, in their order."""
    return {one["name"]: one for one in document["templating"]["list"] if one["type"] == "query"}


PANELS = [(name, panel) for name, document in DASHBOARDS.items() for panel in panels(document)]
QUERIES = [Query(name, panel, target) for name, panel in PANELS for target in panel["targets"]]
IDS = [query.name for query in QUERIES]


def filled(text: str, values: Mapping[str, str]) -> str:
    """A query as Grafana sends it."""
    for name, value in {**INTERVALS, **{f"${name}": value for name, value in values.items()}}.items():
        text = text.replace(name, value)
    assert "$" not in text.replace("$1", ""), f"a variable that is not known: {text}"
    return text


def values_of(prometheus: PrometheusServer, variable: Json, chosen: Mapping[str, str]) -> list[str]:
    """The values of a variable, asked for as Grafana does."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert found is not None, variable["query"]
    selector, label = found.groups()
    answer = json.loads(fetch(f"{prometheus.url}/api/v1/label/{label}/values?match[]={quote(filled(selector, chosen))}"))
    pattern = variable["regex"].strip("/")
    return [value for value in answer["data"] if re.match(pattern, value)]


def choices(document: Json) -> dict[str, str]:
    """Everything chosen; a variable of one value is the node."""
    return {name: variable.get("allValue", ".+") for name, variable in variables(document).items()}


# On a real Prometheus


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site, when all of its series are there."""
    with site(tmp_path_factory.mktemp("site")) as made:
        ask = made.prometheus.query
        wait_for(lambda: [value for _, value in ask("accelmetrics_up")] == [1, 1])
        wait_for(lambda: len(ask("accel_up")) == DEVICES + 1 and ask("accel_up == 0") and ask("accel_neuroncore_utilization_ratio"))
        wait_for(lambda: ask(f'accel_xid_code_errors_total{{code="{XID}"}}'))
        wait_for(lambda: ask("accel_job_info") and ask("accel_pod_info") and ask("accel_process_memory_bytes"))
        wait_for(lambda: ask("increase(training_step_duration_seconds_count[4s]) > 0"))
        yield made


def answers(prometheus: PrometheusServer, query: Query, chosen: Mapping[str, str]) -> list[tuple[dict[str, str], float]]:
    """Labels and latest number of each series, asked for as the panel asks: of now, or of the last half minute."""
    expr = filled(query.target["expr"], chosen)
    if query.target["instant"]:
        return prometheus.query(expr)
    now = time.time()
    asked = urlencode({"query": expr, "start": now - 30, "end": now, "step": 1})
    answer = json.loads(fetch(f"{prometheus.url}/api/v1/query_range?{asked}"))
    return [(one["metric"], float(one["values"][-1][1])) for one in answer["data"]["result"]]


@pytest.mark.servers
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_gives_data_with_the_labels_of_its_legend(running: Site, name: str) -> None:
    """For all nodes and devices; of a column of a table there is more than "n/a"."""
    chosen = {**choices(DASHBOARDS[name]), "metric": "accel_power_watts"}
    for query in (query for query in QUERIES if query.dashboard == name):
        wait_for(partial(_has_data, running.prometheus, query, chosen), what=f"{query.name}: {query.target['expr']}")


def _has_data(prometheus: PrometheusServer, query: Query, chosen: Mapping[str, str]) -> bool:
    """Whether a query gives a number, and the labels that the panel shows of it."""
    found = answers(prometheus, query, chosen)
    labels = {label for series, _ in found for label in series}
    if query.panel["type"] == "table":
        return any(value != -1 for _, value in found) and bool(labels & _shown(query.panel))
    return bool(found) and set(re.findall(r"\{\{(\w+)\}\}", query.target["legendFormat"])) <= labels


def _shown(panel: Json) -> set[str]:
    """The labels that a table shows."""
    (names,) = [step["options"]["include"]["names"] for step in panel["transformations"] if step["id"] == "filterFieldsByName"]
    return {name for name in names if not name.startswith("Value")}


@pytest.mark.servers
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_values(running: Site, name: str) -> None:
    """Asked for in their order, each with the ones before it chosen."""
    chosen: dict[str, str] = {}
    for variable in variables(DASHBOARDS[name]).values():
        found = values_of(running.prometheus, variable, chosen)
        assert found, variable["name"]
        chosen[variable["name"]] = ".+" if variable["includeAll"] else next(one for one in found if one == running.node)
        if variable["name"] == "job":
            assert found == [NODE, TRAINING]
        if variable["name"] == "accelerator":
            assert {"gpu.0", "gpu.2", "gpu.3", "tpu.8"} <= set(found)
        if variable["name"] == "metric":
            assert {"accel_power_watts", "accel_up"} <= set(found) and "accel_info" not in found


@pytest.mark.servers
def test_a_choice_leaves_the_rest_out(running: Site) -> None:
    """Of one device of one node no query gives another's series."""
    chosen = {"job": NODE, "instance": running.node, "accelerator": "gpu.1"}
    for query in QUERIES:
        if "$accelerator" in query.target["expr"]:
            found = running.prometheus.query(filled(query.target["expr"], {**chosen, "metric": "accel_up"}))
            others = [labels for labels, _ in found if labels.get("accelerator", "gpu.1") != "gpu.1" or labels.get("job", NODE) != NODE]
            assert others == [], query.name


def column(prometheus: PrometheusServer, panel: str, title: str, *by: str) -> dict[tuple[str, ...], float]:
    """What a column of a fleet's table shows, by some labels."""
    (shown,) = [one for name, one in PANELS if name == "fleet" and one["title"] == panel and one["type"] == "table"]
    (organized,) = [step["options"]["renameByName"] for step in shown["transformations"] if step["id"] == "organize"]
    (reference,) = [field.removeprefix("Value #") for field, head in organized.items() if head == title]
    (target,) = [one for one in shown["targets"] if one["refId"] == reference]
    found = prometheus.query(filled(target["expr"], choices(DASHBOARDS["fleet"])))
    return {tuple(labels.get(label, "") for label in by): value for labels, value in found}


@pytest.mark.servers
def test_a_device_that_is_lost_is_a_row_of_its_own(running: Site) -> None:
    """LOST, with "n/a" for what it no longer says; another vendor's device says what it can."""
    of_node = {
        key[1]: value for key, value in column(running.prometheus, "Devices", "State", "job", "accelerator").items() if key[0] == NODE
    }
    assert of_node == {"gpu.0": 1, "gpu.1": 1, "gpu.2": 0, "gpu.3": 1, "tpu.8": 1, "tpu.9": 1, "trn.0": 1, "trn.1": 1}
    utilisation = column(running.prometheus, "Devices", "Utilisation", "job", "accelerator")
    power = column(running.prometheus, "Devices", "Power", "job", "accelerator")
    assert (utilisation[NODE, "gpu.2"], power[NODE, "gpu.2"]) == (-1, -1)
    assert (utilisation[NODE, "gpu.0"], power[NODE, "gpu.0"]) == (0.97, 612)
    assert (utilisation[NODE, "tpu.8"], power[NODE, "tpu.8"]) == (0.995, -1)
    assert (utilisation[NODE, "trn.1"], power[NODE, "trn.1"]) == (0.8025, -1)
    assert power[NODE, "gpu.3"] > 0
    assert column(running.prometheus, "Devices", "Last Xid", "job", "accelerator")[NODE, "gpu.1"] == XID
    assert column(running.prometheus, "Devices", "Uncorrected ECC", "job", "accelerator")[NODE, "gpu.1"] == 2
    nodes = {title: column(running.prometheus, "Nodes", title, "job")[NODE,] for title in ("State", "Answer", "Expected", "Hottest")}
    assert nodes == {"State": 2, "Answer": DEVICES - 1, "Expected": DEVICES, "Hottest": 88}


@pytest.mark.servers
def test_who_holds_what(running: Site) -> None:
    """A job with an idle device, and a pod with a busy one."""
    found = {
        title: column(running.prometheus, "Jobs and pods", title, "job_id", "pod") for title in ("Devices", "Utilisation", "Idle for 1 h")
    }
    assert found == {
        "Devices": {("4711", ""): 1, ("", "train-0"): 1},
        "Utilisation": {("4711", ""): 0, ("", "train-0"): 0.97},
        "Idle for 1 h": {("4711", ""): 1, ("", "train-0"): 0},
    }


@pytest.mark.servers
def test_a_node_that_is_away_is_told(tmp_path: Path) -> None:
    """Its row says NO ANSWER, it is counted, and its devices are still expected; nothing is 0 that is not known."""
    with site(tmp_path) as made:
        expected = filled(_stat("Devices", "B"), choices(DASHBOARDS["fleet"]))
        wait_for(lambda: [value for _, value in made.prometheus.query(expected)] == [DEVICES + 1])
        made.program.kill()
        wait_for(lambda: column(made.prometheus, "Nodes", "State", "job")[NODE,] == 0)
        assert column(made.prometheus, "Nodes", "State", "job")[TRAINING,] == 2
        assert made.prometheus.value(filled(_stat("Nodes without readings", "A"), choices(DASHBOARDS["fleet"]))) == 1
        assert made.prometheus.value(expected) == DEVICES + 1
        wait_for(lambda: column(made.prometheus, "Nodes", "Power", "job")[NODE,] == -1)


def _stat(title: str, reference: str) -> str:
    """A query of a number of the fleet."""
    (panel,) = [one for name, one in PANELS if name == "fleet" and one["title"] == title and one["type"] == "stat"]
    (target,) = [one for one in panel["targets"] if one["refId"] == reference]
    return str(target["expr"])


# As they are written


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_can_be_imported_anywhere(name: str) -> None:
    """No number of a data base, a name of its own, one data source to choose, links to dashboards that exist; panels lie apart."""
    document = DASHBOARDS[name]
    assert (document["id"], document["uid"], document["editable"]) == (None, f"accelmetrics-{name}", False)
    assert (document["schemaVersion"], document["graphTooltip"]) == (39, 1)
    first, *others = document["templating"]["list"]
    assert (first["type"], first["name"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert [one["name"] for one in others][:3] == ["job", "instance", "accelerator"]
    for one in others:
        assert (one["datasource"], one["refresh"]) == (DATASOURCE, 2)
        single = (name, one["name"]) == ("node", "instance")  # one node: of all, a dashboard of everything would be too much
        assert (one["multi"], one["includeAll"], one.get("allValue")) == ((False, False, None) if single else (True, True, ".+"))
    assert set(re.findall(r"/d/([\w-]+)", json.dumps(document))) <= {one["uid"] for one in DASHBOARDS.values()}
    every = [*document["panels"], *(panel for row in document["panels"] for panel in row.get("panels", ()))]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']} ({panel['type']})" for name, panel in PANELS])
def test_a_panel_says_what_it_shows(name: str, panel: Json) -> None:
    """Title, description and unit; its data source can be chosen; no word stands where nothing is known."""
    assert panel["title"] and panel["description"].endswith("."), name
    assert panel["datasource"] == DATASOURCE
    assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
    assert "noValue" not in json.dumps(panel), "an empty panel may mean that nothing is read"
    if panel["type"] == "table":
        titles = {step["matcher"]["options"] for step in panel["fieldConfig"]["overrides"]}
        (heads,) = [step["options"]["renameByName"] for step in panel["transformations"] if step["id"] == "organize"]
        assert titles <= set(heads.values())
    else:
        assert panel["fieldConfig"]["defaults"]["unit"]
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
    assert steps[0]["value"] is None and all(isinstance(step["value"], int | float) for step in steps[1:])


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_a_query_asks_for_what_was_chosen(query: Query) -> None:
    """Every series by job and instance; rates over the interval that fits; counters as rates, but where their height is what counts."""
    expr = query.target["expr"]
    selectors = SELECTOR.findall(expr)
    assert selectors
    assert all('job=~"$job",instance=~"$instance"' in matchers for _, matchers in selectors), expr
    bare = re.sub(r'"[^"]*"', "", SELECTOR.sub("", expr))
    assert not re.search(r"\b(accel|accelmetrics|training)_\w+", bare), "a series without a choice"
    windows = re.findall(r"\b(\w+)\(\w*\{[^}]*\}\[([^\]]+)\]", expr)
    for function, window in windows:
        allowed = {"rate": {"$__rate_interval"}, "increase": {"$__rate_interval", "$__range"}}.get(function)
        assert allowed is None or window in allowed
        assert window != "$__range" or query.target["instant"] or "@ end()" in expr
    if not query.target["instant"]:
        rated = re.findall(r"\b(?:rate|increase)\((\w+)\{", expr)
        counters = {name for name, _ in selectors if name.endswith(("_total", "_bucket", "_count", "_sum"))}
        assert counters - set(rated) <= STANDS.keys()


def test_the_training_has_the_seven_panels() -> None:
    """And gauges that turn at 80 and at 90 °C."""
    found = {panel["title"]: panel for panel in panels(DASHBOARDS["training"])}
    assert list(found) == ["GPU utilisation", "Temperature", "Power", "Memory", "Loss", "Learning rate", "Step duration"]
    assert len(DASHBOARDS["training"]["panels"]) == 7
    steps = found["Temperature"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, 80, 90]
    assert (found["Temperature"]["type"], found["Step duration"]["type"]) == ("gauge", "heatmap")


IN_BOTH = {
    "training": {"GPU utilisation", "Temperature", "Power", "Memory"},
    "node": {"Utilisation", "Power", "Memory", "Memory in use", "Temperature", "Fans"},
    "fleet": {"Utilisation", "Power", "Utilisation by node", "Power by node", "Ten hottest", "Ten that draw most"},
}
"""Panels of GPUs whose first query answers in the names of the dialect ``training`` too."""


@pytest.mark.servers
def test_panels_of_gpus_answer_in_the_names_of_the_dialect_too(tmp_path: Path) -> None:
    """As from a program whose exporter has ``dialect=training``: its devices have rows, and the chosen ones alone are shown."""
    address = f"127.0.0.1:{free_port()}"
    jobs: list[dict[str, object]] = [{"job_name": "training", "static_configs": [{"targets": [address]}]}]
    with (
        NvmlSimulator(gpus=2, profile="rtx4090") as gpus,
        Program(PROGRAM, f"{address}?dialect=training", env=environment(**gpus.environment())),
        PrometheusServer(tmp_path, jobs) as prometheus,
    ):
        for name, titles in IN_BOTH.items():
            asked = [
                query for query in QUERIES if query.dashboard == name and query.panel["title"] in titles and query.target["refId"] == "A"
            ]
            assert {query.panel["title"] for query in asked} == titles
            chosen = choices(DASHBOARDS[name])
            for query in asked:
                wait_for(lambda query=query, chosen=chosen: answers(prometheus, query, chosen), what=query.name)  # type: ignore[misc]
                devices = {series.get("accelerator", "gpu.0") for series, _ in answers(prometheus, query, chosen)}
                assert devices <= {"gpu.0", "gpu.1"}, query.name
                assert not answers(prometheus, query, {**chosen, "accelerator": "gpu.7"}), query.name
        rows = {title: column(prometheus, "Devices", title, "accelerator") for title in ("State", "Utilisation", "Temperature", "Limit")}
        assert rows["State"] == {("gpu.0",): 1, ("gpu.1",): 1}
        assert rows["Limit"] == {("gpu.0",): -1, ("gpu.1",): -1}
        assert min(*rows["Utilisation"].values(), *rows["Temperature"].values()) >= 0


# Grafana's own types

PLAIN = """
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]?: Plain<T[K]> } : T;
"""
"""A type of Grafana's as JSON has it: its enumerations are texts, and what has a default may be left out."""


@pytest.mark.servers
@pytest.mark.parametrize("release", ["10.4.19", "13.2.3"])
@pytest.mark.parametrize("name", DASHBOARDS)
def test_it_is_of_grafanas_own_types(tmp_path: Path, name: str, release: str) -> None:
    """The dashboard, and the options of each panel of its kind, in an old release and in the newest: no key is unknown, no value is off."""
    found, said = _type_check(DASHBOARDS[name], tmp_path / "dashboard.ts", release)
    assert found == 0, said


@pytest.mark.servers
def test_a_key_that_grafana_does_not_know_is_found(tmp_path: Path) -> None:
    """In a dashboard and in a panel's options, and a value that is none of an enumeration."""
    broken = json.loads(json.dumps(DASHBOARDS["training"]))
    broken["panels"][0]["options"]["tooltip"]["mode"] = "some"
    broken["panels"][1]["options"]["showThresholdNames"] = True
    broken["editabel"] = False
    found, said = _type_check(broken, tmp_path / "dashboard.ts", "13.2.3")
    assert found != 0
    assert all(word in said for word in ('"some"', "showThresholdNames", "editabel")), said


def _type_check(document: Json, program: Path, release: str) -> tuple[int, str]:
    """Let TypeScript compare a dashboard with the types of a release of Grafana; its status and words."""
    modules = TYPES / release / "node_modules"
    node = shutil.which("node")
    if node is None or not (modules / "@grafana" / "schema").exists():
        pytest.skip(f"server: @grafana/schema {release} is not installed in {modules.parent}")
    schema = modules / "@grafana" / "schema" / "dist"
    files = {"dashboard": _types(schema, "dashboard/x")}
    files.update((kind, _types(schema, f"composable/{kind}/panelcfg/x")) for kind in PANEL_TYPES.values())
    lines = [f"import type * as {name} from {json.dumps(str(path.with_suffix('').with_suffix('')))};" for name, path in files.items()]
    lines += [PLAIN, f"export const all: Plain<dashboard.Dashboard> = {json.dumps(_without_null(document))};"]
    for number, panel in enumerate(panels(document)):
        kind = PANEL_TYPES[panel["type"]]
        lines.append(f"export const options{number}: Plain<{kind}.Options> = {json.dumps(panel['options'])};")
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom and "FieldConfig" in files[kind].read_text():  # that of tables has none in Grafana 10
            lines.append(f"export const custom{number}: Plain<{kind}.FieldConfig> = {json.dumps(custom)};")
    program.write_text("\n".join(lines))
    (program.parent / "node_modules").symlink_to(modules)
    flags = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler", "--pretty", "false")
    compiler = modules / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, compiler, *flags, program], capture_output=True, text=True, timeout=2 * HANG, cwd=program.parent)
    return done.returncode, done.stdout + done.stderr


def _without_null(part: Any) -> Any:
    """The same without what is null, as which JSON has "from minus infinity": the types have numbers alone."""
    if isinstance(part, dict):
        return {name: _without_null(value) for name, value in part.items() if value is not None}
    return [_without_null(value) for value in part] if isinstance(part, list) else part


def _types(schema: Path, folder: str) -> Path:
    """The file of types in a folder, which lies elsewhere in recent releases."""
    return next(path for layout in ("esm", "types") for path in (schema / layout / "raw" / folder).glob("*types.gen.d.ts"))
