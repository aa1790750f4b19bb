"""Renders the Grafana dashboards in ``deploy/grafana/dashboards``: of a training, of a fleet, of one node.

Units and most descriptions are the catalogue's. Each series is of the chosen job, node and accelerator; what a device does not say is no
line in a graph and "n/a" in a table.
"""

from __future__ import annotations

from scripts.dashboard_panels import (
    ANY_STEPS,
    BUSY,
    CORE,
    ENERGY,
    FANS,
    FLEET,
    HELD,
    HOLDER,
    HOLDER_LABELS,
    HOLDERS,
    HOT_STEPS,
    ID,
    KNOWN,
    NODE_UID,
    PER_NODE,
    POWER,
    RATE,
    SENSORS,
    SHARE,
    STATE,
    STATES,
    TO_NODE,
    TRAINING,
    UNUSED,
    UP,
    USED,
    USED_SHARE,
    WHOLE_BUSY,
    WHOLE_TOTAL,
    WHOLE_UP,
    WHOLE_USED,
    devices,
    errors,
    findings,
    in_both,
    link,
    or_none,
    sources,
    variables,
)
from scripts.grafana import (
    DEVICE,
    HOT,
    NODE,
    OK,
    WARN,
    Column,
    Json,
    Panel,
    Row,
    Target,
    about,
    bars,
    dashboard,
    gauges,
    graph,
    heatmap,
    of,
    stat,
    table,
    timeline,
    variable,
)


def of_node(expr: str) -> str:
    """Return a value for each known node, -1 where there is none."""
    return f"({expr}) or on (job, instance) (0 * max by (job, instance) ({KNOWN}) - 1)"


def of_holder(expr: str, missing: str = "-1") -> str:
    """Return a value for each job and pod, another where there is none."""
    return f"({expr}) or on ({HOLDER}) (0 * count by ({HOLDER}) ({HOLDERS}) + {missing})"


def joined(expr: str) -> str:
    """Return a value of devices under the labels of who holds them."""
    return f"{HOLDERS} * on ({ID}) group_left () max by ({ID}) ({expr})"


def training() -> str:
    """Return the dashboard of a training: its devices, and what the program logs."""
    logged = "{{instance}} {{rank}} {{__name__}}"
    panels = [
        graph(
            "GPU utilisation",
            about("accel_utilization_ratio"),
            Target(BUSY),
            size=(12, 8),
            **SHARE,
        ),
        gauges(
            "Temperature",
            "Of the core: orange from 80 °C, red from 90 °C.",
            Target(CORE, instant=True),
            unit="celsius",
            steps=HOT_STEPS,
            top=100,
            size=(12, 8),
        ),
        graph("Power", "What each device draws.", Target(POWER), unit="watt", min=0),
        graph(
            "Memory",
            about("accel_memory_used_bytes"),
            Target(USED),
            unit="bytes",
            min=0,
        ),
        graph(
            "Loss",
            "Each number that the program logs as loss: loss, train_loss, eval_loss.",
            Target(f'{{__name__=~"training_(.+_)?loss",{NODE}}}', logged),
            unit="none",
            size=(8, 8),
        ),
        graph(
            "Learning rate",
            "Each number that the program logs as learning_rate or lr.",
            Target(f'{{__name__=~"(training_)?(learning_rate|lr)(_.+)?",{NODE}}}', logged),
            unit="none",
            size=(8, 8),
        ),
        heatmap(
            "Step duration",
            "How many steps took how long.",
            f"sum by (le) (increase({of('training_step_duration_seconds_bucket', node=True)}{RATE}))",
            unit="s",
            size=(8, 8),
        ),
    ]
    words = "A training's devices beside its loss. Fed by a Monitor or training() with the exporter prometheus in the program itself."
    return dashboard(
        TRAINING, "accelmetrics / Training", words, [Row("", panels)], variables(), [link("Node", NODE_UID), link("Fleet", FLEET)]
    )


