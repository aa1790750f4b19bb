"""Rules: the class, the table of built-in rules, and the selection of rules and their settings.

The engine in :mod:`accelmetrics.monitor.findings` handles windows and limits in the same way for all rules. A third-party package
registers a :class:`~accelmetrics.monitor.rules.Rule` under the entry-point group ``accelmetrics.rules``; users select it by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from accelmetrics.monitor.measures import (
    FABRIC_HEALTH,
    Latest,
    Measure,
    Names,
    counter_rate,
    fabric_health,
    idle_held,
    links_down,
    lost_devices,
    margin,
    memory_growth,
    missing_devices,
    recent_rises,
    recent_xids,
    recovery_needed,
    relative_clock,
    throttled_share,
    unmoved_energy,
)
from accelmetrics.monitor.step_measures import (
    ANY,
    LOSS,
    NORM,
    goodput,
    hang,
    loss_decline,
    loss_spike,
    non_finite,
    norm_jump,
    step_time,
    sustained_norm,
)
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.record import SEVERITIES, Severity
from accelmetrics.schemas.vitals import (
    FULL_MEMORY,
    HOT,
    LOADED,
    MEMORY_PERCENT,
    MEMORY_USED,
    NEAR_SLOWDOWN,
    OVERHEATING,
    POWER,
    POWER_LIMIT,
    SLOWED,
    TEMPERATURE,
    UTILIZATION,
)


class Rule(NamedTuple):
    """A rule about devices or logged numbers.

    Attributes:
        name: Name of the rule.
        severity: Severity of its findings.
        when: The condition in words; ``{limit}`` and the options are replaced by their values.
        measure: Function that is called with the options when a monitor is created. It returns a function that is called with a
            :class:`~accelmetrics.monitor.measures.RuleInput` at every evaluated reading, at most once per second, and returns numbers by
            key: a device's key, ``rank 2``, or an empty text.
        says: Message of a finding; ``{value}``, ``{limit}``, ``{seconds}``, ``{words}`` and the options are replaced by their values.
        advice: Advice for the user.
        above: Limit above which the condition holds.
        below: Limit below which the condition holds. A rule has either ``above`` or ``below``.
        clear: The condition ends when the number is no longer beyond this value; by default the limit.
        seconds: Seconds for which the condition must hold before a finding begins.
        clear_seconds: Seconds for which the condition must not hold before the finding ends.
        needs: Metrics that it reads from each device: a group of names per number, in order of preference.
        logged: Names of logged numbers, one of which it needs; ``*`` for any; empty for a rule about devices.
        vendor: Vendor of the devices that it applies to; empty for all.
        options: Arguments of ``measure``.
    """

    name: str
    severity: Severity
    when: str
    measure: Callable[..., Measure]
    says: str
    advice: str
    above: float | None = None
    below: float | None = None
    clear: float | None = None
    seconds: float = 0.0
    clear_seconds: float = 0.0
    needs: tuple[Names, ...] = ()
    logged: Names = ()
    vendor: str = ""
    options: Mapping[str, Any] = {}

    @property
    def limit(self) -> float:
        """The limit, ``above`` or ``below``."""
        limit = self.below if self.above is None else self.above
        return 0.0 if limit is None else limit

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that a user can change."""
        limit = "below" if self.above is None else "above"
        return ("severity", limit, "clear", "seconds", "clear_seconds", *self.options)

    def with_settings(self, settings: Mapping[str, Any]) -> Rule:
        """Return a copy of the rule with other limits, times or options. If only the limit changes, ``clear`` moves with it.

        Raises:
            UnknownNameError: The rule has no setting with this name; the message suggests the nearest.
            InvalidOptionError: A value is invalid.
        """
        rule = self
        for name, value in settings.items():
            if name not in self.settings:
                raise UnknownNameError(f"setting of the rule {self.name}", name, self.settings)
            if name != "severity" and not isinstance(self.options.get(name), tuple) and not _is_number(value):
                raise InvalidOptionError(f"the rule {self.name!r} is invalid: {name} is {value!r}: it must be a number")
            more = {"options": {**rule.options, name: value}} if name in self.options else {name: value}
            rule = rule._replace(**more)
        if "clear" not in settings and self.clear is not None:
            rule = rule._replace(clear=rule.limit + self.clear - self.limit)
        return checked(rule)


