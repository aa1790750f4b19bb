"""What several Grafana dashboards share: their choices, their queries, and panels about devices, errors and sources."""

from __future__ import annotations

from scripts.grafana import (
    DEVICE,
    HOT,
    NODE,
    OK,
    WARN,
    Column,
    Json,
    Panel,
    Target,
    about,
    graph,
    of,
    table,
    timeline,
    variable,
)

FLEET, NODE_UID, TRAINING = "accelmetrics-fleet", "accelmetrics-node", "accelmetrics-training"
ID = "job, instance, accelerator, uuid"
SCRAPED = '__name__=~"accelmetrics_up|gpu_utilization_percent"'
"""What each of our endpoints has, in our names or in those of the dialect ``training``."""
DEVICE_LABELS = {"job": "Job", "instance": "Node", "accelerator": "Device"}
HOLDER = "scheduler, job_id, user, namespace, pod"
HOLDER_LABELS = {"scheduler": "Scheduler", "job_id": "Job id", "user": "User", "namespace": "Namespace", "pod": "Pod"}
RATE = "[$__rate_interval]"
SHARE: Json = {"unit": "percentunit", "min": 0, "max": 1}
HOT_STEPS = ((80, WARN), (90, HOT))
FULL_STEPS = ((0.9, WARN), (0.98, HOT))
ANY_STEPS = ((1, HOT),)
PER_NODE, PER_SOURCE = "{{instance}}", "{{instance}} {{source}}"

UP = of("accel_up")
WHOLE = 'accelerator!~".+[.]mig[.].+"'
"""Leaves partitions out, which come and go by command: numbers of a node or a fleet are of whole devices."""
WHOLE_UP = of("accel_up", WHOLE)


def in_both(expr: str, series: str, scaled: str = "", up: str = UP) -> str:
    """Return a query that also answers under a name of the dialect ``training``, in our unit and with our labels of the device.

    Args:
        expr: The query in our names.
        series: The dialect's name.
        scaled: What turns its unit into ours.
        up: The devices that are asked for: the dialect has that series too, with the labels that its others lack.
    """
    named = f'label_replace({series}{{{NODE}}}{scaled}, "accelerator", "gpu.$1", "gpu_index", "([0-9].*)")'
    return f"({expr} or {named} * on (job, instance, accelerator) group_left (uuid) {up} ^ 0)"


_BUSY = '{__name__=~"accel_utilization_ratio|accel_neuroncore_utilization_ratio",engine=~"compute|",'
_OUR_BUSY = f"{_BUSY}{DEVICE}}}"
"""Of every kind of device: cores of Trainium have no engines."""
BUSY = in_both(_OUR_BUSY, "gpu_utilization_percent", " / 100")
WHOLE_BUSY = in_both(f"{_BUSY}{WHOLE},{DEVICE}}}", "gpu_utilization_percent", " / 100", WHOLE_UP)
_OUR_USED = of("accel_memory_used_bytes")
_IN_MIB = " * 1048576"
USED = in_both(f"{_OUR_USED} or sum without (category) ({of('accel_neuroncore_memory_used_bytes')})", "gpu_memory_used_mb", _IN_MIB)
USED_SHARE = (
    f"{in_both(_OUR_USED, 'gpu_memory_used_mb', _IN_MIB)} / {in_both(of('accel_memory_total_bytes'), 'gpu_memory_total_mb', _IN_MIB)}"
)
WHOLE_USED = in_both(of("accel_memory_used_bytes", WHOLE), "gpu_memory_used_mb", _IN_MIB, WHOLE_UP)
WHOLE_TOTAL = in_both(of("accel_memory_total_bytes", WHOLE), "gpu_memory_total_mb", _IN_MIB, WHOLE_UP)
CORE = in_both(of("accel_temperature_celsius", 'sensor="core"'), "gpu_temperature_celsius")
SENSORS = in_both(of("accel_temperature_celsius"), "gpu_temperature_celsius")
POWER = in_both(of("accel_power_watts"), "gpu_power_draw_watts")
FANS = in_both(of("accel_fan_ratio"), "gpu_fan_speed_percent", " / 100")
ENERGY = of("accel_energy_joules_total")
UNCORRECTED = of("accel_ecc_errors_total", 'severity="uncorrected"', 'scope="volatile"')
FINDINGS = of("accel_finding")
HOLDERS = f'{{__name__=~"accel_job_info|accel_pod_info",{DEVICE}}}'
HELD = f"({HOLDERS} or {_OUR_USED} > 1e9)"
UNUSED = f"max_over_time({_OUR_BUSY}[1h]) < 0.02"
KNOWN = f"last_over_time({of('accelmetrics_up', node=True)}[1d])"
"""The nodes that answered within a day: one that is away is still told."""
STATE = (
    f"({of('up', node=True)} and on (job, instance) {KNOWN})"
    f" + on (job, instance) ({of('accelmetrics_up', node=True)} or on (job, instance) 0 * {KNOWN})"
)
STATES = {"0": ("NO ANSWER", HOT), "1": ("nothing read", HOT), "2": ("ok", OK)}
DEVICE_STATES = {"0": ("LOST", HOT), "1": ("ok", OK)}
TO_NODE: Json = {
    "title": "This node",
    "url": f"/d/{NODE_UID}?var-datasource=${{datasource}}&var-job=${{__data.fields.Job}}&var-instance=${{__data.fields.Node}}"
    "&${__url_time_range}",
    "targetBlank": False,
}