def fleet() -> str:
    """Return the dashboard of all nodes."""
    content = [
        Row("", fleet_numbers()),
        Row("Worst first", [nodes(), devices()]),
        Row("Over time", fleet_graphs()),
        Row("Jobs and pods", holders()),
        Row("Errors", [*errors(), findings()]),
        Row("Sources", sources(), collapsed=True),
    ]
    words = "All nodes: what answers, what is used, held and idle, energy, throttling and errors. A node's name leads to its own dashboard."
    return dashboard(FLEET, "accelmetrics / Fleet", words, content, variables(), [link("Node", NODE_UID), link("Training", TRAINING)])


def fleet_numbers() -> list[Panel]:
    """Return the numbers of all nodes together."""
    expected = f"sum(last_over_time({of('accelmetrics_devices_expected', node=True)}[1d]))"
    return [
        stat(
            "Devices",
            "How many answer, of how many that were seen within a day or that the PCI bus shows.",
            Target(f"sum({WHOLE_UP})", "answer", instant=True),
            Target(expected, "expected", instant=True),
        ),
        stat(
            "Nodes without readings",
            "Nodes of the last day that do not answer, or whose devices give nothing.",
            Target(or_none(f"count(({STATE}) < 2)", KNOWN), instant=True),
            steps=ANY_STEPS,
        ),
        stat("Utilisation", "Mean over all devices.", Target(f"avg({WHOLE_BUSY})", instant=True), unit="percentunit", decimals=0),
        stat("Power", "Of all devices.", Target(f"sum({POWER})", instant=True), unit="watt"),
        stat(
            "Energy",
            "Of all devices that count it, in the chosen time.",
            Target(f"sum(increase({ENERGY}[$__range]))", instant=True),
            unit="joule",
        ),
        held_and_idle(3),
        stat(
            "Held back",
            "Devices whose clocks are held down now.",
            Target(f"sum({of('accel_throttled')})", instant=True),
            steps=((1, WARN),),
        ),
        stat(
            "Findings",
            "What the rules of accelmetrics find now.",
            Target(or_none(f"count({of('accel_finding', node=True)})", KNOWN), instant=True),
            steps=((1, WARN),),
        ),
    ]


def held_and_idle(width: int) -> Panel:
    """Return how many devices are held and not used."""
    return stat(
        "Held and idle",
        "Devices below 2 % for an hour that a job or pod holds, or that have more than 1 GB in use.",
        Target(or_none(f"count({UNUSED} and on ({ID}) {HELD})", UP), instant=True),
        steps=((1, WARN),),
        width=width,
    )


def nodes() -> Panel:
    """Return the table of nodes."""
    by = "by (job, instance)"
    columns = [
        Column("State", STATE, words=STATES),
        Column("Answer", of_node(f"sum {by} ({WHOLE_UP})")),
        Column("Expected", of_node(f"max {by} (last_over_time({of('accelmetrics_devices_expected', node=True)}[1d]))")),
        Column("Utilisation", of_node(f"avg {by} ({WHOLE_BUSY})"), "percentunit", decimals=0),
        Column(
            "Memory",
            of_node(f"sum {by} ({WHOLE_USED}) / sum {by} ({WHOLE_TOTAL})"),
            "percentunit",
            decimals=0,
        ),
        Column("Power", of_node(f"sum {by} ({POWER})"), "watt", decimals=0),
        Column("Hottest", of_node(f"max {by} ({CORE})"), "celsius", HOT_STEPS),
        Column("Findings", of_node(f"count {by} ({of('accel_finding', node=True)})"), steps=((1, WARN),)),
        Column("CPU", of_node(f"avg {by} ({of('accel_host_cpu_ratio', node=True)})"), "percentunit", decimals=0),
    ]
    words = "A row for each node that answered within a day; n/a where nothing is said."
    labels = {"job": "Job", "instance": "Node"}
    return table("Nodes", words, columns, labels, sort=[("State", False), ("Findings", True)], links={"Node": TO_NODE})