def checked(rule: Rule) -> Rule:
    """Return the rule if it is valid.

    Raises:
        InvalidOptionError: It is invalid; the message explains why.
    """
    numbers = {name: getattr(rule, name) for name in ("above", "below", "clear", "seconds", "clear_seconds")}
    unfit = {name: value for name, value in numbers.items() if value is not None and not _is_number(value)}
    measure: object = rule.measure
    complaints = {
        f"its measure {measure!r} is not callable": not callable(measure),
        "needs is a list of lists of metrics, and logged a list of names: needs=[['powerWatts']], logged=['loss']": not all(
            isinstance(names, (tuple, list)) for names in (rule.needs, *rule.needs, rule.logged)
        ),
        f"severity is {rule.severity!r}: it must be one of {', '.join(SEVERITIES)}": rule.severity not in SEVERITIES,
        "it needs one limit, either above or below": (rule.above is None) == (rule.below is None),
        **{f"{name} is {value!r}: it must be a number": True for name, value in unfit.items()},
    }
    wrong = next((words for words, applies in complaints.items() if applies), "")
    if not wrong and min(rule.seconds, rule.clear_seconds) < 0:
        wrong = "seconds and clear_seconds must not be below 0"
    elif not wrong and rule.clear is not None and (rule.clear > rule.limit if rule.below is None else rule.clear < rule.limit):
        wrong = f"clear is {rule.clear:g}, which is beyond the limit {rule.limit:g}: findings would never end"
    if wrong:
        raise InvalidOptionError(f"the rule {rule.name!r} is invalid: {wrong}")
    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


# Codes that mean a hardware fault, codes that programs usually cause, and codes that report corrected errors.
_XIDS_OF_HARDWARE, _XIDS_OF_PROGRAMS, _XIDS_CORRECTED = (48, 62, 64, 74, 79, 95, 119, 120), (13, 31, 43, 45), (63, 92)
_UNCORRECTED = ("uncorrectedEccErrors", "uncorrectedMemoryErrors", "uncorrectedSramParityErrors", "uncorrectedSramSecDedErrors")
_TO_DRAIN = "Drain the node and reset the GPU. Replace it if the error returns."
_COOL = "Check fans, air flow, inlet temperature, and the power of neighbouring devices."