def of_device(expr: str) -> str:
    """Return a value for each device that is expected, -1 where there is none."""
    return f"max by ({ID}) ({expr}) or on ({ID}) (0 * max by ({ID}) ({UP}) - 1)"


def or_none(expr: str, there: str) -> str:
    """Return a count, 0 where nothing is counted; nothing where ``there`` is away."""
    return f"{expr} or 0 * count({there})"


def variables(node: bool = False) -> list[Json]:
    """Return the choice of job, node and accelerator; of one node where ``node``."""
    return [
        variable("job", "Job", f"label_values({{{SCRAPED}}}, job)"),
        variable("instance", "Instance", f'label_values({{{SCRAPED},job=~"$job"}}, instance)', many=not node),
        variable("accelerator", "Accelerator", f"label_values(accel_up{{{NODE}}}, accelerator)"),
    ]


def link(title: str, uid: str) -> Json:
    """Return a link to another dashboard at the top of one."""
    return {"type": "link", "title": title, "url": f"/d/{uid}", "icon": "dashboard", "includeVars": True, "keepTime": True, "tags": []}


def devices(size: tuple[int, int] = (24, 12)) -> Panel:
    """Return the table of devices."""
    columns = [
        Column("State", f"max by ({ID}) ({UP})", words=DEVICE_STATES),
        Column("Utilisation", of_device(BUSY), "percentunit", decimals=0),
        Column("Memory", of_device(USED_SHARE), "percentunit", FULL_STEPS, decimals=0),
        Column("Power", of_device(POWER), "watt", decimals=0),
        Column("Limit", of_device(of("accel_power_limit_watts")), "watt", decimals=0),
        Column("Temperature", of_device(CORE), "celsius", HOT_STEPS),
        Column("SM clock", of_device(of("accel_clock_hertz", 'domain="sm"')), "hertz"),
        Column("Held back", of_device(of("accel_throttled")), steps=((1, WARN),)),
        Column("Uncorrected ECC", of_device(UNCORRECTED), steps=ANY_STEPS),
        Column("Last Xid", of_device(of("accel_xid_last_code")), steps=ANY_STEPS),
        Column("Processes", of_device(of("accel_processes"))),
        Column("Findings", of_device(f"count by ({ID}) ({FINDINGS})"), steps=((1, WARN),)),
        Column("", f"max by ({ID}, vendor, model) ({of('accel_info')})"),
    ]
    words = "A row for each device that is or was there: LOST where it does not answer, n/a where it does not say."
    labels = {**DEVICE_LABELS, "vendor": "Vendor", "model": "Model"}
    return table("Devices", words, columns, labels, sort=[("State", False), ("Findings", True)], links={"Node": TO_NODE}, size=size)