def fleet_graphs() -> list[Panel]:
    """Return what the nodes do over time."""
    most_held_back = f"topk(20, avg_over_time({of('accel_throttled')}[$__range] @ end()))"
    return [
        graph("Utilisation by node", "Mean over a node's devices.", Target(f"avg by (job, instance) ({WHOLE_BUSY})", PER_NODE), **SHARE),
        graph("Power by node", "Sum over a node's devices.", Target(f"sum by (job, instance) ({POWER})", PER_NODE), unit="watt", min=0),
        bars("Ten hottest", "Cores, as they are now.", Target(f"topk(10, {CORE})", instant=True), unit="celsius", steps=HOT_STEPS),
        bars("Ten that draw most", "As they are now.", Target(f"topk(10, {POWER})", instant=True), unit="watt"),
        timeline(
            "Held back",
            "When clocks were held down, of the 20 devices that were so most of the chosen time.",
            Target(f"{of('accel_throttled')} and on ({ID}) {most_held_back}"),
            {"0": ("free", OK), "1": ("held back", HOT)},
        ),
        graph(
            "Held back by reason",
            about("accel_throttle_active", "As shares of time, summed over devices: 2 is two devices all the time."),
            Target(f"sum by (reason) (rate({of('accel_throttle_seconds_total')}{RATE}))", "{{reason}}"),
            unit="none",
            min=0,
        ),
        graph(
            "Energy",
            "What nodes used in each interval, of devices that count it.",
            Target(f"sum by (job, instance) (increase({ENERGY}{RATE}))", PER_NODE),
            unit="joule",
            min=0,
        ),
    ]


def holders() -> list[Panel]:
    """Return what jobs and pods do with their devices."""
    by = f"by ({HOLDER})"
    columns = [
        Column("Devices", f"count {by} ({HOLDERS})"),
        Column("Utilisation", of_holder(f"avg {by} ({joined(BUSY)})"), "percentunit", decimals=0),
        Column("Memory", of_holder(f"avg {by} ({joined(USED_SHARE)})"), "percentunit", decimals=0),
        Column("Power", of_holder(f"sum {by} ({joined(POWER)})"), "watt", decimals=0),
        Column("Energy", of_holder(f"sum {by} ({joined(f'increase({ENERGY}[$__range])')})"), "joule"),
        Column("Idle for 1 h", of_holder(f"count {by} ({HOLDERS} and on ({ID}) ({UNUSED}))", "0"), steps=((1, WARN),)),
    ]
    legend = "{{scheduler}} {{job_id}} {{user}} {{namespace}} {{pod}}"
    return [
        table(
            "Jobs and pods",
            "Who holds devices now, and what for. Energy is of the chosen time.",
            columns,
            HOLDER_LABELS,
            sort=[("Idle for 1 h", True)],
        ),
        graph("Utilisation by job and pod", "Mean over its devices.", Target(f"avg {by} ({joined(BUSY)})", legend), size=(24, 8), **SHARE),
    ]


def node() -> str:
    """The dashboard of one node."""
    metric = variable(
        "metric", "Metric", f'label_values({{__name__=~"accel_.+",{NODE},accelerator=~".+"}}, __name__)', regex="/^(?!.*_info$).*$/"
    )
    content = [
        Row("", node_numbers()),
        Row("Devices", [devices((24, 9)), findings(), *node_devices()]),
        Row("Who uses them", users()),
        Row("Links", links()),
        Row("Errors", [*errors(), *repairs()]),
        Row("Host", host()),
        Row("Sources", sources(), collapsed=True),
        Row("Every metric", [every_metric()], collapsed=True),
    ]
    words = "Everything of one node, by device."
    top = [link("Fleet", FLEET), link("Training", TRAINING)]
    return dashboard(NODE_UID, "accelmetrics / Node", words, content, [*variables(node=True), metric], top)


def node_numbers() -> list[Panel]:
    """Return a node's numbers."""
    return [
        stat("Node", "Whether it answers and reads.", Target(STATE, instant=True), width=4, mappings=states(), steps=((2, OK),)),
        stat(
            "Devices",
            "How many answer, of how many that were seen or that the PCI bus shows.",
            Target(f"sum({WHOLE_UP})", "answer", instant=True),
            Target(f"sum({of('accelmetrics_devices_expected', node=True)})", "expected", instant=True),
            width=4,
        ),
        stat("Utilisation", "Mean over its devices.", Target(f"avg({WHOLE_BUSY})", instant=True), unit="percentunit", width=4, decimals=0),
        stat("Power", "Of its devices.", Target(f"sum({POWER})", instant=True), unit="watt", width=4),
        stat(
            "Energy",
            "Of its devices in the chosen time.",
            Target(f"sum(increase({ENERGY}[$__range]))", instant=True),
            unit="joule",
            width=4,
        ),
        held_and_idle(4),
    ]