RULES: tuple[Rule, ...] = (
    # AWS HyperPod's health checks have the same limits: 80 °C for a warning, 85 °C for a critical finding.
    Rule(
        "hot",
        "warning",
        "core above {limit:g} °C",
        Latest,
        "core at {value:.0f} °C, above {limit:g} °C for {seconds:g} s",
        _COOL,
        above=HOT,
        clear=77,
        seconds=300,
        clear_seconds=120,
        needs=(TEMPERATURE,),
        options={"metric": TEMPERATURE},
    ),
    Rule(
        "overheating",
        "critical",
        "core above {limit:g} °C",
        Latest,
        "core at {value:.0f} °C, above {limit:g} °C for {seconds:g} s",
        "Reduce the load before the device slows down or shuts off. " + _COOL,
        above=OVERHEATING,
        clear=82,
        seconds=60,
        clear_seconds=120,
        needs=(TEMPERATURE,),
        options={"metric": TEMPERATURE},
    ),
    # NVSentinel watches the same margin.
    Rule(
        "near_slowdown",
        "warning",
        "core less than {limit:g} K below the temperature at which the device slows down",
        margin,
        "core {value:.0f} K below the temperature at which the device slows down, for {seconds:g} s",
        _COOL,
        below=NEAR_SLOWDOWN,
        clear=8,
        seconds=120,
        clear_seconds=120,
        needs=(TEMPERATURE, ("tempLimit.slowdown", "tempMargin")),
    ),
    # Only for information: some programs reserve all memory at once.
    Rule(
        "memory_full",
        "info",
        "more than {limit:g} % of the memory in use",
        Latest,
        "{value:.0f} % of the memory in use, above {limit:g} % for {seconds:g} s",
        "Normal for programs that reserve all memory. Otherwise, reduce the batch size before an allocation fails.",
        above=FULL_MEMORY,
        clear=85,
        seconds=600,
        clear_seconds=60,
        needs=(MEMORY_PERCENT,),
        options={"metric": MEMORY_PERCENT},
    ),
    # Idle clocks and the software power cap are normal and do not count.
    # gpud has a similar limit: 0.6 events per minute over 10 minutes.
    Rule(
        "throttled",
        "warning",
        "throttled by heat or the power supply for more than {limit:g} % of the last {span:g} s, at a utilisation above {load:g} %",
        throttled_share,
        "throttled by heat or the power supply for {value:.0f} % of the last {span:g} s under load",
        f"Look at the reasons in throttle.…. {_COOL} For a power brake, check the rack's power supply.",
        above=60,
        clear=30,
        needs=(UTILIZATION, SLOWED),
        options={"span": 300.0, "load": float(LOADED)},
    ),
    # Errors before the first reading count too, as far as counters hold them. They expire after an hour.
    Rule(
        "ecc_uncorrected",
        "critical",
        "uncorrected errors in memory, caches or registers, within the last {span:g} s or at the first reading",
        recent_rises,
        "uncorrected errors: {value:.0f} ({words})",
        "Results since then may be wrong: restart from an earlier checkpoint. " + _TO_DRAIN,
        above=0,
        needs=(_UNCORRECTED,),
        # The chip's total contains its memory's errors and, on some drivers, those of its SRAM.
        options={"counters": _UNCORRECTED, "span": 3600.0, "initial": True, "overlapping": True},
    ),
    Rule(
        "sram_threshold",
        "critical",
        "more SRAM errors than the vendor's limit",
        Latest,
        "more SRAM errors than the vendor's limit",
        "Drain the node, and test and replace the GPU.",
        above=0,
        needs=(("sramThresholdExceeded",),),
        vendor="nvidia",
        options={"metric": ("sramThresholdExceeded",)},
    ),
    Rule(
        "remap_pending",
        "warning",
        "memory rows will be replaced by spare rows at the next reset",
        Latest,
        "memory rows will be replaced by spare rows at the next reset",
        "Reset the GPU when its job has ended.",
        above=0,
        needs=(("rowRemapPending",),),
        options={"metric": ("rowRemapPending",)},
    ),
    Rule(
        "remap_failed",
        "critical",
        "a memory row could not be replaced by a spare row",
        Latest,
        "a memory row could not be replaced by a spare row",
        "Drain the node and replace the GPU.",
        above=0,
        needs=(("rowRemapFailure",),),
        options={"metric": ("rowRemapFailure",)},
    ),
    Rule(
        "recovery_needed",
        "critical",
        "the driver requests a reset, a reboot or a drain, or reports that a reset is required",
        recovery_needed,
        "{words}",
        "Drain the node and follow the driver's request: reset the GPU (`nvidia-smi --gpu-reset -i N`), or reboot.",
        above=0,
    ),
    # The groups of codes follow NVIDIA's catalogue. Findings expire, unlike dcgm-exporter's gauge of the last code.
    Rule(
        "xid_hardware",
        "critical",
        "Xid errors that indicate a hardware fault, within the last {span:g} s: {codes}",
        recent_xids,
        "Xid {words}",
        _TO_DRAIN,
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": _XIDS_OF_HARDWARE, "others": False, "span": 3600.0},
    ),
    Rule(
        "xid_program",
        "info",
        "Xid errors that programs usually cause, within the last {span:g} s: {codes}",
        recent_xids,
        "Xid {words}",
        "Usually a bug in the program: run it under compute-sanitizer. If many programs have the error, suspect the GPU.",
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": _XIDS_OF_PROGRAMS, "others": False, "span": 3600.0},
    ),
    Rule(
        "xid",
        "warning",
        "any other Xid error within the last {span:g} s, except corrected errors",
        recent_xids,
        "Xid {words}",
        "Look up the code in NVIDIA's catalogue of Xid errors, and read the kernel log at that time.",
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": (*_XIDS_OF_HARDWARE, *_XIDS_OF_PROGRAMS, *_XIDS_CORRECTED), "others": True, "span": 3600.0},
    ),
    Rule(
        "nvlink_down",
        "critical",
        "fewer NVLinks are up than before, or than on another device of the same product",
        links_down,
        "NVLinks down: {value:.0f}",
        "Collective operations are slow or fail. Drain the node, reset the GPUs and restart the fabric manager.",
        above=0,
        seconds=120,
        clear_seconds=60,
        needs=(("nvlink.{link}.state",),),
        vendor="nvidia",
    ),
    Rule(
        "nvlink_errors",
        "warning",
        "NVLink replays or recoveries within the last {span:g} s",
        recent_rises,
        "NVLink replays and recoveries within {span:g} s: {value:.0f}",
        "A link is failing: reseat the board or its bridge. Drain the node if the errors continue.",
        above=0,
        needs=(("nvlinkRecoveryErrors",),),  # NVLink 5 repeats nothing
        vendor="nvidia",
        options={"counters": ("nvlinkReplayErrors", "nvlinkRecoveryErrors"), "span": 600.0, "initial": False},
    ),
    Rule(
        "fabric_unhealthy",
        "critical",
        "the device cannot use the NVLink fabric: an unhealthy route, no partition, or an incorrect configuration",
        fabric_health,
        "NVLink fabric: {words}",
        "Collective operations fail or hang. Drain the node, and read the fabric manager's log.",
        above=0,
        seconds=30,
        clear_seconds=60,
        needs=(FABRIC_HEALTH,),
        vendor="nvidia",
    ),
    Rule(
        "fabric_degraded",
        "warning",
        "the NVLink fabric has less than its full bandwidth",
        Latest,
        "the NVLink fabric has less than its full bandwidth",
        "Collective operations are slow. Check which NVLinks or switches are down, and drain the node after its job.",
        above=0,
        seconds=30,
        clear_seconds=60,
        needs=(("fabricHealth.degradedBandwidth",),),
        vendor="nvidia",
        options={"metric": ("fabricHealth.degradedBandwidth",)},
    ),
    Rule(
        "nvlink_crc",
        "warning",
        "more than {limit:g} NVLink CRC errors per second",
        counter_rate,
        "NVLink CRC errors per second: {value:.0f}, above {limit:g} for {seconds:g} s",
        "A link is failing: reseat the board or its bridge. Drain the node if the errors continue.",
        above=100,
        clear=10,
        seconds=60,
        clear_seconds=120,
        needs=(("nvlinkCrcErrors",),),
        vendor="nvidia",
        options={"counter": "nvlinkCrcErrors"},
    ),
    Rule(
        "device_lost",
        "critical",
        "the driver reports for more than {limit:g} readings that the device fell off the bus",
        lost_devices,
        "lost: {words}",
        "Read the kernel log (dmesg) and drain the node. If the hardware is intact, a reset or a reboot restores the device.",
        above=2,
        clear=0,
        clear_seconds=60,
    ),
    # HyperPod's agent also compares the number of devices with the expected one.
    Rule(
        "device_missing",
        "critical",
        "a known device has no values and is not lost, or a source does not answer although its hardware is present",
        missing_devices,
        "no values for {seconds:g} s ({words})",
        "Run `accelmetrics doctor` to see the driver's problem.",
        above=0,
        seconds=120,
        clear_seconds=60,
    ),
    # Clusters care: Princeton's cancels jobs whose GPUs are idle for two hours.
    Rule(
        "idle_held",
        "info",
        "utilisation below {limit:g} % while a job or pod holds the device, or while {held_bytes:.0f} bytes of its memory are in use",
        idle_held,
        "utilisation below {limit:g} % for {seconds:g} s while the device is allocated or its memory is in use",
        "Stop the process that holds the device, or find out why the program waits.",
        below=2,
        clear=5,
        seconds=3600,
        clear_seconds=60,
        needs=(UTILIZATION, MEMORY_USED),
        options={"held_bytes": 1e9},
    ),
    # NVRx and Megatron compare ranks by kernel times, with limits of 0.75 and 0.7. Here only clocks are known.
    Rule(
        "straggler",
        "warning",
        "clock below {limit:g} % of the median of at least {least:g} devices of its product and power limit, above {load:g} % utilisation",
        relative_clock,
        "clock at {value:.0f} % of its peers' median, below {limit:g} % for {seconds:g} s",
        "It slows down the whole job: compare its temperature, power limit and throttle reasons with the other devices.",
        below=90,
        clear=95,
        seconds=300,
        clear_seconds=300,
        needs=(UTILIZATION, ("smClock",)),
        options={"load": 90.0, "least": 3},
    ),
    Rule(
        "stuck_counter",
        "warning",
        "the energy counter is unchanged for {readings:g} readings and {limit:g} s at a power above {watts:g} W",
        unmoved_energy,
        "the energy counter is unchanged for {value:.0f} s although the device draws power",
        "Windows, rows and reports compute energy from power; exported counters stay wrong. Reload the driver and report the bug.",
        above=10,
        clear=0,
        needs=(("energyJoules",), POWER),
        options={"watts": 10.0, "readings": 3},
    ),
    Rule(
        "leak",
        "warning",
        "memory use grows steadily over {span:g} s by more than {limit:g} % of the memory per hour, which would fill it within {hours:g} h",
        memory_growth,
        "memory use grows by {value:.1f} % of the memory per hour: full within {hours:g} h",
        "Look for data that the program keeps between steps: losses with their graphs, lists of tensors, growing caches.",
        above=1,
        clear=0.2,
        needs=(MEMORY_PERCENT,),
        options={"span": 3600.0, "parts": 6, "hours": 24.0},
    ),
    # Hugging Face's trainer logs a loss of 0.0 beside a norm that is NaN.
    Rule(
        "non_finite",
        "critical",
        "the loss is NaN or infinite, or 0 with a gradient norm that is; or {norms:g} gradient norms in a row are not finite",
        non_finite,
        "{words}",
        "Restart from an earlier checkpoint. Reduce the learning rate, and look for a division by 0 or an overflow in half precision.",
        above=0,
        logged=(*LOSS, *NORM),
        options={"calm": 100, "norms": 3},
    ),
    Rule(
        "gradient",
        "info",
        "gradient norm above {limit:g} for {steps:g} steps in a row, after the first {warm_up:g}",
        sustained_norm,
        "gradient norm {value:.3g}, above {limit:g} for {steps:g} steps",
        "Clip gradients or reduce the learning rate, unless such norms are normal for your loss.",
        above=10,
        clear=5,
        logged=NORM,
        options={"warm_up": 100, "steps": 10},
    ),
    # Constants of ZClip: a score above 2.5, and a moving average with weight 0.97.
    Rule(
        "gradient_jump",
        "warning",
        "gradient norm over {limit:g} standard deviations above its moving average for {steps:g} steps, or once {times:g} times it",
        norm_jump,
        "gradient norm {value:.1f} standard deviations above its moving average",
        "Check the data of these steps. Clip gradients or reduce the learning rate if the loss rises too.",
        above=2.5,
        clear=1,
        clear_seconds=60,
        logged=NORM,
        options={"weight": 0.97, "usual": 2.5, "warm_up": 100, "steps": 5, "times": 10},
    ),
    # Megatron's SPIKY_LOSS_FACTOR is 10 too. Lightning's SpikeDetection also has a window of 10.
    Rule(
        "loss_spike",
        "warning",
        "loss above {limit:g} times the median of the previous {steps:g}",
        loss_spike,
        "loss is {value:.1f} times the median of the previous {steps:g}",
        "Check the data of these steps. Restart from an earlier checkpoint if the loss stays high.",
        above=10,
        clear=2,
        clear_seconds=60,
        logged=LOSS,
        options={"steps": 10},
    ),
    Rule(
        "loss_not_decreasing",
        "info",
        "the median loss of the last quarter of all steps, at least {least:g}, is less than {limit:g} % below that of the quarter before",
        loss_decline,
        "loss fell by {value:.2f} % from one quarter of the run to the next, less than {limit:g} %",
        "The training has converged or is stuck: look at the evaluation, the learning rate and its schedule.",
        below=0.1,
        clear=1,
        logged=LOSS,
        options={"least": 100, "unsure": 1.0},
    ),
    # NVRx expects a heartbeat every 300 s, and the first one within 1800 s.
    Rule(
        "hang",
        "critical",
        "utilisation from {load:g} % with less than {power:g} % of the power limit, no step for {least:g} s and {times:g} usual step times",
        hang,
        "high utilisation at low power, and {words}",
        "A collective operation may be waiting for a rank: look at the stack of each rank (py-spy dump), and for ranks that have ended.",
        above=1,
        clear=0,
        seconds=60,
        needs=(UTILIZATION, POWER, POWER_LIMIT),
        logged=ANY,
        options={"load": 99.0, "power": 40.0, "least": 300.0, "times": 10, "first": 1800.0},
    ),
    # Google's ml-goodput defines goodput as productive time divided by elapsed time.
    Rule(
        "goodput",
        "info",
        "at their usual pace, the steps would have taken less than {limit:g} % of the last {span:g} s",
        goodput,
        "at their usual pace, the steps would have taken {value:.0f} % of the time, less than {limit:g} %",
        "Find out what takes the rest of the time: data loading, evaluation, checkpoints, restarts.",
        below=50,
        clear=70,
        logged=ANY,
        options={"span": 3600.0},
    ),
    Rule(
        "slow_steps",
        "info",
        "the median time of the last {steps:g} steps is above {limit:g} % of the median of the run",
        step_time,
        "steps take {value:.0f} % of their usual time",
        "Look for slow devices (straggler, throttled) and slow data loading.",
        above=150,
        clear=120,
        logged=ANY,
        options={"steps": 50, "least": 200},
    ),
)
"""The built-in rules, which ``"default"`` selects."""