def errors() -> list[Panel]:
    """Return what went wrong on devices, over time."""

    def risen(metric: str, *matchers: str) -> str:
        return f"sum by ({ID}) (increase({of(metric, *matchers)}{RATE}))"

    return [
        graph(
            "Memory errors",
            about("accel_ecc_errors_total", "Uncorrected ones as they stand, corrected ones in each interval."),
            Target(f"sum by ({ID}) ({UNCORRECTED})", "{{instance}} {{accelerator}} uncorrected"),
            Target(risen("accel_ecc_errors_total", 'severity="corrected"', 'scope="volatile"'), "{{instance}} {{accelerator}} corrected"),
            unit="none",
            min=0,
        ),
        graph(
            "Xid errors",
            "Errors that NVIDIA's driver reports, in each interval.",
            Target(risen("accel_xid_errors_total")),
            unit="none",
            min=0,
        ),
        graph(
            "Link errors",
            about("accel_link_errors_total", "In each interval."),
            Target(f"sum by ({ID}, error) (increase({of('accel_link_errors_total')}{RATE}))", "{{instance}} {{accelerator}} {{error}}"),
            unit="none",
            min=0,
        ),
        graph(
            "PCIe replays",
            "Transmissions over PCIe that were repeated, in each interval.",
            Target(risen("accel_pcie_replays_total")),
            unit="none",
            min=0,
        ),
    ]


def findings() -> Panel:
    """Return the table of what rules find."""
    labels = {"job": "Job", "instance": "Node", "accelerator": "Device", "key": "Of", "severity": "Severity", "rule": "Rule"}
    words = "What the rules of accelmetrics find now: docs/findings.md says when, and what to do. Nodes that are away have none: see Nodes."
    return table(
        "Findings",
        words,
        [Column("", of("accel_finding", node=True))],
        labels,
        sort=[("Severity", False)],
        links={"Node": TO_NODE},
        size=(24, 8),
    )


def sources() -> list[Panel]:
    """Return how drivers, readings and exporters fare."""

    def risen(metric: str, by: str) -> str:
        return f"sum by (job, instance, {by}) (increase({of(metric, node=True)}{RATE}))"

    return [
        timeline(
            "Sources",
            "Whether each source's last reading succeeded.",
            Target(of("accelmetrics_collect_success", node=True), PER_SOURCE),
            {"0": ("fails", HOT), "1": ("ok", OK)},
        ),
        graph(
            "Failures",
            "Readings that a source failed at, wholly or of some devices, and those without an answer in time, in each interval.",
            Target(risen("accelmetrics_collect_errors_total", "source, error"), "{{instance}} {{source}} {{error}}"),
            Target(risen("accelmetrics_collect_timeouts_total", "source"), "{{instance}} {{source}} no answer"),
            unit="none",
            min=0,
        ),
        graph(
            "Duration of readings",
            "How long the last reading of each source took.",
            Target(of("accelmetrics_collect_duration_seconds", node=True), PER_SOURCE),
            unit="s",
            min=0,
        ),
        graph(
            "Readings",
            "Readings in each second, and those that were due and not taken.",
            Target(f"rate({of('accelmetrics_ticks_total', node=True)}{RATE})", "{{instance}} taken"),
            Target(f"rate({of('accelmetrics_missed_ticks_total', node=True)}{RATE})", "{{instance}} missed"),
            unit="none",
            min=0,
        ),
        graph(
            "Lost records",
            "Records in each interval that exporters gave up, or that found their queue full.",
            Target(risen("accelmetrics_export_failed_total", "exporter"), "{{instance}} {{exporter}} failed"),
            Target(risen("accelmetrics_export_dropped_total", "exporter"), "{{instance}} {{exporter}} dropped"),
            unit="none",
            min=0,
        ),
    ]