def states() -> list[Json]:
    """Return the mappings of a node's state."""
    return [{"type": "value", "options": {value: {"text": text, "color": color} for value, (text, color) in STATES.items()}}]


def node_devices() -> list[Panel]:
    """Return each device over time."""
    two = "{{instance}} {{accelerator}}"
    return [
        graph(
            "Utilisation",
            about("accel_utilization_ratio"),
            Target(in_both(of("accel_utilization_ratio"), "gpu_utilization_percent", " / 100"), f"{two} {{{{engine}}}}"),
            Target(of("accel_neuroncore_utilization_ratio")),
            **SHARE,
        ),
        graph("Memory bandwidth", about("accel_memory_bandwidth_ratio"), Target(of("accel_memory_bandwidth_ratio")), **SHARE),
        graph("Memory", about("accel_memory_used_bytes"), Target(USED), unit="bytes", min=0),
        graph("Memory in use", "Share of the device's memory.", Target(USED_SHARE), **SHARE),
        graph(
            "Power",
            "What each device draws, and its limit.",
            Target(POWER),
            Target(of("accel_power_limit_watts"), f"{two} limit"),
            unit="watt",
            min=0,
        ),
        graph(
            "Temperature",
            "By sensor, and where the core slows itself down.",
            Target(SENSORS, f"{two} {{{{sensor}}}}"),
            Target(of("accel_temperature_limit_celsius", 'limit="slowdown"'), f"{two} {{{{limit}}}}"),
            unit="celsius",
        ),
        graph("Clocks", about("accel_clock_hertz"), Target(of("accel_clock_hertz"), f"{two} {{{{domain}}}}"), unit="hertz", min=0),
        graph("Fans", "Share of the fans' highest speed.", Target(FANS), unit="percentunit", min=0),
        timeline(
            "Held back",
            about("accel_throttle_active", "States in which a device idles, or clocks that were set, are left out."),
            Target(
                of("accel_throttle_active", 'reason!~"gpu_idle|applications_clocks_setting|display_clock_setting"'), f"{two} {{{{reason}}}}"
            ),
            {"0": ("free", OK), "1": ("held back", HOT)},
            size=(24, 10),
        ),
    ]


def users() -> list[Panel]:
    """Return who uses a node's devices."""
    labels = {"accelerator": "Device", **HOLDER_LABELS}
    held = [Column("", f"max by ({ID}, {HOLDER}) ({HOLDERS})")]
    process = f"{ID}, pid, type, user"
    information = f"max by ({process}) ({of('accel_process_info')})"

    def of_process(metric: str) -> str:
        there = f"max by ({ID}, pid) ({of(metric)})"
        return f"({information} * on ({ID}, pid) group_left () {there}) or on ({ID}, pid) (0 * {information} - 1)"

    columns = [
        Column("Memory", of_process("accel_process_memory_bytes"), "bytes"),
        Column("Utilisation", of_process("accel_process_utilization_ratio"), "percentunit"),
    ]
    names = {"accelerator": "Device", "pid": "Process", "type": "Type", "user": "User"}
    words = "Those with most memory: serve --processes 20 --process-labels user. Without it there are none here."
    return [
        table("Jobs and pods", "Who holds which device now.", held, labels, size=(12, 8)),
        table("Processes", words, columns, names, sort=[("Memory", True)], size=(12, 8)),
    ]