GROUP = "accelmetrics.rules"
DEFAULT, NONE = "default", "none"
_SETTING = re.compile(r"(?P<rule>[\w-]+)\.(?P<setting>\w+)=(?P<number>\S+)")
BUILT_IN: Mapping[str, Rule] = {rule.name: rule for rule in RULES}

RuleChoice = str | Sequence["str | Rule | Mapping[str, Any]"] | Mapping[str, Any]
"""A selection of rules: see :func:`rules_of`."""


def names() -> tuple[str, ...]:
    """Return the names of all rules: the built-in ones, then the ones of other packages."""
    return plug_ins.names(GROUP, BUILT_IN)


def rule_of(name: str) -> Rule:
    """Return the rule with this name.

    Raises:
        UnknownNameError: There is no rule with this name; the message suggests the nearest.
        InvalidOptionError: The rule is another package's and is invalid.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    with plug_ins.load_errors("rule", GROUP, name):
        found = plug_ins.load("rule", GROUP, {}, name) if name in plug_ins.registered(GROUP) else None
        if found is None:
            raise UnknownNameError("rule", name, (DEFAULT, NONE, *names()))
        if not isinstance(found, Rule):
            raise InvalidOptionError(f"the rule {name!r} is {found!r}: register an accelmetrics.Rule")
    return checked(found)


def rules_of(choice: RuleChoice) -> tuple[Rule, ...]:
    """Return the selected rules.

    Args:
        choice: Items as a comma-separated text or as a sequence. An item is ``default`` (all built-in rules), ``none``, a rule's name,
            ``-`` and a name to leave the rule out, ``hot.above=75`` to change a setting, a :class:`Rule`, or a mapping of names to settings
            (or to None to leave a rule out). If there are only settings and exclusions, they apply to the default rules.

    Raises:
        UnknownNameError: There is no rule or setting with this name; the message suggests the nearest.
        InvalidOptionError: An item or a value is invalid.
    """
    items = list(_items(choice))
    chosen = {name: given for name, given in items if isinstance(given, Rule)}
    if not chosen and NONE not in dict(items):
        chosen = dict(BUILT_IN)
    for name, given in items:
        if isinstance(given, Mapping) and name != NONE:
            chosen[name] = (chosen.get(name) or rule_of(name)).with_settings(given)
    for name, given in items:
        if given is None and name not in chosen:
            rule_of(name)  # raises if there is no rule with this name
        elif given is None:
            del chosen[name]
    return tuple(chosen.values())


def _items(choice: RuleChoice) -> Iterator[tuple[str, Rule | Mapping[str, Any] | None]]:
    """Yield each item's rule name with the rule itself if it is selected, its settings, or None if it is left out."""
    listed: object = choice.split(",") if isinstance(choice, str) else [choice] if isinstance(choice, Mapping) else choice
    for item in listed if isinstance(listed, Iterable) else [listed]:
        word = item.strip() if isinstance(item, str) else None
        if isinstance(item, Rule):
            yield item.name, checked(item)
        elif isinstance(item, Mapping):
            for name, settings in item.items():
                if settings is not None and not isinstance(settings, Mapping):
                    raise InvalidOptionError(f"rules[{name!r}] is {settings!r}: it must be a mapping such as {{'above': 75}}, or None")
                yield name, settings
        elif word is None:
            raise InvalidOptionError(f"rules has {item!r}: use 'default', 'none', names of rules, Rule objects, or mappings of settings")
        elif word == DEFAULT:
            yield from BUILT_IN.items()
        elif word == NONE:
            yield NONE, {}
        elif word.startswith("-"):
            yield word[1:].strip(), None
        elif match := _SETTING.fullmatch(word):
            try:
                yield match["rule"], {match["setting"]: float(match["number"])}
            except ValueError:
                raise InvalidOptionError(f"rules has {word!r}: {match['number']!r} is not a number") from None
        else:
            yield word, rule_of(word)