def links() -> list[Panel]:
    """Return what moves between devices and to the host."""
    two = "{{instance}} {{accelerator}}"
    return [
        graph(
            "PCIe", about("accel_pcie_bytes_per_second"), Target(of("accel_pcie_bytes_per_second"), f"{two} {{{{direction}}}}"), unit="Bps"
        ),
        graph(
            "PCIe width",
            "Lanes in use, as a share of those that the device has. The generation falls when a device idles; the width does not.",
            Target(f"{of('accel_pcie_link_width')} / {of('accel_pcie_link_max_width')}"),
            **SHARE,
        ),
        graph(
            "Links between devices",
            about("accel_link_bytes_total"),
            Target(f"rate({of('accel_link_bytes_total')}{RATE})", f"{two} {{{{link_type}}}} {{{{direction}}}}"),
            unit="Bps",
        ),
        graph(
            "Links that are up",
            "How many of a device's links are up: with serve --per-link.",
            Target(f"sum by ({ID}) ({of('accel_link_port_up')})"),
            unit="none",
            min=0,
        ),
        graph(
            "InfiniBand and RoCE",
            about("accel_infiniband_bytes_total"),
            Target(f"rate({of('accel_infiniband_bytes_total', node=True)}{RATE})", "{{instance}} {{port}} {{direction}}"),
            unit="Bps",
        ),
        graph(
            "Errors of InfiniBand and RoCE",
            about("accel_infiniband_errors_total", "In each interval."),
            Target(f"increase({of('accel_infiniband_errors_total', node=True)}{RATE})", "{{instance}} {{port}} {{error}}"),
            unit="none",
            min=0,
        ),
    ]


def repairs() -> list[Panel]:
    """Return what devices say of their own repair."""
    two = "{{instance}} {{accelerator}}"
    return [
        graph(
            "Remapped rows",
            about("accel_remapped_rows_total"),
            Target(f"sum by ({ID}, severity) ({of('accel_remapped_rows_total')})", f"{two} {{{{severity}}}}"),
            Target(of("accel_row_remap_pending"), f"{two} waits for a reset"),
            Target(of("accel_row_remap_failure"), f"{two} failed"),
            unit="none",
            min=0,
        ),
        graph(
            "Xid errors by code",
            "As many as the program has seen.",
            Target(f"sum by ({ID}, code) ({of('accel_xid_code_errors_total')})", f"{two} {{{{code}}}}"),
            unit="none",
            min=0,
        ),
    ]


def host() -> list[Panel]:
    """Return what the machine around the devices does."""

    def rate(metric: str) -> str:
        return f"rate({of(metric, node=True)}{RATE})"

    return [
        graph("CPU", "Mean over the CPUs.", Target(f"avg by (job, instance) ({of('accel_host_cpu_ratio', node=True)})", PER_NODE), **SHARE),
        graph(
            "Host memory", about("accel_host_memory_used_ratio"), Target(of("accel_host_memory_used_ratio", node=True), PER_NODE), **SHARE
        ),
        graph(
            "Load",
            about("accel_host_load_average"),
            Target(of("accel_host_load_average", node=True), "{{instance}} {{minutes}} min"),
            unit="none",
            min=0,
        ),
        graph(
            "Network",
            about("accel_host_network_bytes_total"),
            Target(rate("accel_host_network_bytes_total"), "{{instance}} {{direction}}"),
            unit="Bps",
        ),
        graph(
            "Disks",
            about("accel_host_disks_bytes_total"),
            Target(rate("accel_host_disks_bytes_total"), "{{instance}} {{direction}}"),
            unit="Bps",
        ),
        graph(
            "File systems",
            about("accel_host_filesystem_used_ratio"),
            Target(of("accel_host_filesystem_used_ratio", node=True), "{{instance}} {{path}}"),
            **SHARE,
        ),
    ]


def every_metric() -> Panel:
    """Return a panel for each metric of the node's devices, whatever their kind: Grafana repeats it."""
    panel = graph(
        "$metric",
        "As it stands, in its base unit: docs/metrics.md says what it is. Counters rise.",
        Target(f'{{__name__="$metric",{DEVICE}}}', "{{instance}} {{accelerator}}"),
        unit="short",
        size=(8, 7),
    )
    panel.body.update(repeat="metric", repeatDirection="h", maxPerRow=3)
    return panel


DASHBOARDS = {"fleet": fleet, "node": node, "training": training}
"""By the name of the file, what renders it."""
