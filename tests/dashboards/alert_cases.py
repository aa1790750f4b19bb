"""Made-up series for the alerts: a machine on which all is well, and for each alert what makes it fire, and what nearly does.

Series are given by the minute, for three hours, as ``promtool`` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MINUTES = 240
"""How long series go on."""

Series = Mapping[str, str | None]
"""Values by series; None for a series that is not there."""


class Case(NamedTuple):
    """A provocation of an alert.

    Attributes:
        alert: Its name.
        at: The minute from which it fires: the one before, nothing does.
        fires: What is otherwise than on the healthy machine, where it fires.
        near: The same where it nearly does, and never fires.
        device: The label ``accelerator`` of what fires.
    """

    alert: str
    at: int
    fires: Series
    near: Series
    device: str = "gpu.1"


def flat(value: float | str) -> str:
    """The same number all the time."""
    return f"{value}+0x{MINUTES}"


def rising(step: float, begin: float = 0) -> str:
    """A counter."""
    return f"{begin}{step:+}x{MINUTES}"


def turned(minute: int, before: float, after: float) -> str:
    """Another number from a minute on."""
    return f"{before}+0x{minute - 1} {after}+0x{MINUTES}"


def grown(minute: int, step: float, after: float) -> str:
    """A counter that changes its pace at a minute."""
    return f"0{step:+}x{minute - 1} {step * minute}{after:+}x{MINUTES}"


def begun(minute: int, values: str) -> str:
    """Series that are not there before a minute."""
    return f"_x{minute} {values}"


def brief(minutes: int, before: float, after: float) -> str:
    """Another number for some minutes from minute 100 on."""
    return f"{before}+0x99 {after}+0x{minutes - 1} {before}+0x{MINUTES}"


def ended(values: str, minute: int = 100) -> str:
    """A series that is not there from a minute on."""
    return f"{values.removesuffix(f'x{MINUTES}')}x{minute - 1} stale"


NODE = 'instance="node-1",job="accelmetrics"'
TRAIN = 'instance="node-1:9401",job="training"'
RANK = f'{TRAIN},node="node-1",rank="0"'
H100S = range(4)
DEVICES = {**{f"gpu.{i}": "NVIDIA H100 80GB HBM3" for i in H100S}, "gpu.4": "AMD Instinct MI300X", "tpu.5": "TPU v5e", "trn.6": "trainium1"}


def device(name: str, accelerator: str, labels: str = "", where: str = NODE) -> str:
    """A series of a device."""
    return f'{name}{{{where},accelerator="{accelerator}",uuid="uuid-{accelerator}"{"," + labels if labels else ""}}}'


def of_node(name: str, labels: str = "", where: str = NODE) -> str:
    """A series of a node, or of a program that trains."""
    return f"{name}{{{where}{',' + labels if labels else ''}}}"


def healthy() -> dict[str, str]:
    """A node with devices of four vendors, in the hands of a job and a pod, and a training on one of them: every series that rules read."""
    made = {
        of_node("up"): flat(1),
        of_node("accelmetrics_up"): flat(1),
        of_node("accelmetrics_devices_expected"): flat(len(DEVICES)),
        of_node("accel_neuron_ecc_errors_total", 'device="0",memory="mem",severity="uncorrected"'): flat(0),
        of_node("accel_neuron_ecc_errors_total", 'device="0",memory="mem",severity="corrected"'): rising(1),
        of_node("accel_finding", 'key="",rule="hot",severity="warning"'): flat(1),
        of_node("up", where=TRAIN): flat(1),
        of_node("accelmetrics_up", where=TRAIN): flat(1),
        of_node("accelmetrics_devices_expected", where=TRAIN): flat(1),
        of_node("training_steps_total", where=RANK): rising(60),
        of_node("training_loss", where=RANK): rising(-0.01, 10),
        of_node("training_eval_loss", where=RANK): flat(1),
        of_node("training_grad_norm", where=RANK): flat(1.5),
        of_node("training_nonfinite_total", 'name="loss"', RANK): flat(0),
        of_node("training_nonfinite_total", 'name="grad_norm"', RANK): rising(1),
        device("accel_up", "gpu.0", where=TRAIN): flat(1),
        device("accel_info", "gpu.0", f'model="{DEVICES["gpu.0"]}"', TRAIN): flat(1),
        device("accel_utilization_ratio", "gpu.0", 'engine="compute"', TRAIN): flat(0.99),
        device("accel_power_watts", "gpu.0", where=TRAIN): flat(650),
        device("accel_power_limit_watts", "gpu.0", where=TRAIN): flat(700),
        device("accel_temperature_margin_celsius", "gpu.0", where=TRAIN): flat(40),
        device("accel_job_info", "gpu.1", 'job_id="42",scheduler="slurm",user="ada"'): flat(1),
        device("accel_pod_info", "gpu.4", 'container="main",namespace="ml",pod="train-0"'): flat(1),
    }
    for source in ("nvidia", "amd", "tpu", "neuron", "host"):
        made[of_node("accelmetrics_collect_success", f'source="{source}"')] = flat(1)
        made[of_node("accelmetrics_collect_last_success_timestamp_seconds", f'source="{source}"')] = rising(60)
    for key, model in DEVICES.items():
        made[device("accel_up", key)] = flat(1)
        made[device("accel_info", key, f'model="{model}"')] = flat(1)
        if key == "trn.6":
            made[device("accel_neuroncore_utilization_ratio", key)] = flat(0.8)
            continue
        made[device("accel_utilization_ratio", key, 'engine="compute"')] = flat(0.95)
        made[device("accel_memory_used_bytes", key)] = flat(60e9)
        made[device("accel_memory_total_bytes", key)] = flat(80e9)
        if key.startswith("gpu"):
            made.update(_gpu(key))
    for index in H100S:
        made.update(_h100(f"gpu.{index}"))
    return made


def _gpu(key: str) -> dict[str, str]:
    made = {
        device("accel_utilization_ratio", key, 'engine="encoder"'): flat(0),
        device("accel_temperature_celsius", key, 'sensor="core"'): flat(71),
        device("accel_temperature_celsius", key, 'sensor="memory"'): flat(93),
        device("accel_temperature_limit_celsius", key, 'limit="slowdown"'): flat(92),
        device("accel_power_watts", key): flat(600),
        device("accel_power_limit_watts", key): flat(700),
        device("accel_energy_joules_total", key): rising(36_000),
        device("accel_clock_hertz", key, 'domain="sm"'): flat(1.9e9),
        device("accel_clock_max_hertz", key, 'domain="sm"'): flat(1.98e9),
        device("accel_pcie_link_width", key): flat(16),
        device("accel_pcie_link_max_width", key): flat(16),
        device("accel_pcie_replays_total", key): rising(1),
        device("accel_ecc_errors_total", key, 'scope="volatile",severity="uncorrected"'): flat(0),
        device("accel_ecc_errors_total", key, 'scope="volatile",severity="corrected"'): rising(1),
    }
    for reason in ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"):
        made[device("accel_throttle_seconds_total", key, f'reason="{reason}"')] = rising(6)
    return made


def _h100(key: str) -> dict[str, str]:
    made = {
        device("accel_ecc_errors_total", key, 'scope="aggregate",severity="uncorrected"'): flat(1),
        device("accel_chip_ecc_errors_total", key, 'scope="volatile",severity="uncorrected"'): flat(0),
        device("accel_chip_ecc_errors_total", key, 'scope="aggregate",severity="uncorrected"'): flat(1),
        device("accel_sram_ecc_errors_total", key, 'error="parity",scope="volatile",severity="uncorrected"'): flat(0),
        device("accel_sram_ecc_errors_total", key, 'error="sec_ded",scope="volatile",severity="uncorrected"'): flat(0),
        device("accel_sram_threshold_exceeded", key): flat(0),
        device("accel_fabric_health", key): flat(1),
        device("accel_fabric_route_unhealthy", key): flat(0),
        device("accel_fabric_degraded_bandwidth", key): flat(0),
        device("accel_fabric_incorrect_configuration", key): flat(1),
        device("accel_row_remap_failure", key): flat(0),
        device("accel_row_remap_pending", key): flat(0),
        device("accel_recovery_action", key): flat(0),
        device("accel_xid_code_errors_total", key, 'code="63"'): flat(1),
        device("accel_link_port_up", key, 'link="0",link_type="nvlink"'): flat(1),
        device("accel_link_port_up", key, 'link="17",link_type="nvlink"'): flat(0),
    }
    for reason in ("hw_slowdown", "hw_power_brake_slowdown"):
        made[device("accel_throttle_seconds_total", key, f'reason="{reason}"')] = rising(6)
    for error, step in (("replay", 0), ("recovery", 0), ("crc", 60)):
        made[device("accel_link_errors_total", key, f'error="{error}",link_type="nvlink"')] = rising(step, 9)
    return made


CORE = device("accel_temperature_celsius", "gpu.1", 'sensor="core"')
AMD_CORE = device("accel_temperature_celsius", "gpu.4", 'sensor="core"')
MARGIN = device("accel_temperature_margin_celsius", "gpu.1")
LIMIT = device("accel_temperature_limit_celsius", "gpu.1", 'limit="slowdown"')
BUSY = device("accel_utilization_ratio", "gpu.1", 'engine="compute"')
CORES_BUSY = device("accel_neuroncore_utilization_ratio", "trn.6")
USED = device("accel_memory_used_bytes", "gpu.1")
CLOCK = device("accel_clock_hertz", "gpu.1", 'domain="sm"')
AMD_CLOCK = device("accel_clock_hertz", "gpu.4", 'domain="sm"')
ENERGY = device("accel_energy_joules_total", "gpu.1")
UP = device("accel_up", "gpu.1")
INFO = device("accel_info", "gpu.1", f'model="{DEVICES["gpu.1"]}"')
JOB = device("accel_job_info", "gpu.1", 'job_id="42",scheduler="slurm",user="ada"')
LAST = of_node("accelmetrics_collect_last_success_timestamp_seconds", 'source="amd"')
SUCCESS = of_node("accelmetrics_collect_success", 'source="amd"')
TRAINS_AT = device("accel_power_watts", "gpu.0", where=TRAIN)
LOSS = of_node("training_loss", where=RANK)
STEPS = of_node("training_steps_total", where=RANK)
NORM = of_node("training_grad_norm", where=RANK)
LOST_LOSSES = of_node("training_nonfinite_total", 'name="loss"', RANK)
NEURON_ECC = of_node("accel_neuron_ecc_errors_total", 'device="0",memory="mem",severity="uncorrected"')
PARTS: Series = {
    series: ended(flat(1))
    for part in ("gpu.1.mig.0", "gpu.1.mig.1", "gpu.1.mig.2")
    for series in (device("accel_up", part), device("accel_info", part, 'parent_uuid="uuid-gpu.1",partition="0"'))
}
"""Partitions that are taken away at minute 100."""
AWAY: Series = {series: ended(values) for series, values in healthy().items() if NODE in series and not series.startswith("up{")}
NOT_FINITE = "10-0.01x99 " + " ".join(["{}"] * 30)


def ecc(scope: str) -> str:
    """The counter of memory errors that could not be corrected."""
    return device("accel_ecc_errors_total", "gpu.1", f'scope="{scope}",severity="uncorrected"')


def chip(scope: str) -> str:
    """The counter of errors of all of the chip's memories that could not be corrected."""
    return device("accel_chip_ecc_errors_total", "gpu.1", f'scope="{scope}",severity="uncorrected"')


def throttle(reason: str, key: str = "gpu.1") -> str:
    """The counter of seconds for which a reason held clocks down."""
    return device("accel_throttle_seconds_total", key, f'reason="{reason}"')


def xid(code: int) -> str:
    """The counter of an Xid's code."""
    return device("accel_xid_code_errors_total", "gpu.1", f'code="{code}"')


def link(error: str) -> str:
    """The counter of a link's errors."""
    return device("accel_link_errors_total", "gpu.1", f'error="{error}",link_type="nvlink"')


def port(number: int) -> str:
    """Whether a link is up."""
    return device("accel_link_port_up", "gpu.1", f'link="{number}",link_type="nvlink"')


def finding(rule: str) -> str:
    """A finding's series."""
    return device("accel_finding", "gpu.1", f'rule="{rule}",severity="warning"')


def own(name: str) -> str:
    """A series of the device that is provoked."""
    return device(name, "gpu.1")


NEW = begun(100, flat(1))
ONE, NODE_AWAY, NO_DEVICE = turned(100, 0, 1), {**AWAY, of_node("up"): turned(100, 1, 0)}, ""

CASES = (
    Case("AccelmetricsDown", 105, NODE_AWAY, {of_node("up"): brief(5, 1, 0)}, NO_DEVICE),
    Case(
        "AccelmetricsDown", 105, {of_node("accelmetrics_up"): turned(100, 1, 0)}, {of_node("up", where=TRAIN): turned(100, 1, 0)}, NO_DEVICE
    ),
    Case(
        "AccelmetricsDown",
        105,
        {'up{instance="node-9",job="monitoring/accelmetrics"}': begun(100, flat(0))},
        {'up{instance="db-1",job="databases"}': flat(0)},
        NO_DEVICE,
    ),
    Case(
        "AccelmetricsDown",
        105,
        {'up{instance="node-9",job="gpus"}': turned(100, 1, 0), 'accelmetrics_up{instance="node-9",job="gpus"}': ended(flat(1))},
        {'up{instance="node-9",job="gpus"}': turned(100, 1, 0)},
        NO_DEVICE,
    ),
    Case(
        "AccelmetricsAbsent",
        15,
        {**dict.fromkeys(healthy()), 'up{instance="db-1",job="databases"}': flat(1)},
        {**dict.fromkeys(healthy()), 'up{instance="node-1",job="monitoring/accelmetrics"}': flat(1)},
        NO_DEVICE,
    ),
    Case("AccelSourceFailing", 110, {SUCCESS: turned(100, 1, 0)}, {SUCCESS: brief(10, 1, 0)}, NO_DEVICE),
    Case("AccelSourceSilent", 106, {LAST: grown(100, 60, 0)}, {LAST: "0+60x99 6000+0x5 6360+60x100"}, NO_DEVICE),
    Case("AccelDeviceDown", 102, {UP: turned(100, 1, 0)}, {UP: brief(2, 1, 0)}),
    Case("AccelDeviceMissing", 102, {INFO: ended(flat(1))}, {INFO: f"1+0x99 stale 1+0x{MINUTES}"}, NO_DEVICE),
    # A device is missing, however many partitions the others have; partitions that are taken away are not.
    Case("AccelDeviceMissing", 102, {**PARTS, INFO: ended(flat(1)), UP: flat(1)}, PARTS, NO_DEVICE),
    Case(
        "AccelDeviceMissing",
        102,
        {series: ended(flat(1)) for series in healthy() if series.startswith("accel_info{") and NODE in series},
        {of_node("accelmetrics_devices_expected"): turned(100, 7, 6), INFO: ended(flat(1))},
        NO_DEVICE,
    ),
    Case("AccelFleetUnhealthy", 110, {UP: ended(flat(1))}, {UP: brief(10, 1, 0)}, NO_DEVICE),
    Case("AccelFleetUnhealthy", 110, {**PARTS, UP: ended(flat(1))}, PARTS, NO_DEVICE),
    Case("AccelHot", 105, {CORE: turned(100, 71, 81)}, {CORE: turned(100, 71, 80)}),
    Case("AccelHot", 105, {AMD_CORE: turned(100, 71, 81)}, {AMD_CORE: brief(5, 71, 81)}, "gpu.4"),
    Case("AccelOverheating", 101, {CORE: turned(100, 71, 86)}, {CORE: turned(100, 71, 85)}),
    Case("AccelNearSlowdown", 102, {LIMIT: turned(100, 92, 75)}, {LIMIT: turned(100, 92, 76)}),
    Case("AccelNearSlowdown", 102, {MARGIN: turned(100, 30, 4)}, {MARGIN: turned(100, 30, 5), LIMIT: turned(100, 92, 75)}),
    Case(
        "AccelThermalThrottling",
        110,
        {throttle("sw_thermal_slowdown"): grown(100, 6, 40)},
        {throttle("sw_thermal_slowdown"): grown(100, 6, 35), throttle("sw_power_cap"): grown(100, 6, 60)},
    ),
    Case(
        "AccelThermalThrottling",
        110,
        {throttle("hw_thermal_slowdown", "gpu.4"): grown(100, 6, 40)},
        {throttle("hw_slowdown"): grown(100, 6, 60), BUSY: flat(0.5)},
        "gpu.4",
    ),
    Case(
        "AccelPowerBrake", 110, {throttle("hw_power_brake_slowdown"): grown(100, 6, 40)}, {throttle("hw_power_brake_slowdown"): rising(35)}
    ),
    Case(
        "AccelPowerCapped",
        142,
        {throttle("sw_power_cap", "gpu.4"): grown(100, 6, 60), AMD_CLOCK: turned(100, 1.9e9, 1.4e9)},
        {throttle("sw_power_cap", "gpu.4"): grown(100, 6, 60), AMD_CLOCK: turned(100, 1.9e9, 1.6e9)},
        "gpu.4",
    ),
    Case("AccelUncorrectableEcc", 100, {ecc("volatile"): ONE}, {ecc("aggregate"): turned(100, 1, 2)}),
    Case("AccelUncorrectableEcc", 100, {NEURON_ECC: ONE}, {}, NO_DEVICE),
    Case("AccelUncorrectableEcc", 100, {chip("volatile"): ONE}, {chip("aggregate"): turned(100, 1, 2)}),
    Case(
        "AccelUncorrectableEcc",
        100,
        {device("accel_sram_ecc_errors_total", "gpu.1", 'error="parity",scope="volatile",severity="uncorrected"'): ONE},
        {device("accel_sram_ecc_errors_total", "gpu.1", 'error="any",scope="volatile",severity="corrected"'): ONE},
    ),
    Case("AccelSramThreshold", 100, {own("accel_sram_threshold_exceeded"): ONE}, {own("accel_row_remap_pending"): ONE}),
    Case("AccelFabricUnhealthy", 101, {own("accel_fabric_route_unhealthy"): ONE}, {own("accel_fabric_route_unhealthy"): brief(1, 0, 1)}),
    Case(
        "AccelFabricUnhealthy",
        101,
        {own("accel_fabric_incorrect_configuration"): turned(100, 1, 4)},
        {own("accel_fabric_health"): turned(100, 1, 3)},
    ),
    Case("AccelFabricUnhealthy", 101, {own("accel_fabric_health"): turned(100, 1, 2)}, {}),
    Case(
        "AccelFabricDegraded", 101, {own("accel_fabric_degraded_bandwidth"): ONE}, {own("accel_fabric_degraded_bandwidth"): brief(1, 0, 1)}
    ),
    Case("AccelRowRemapFailed", 100, {own("accel_row_remap_failure"): ONE}, {own("accel_row_remap_pending"): ONE}),
    Case("AccelRowRemapPending", 100, {own("accel_row_remap_pending"): ONE}, {own("accel_row_remap_failure"): ONE}),
    Case("AccelRecoveryNeeded", 102, {own("accel_recovery_action"): ONE}, {own("accel_recovery_action"): brief(2, 0, 1)}),
    Case("AccelXidCritical", 100, {xid(74): NEW}, {xid(13): NEW, xid(94): NEW, xid(92): NEW}),
    Case("AccelXidCritical", 100, {xid(79): turned(100, 1, 2)}, {xid(79): flat(1)}),
    Case("AccelXidWarning", 100, {xid(94): NEW}, {xid(74): NEW, xid(63): NEW}),
    Case("AccelXidProgram", 100, {xid(31): NEW}, {xid(48): NEW, xid(94): NEW}),
    Case("AccelLinkDown", 102, {port(0): turned(100, 1, 0)}, {port(0): brief(2, 1, 0)}),
    Case("AccelLinkFault", 100, {link("replay"): turned(100, 9, 10)}, {link("crc"): grown(100, 60, 5940)}),
    Case("AccelLinkFault", 105, {link("crc"): grown(100, 60, 6100)}, {}),
    Case(
        "AccelPcieReplays", 109, {own("accel_pcie_replays_total"): grown(100, 1, 10)}, {own("accel_pcie_replays_total"): grown(100, 1, 8)}
    ),
    Case("AccelPcieNarrow", 115, {own("accel_pcie_link_width"): turned(100, 16, 8)}, {own("accel_pcie_link_width"): brief(15, 16, 8)}),
    Case("AccelMemoryFull", 110, {USED: turned(100, 60e9, 73e9)}, {USED: turned(100, 60e9, 72e9)}),
    Case("AccelMemoryLeak", 169, {USED: f"60e9+0x99 60e9+0.1e9x{MINUTES}"}, {USED: f"60e9+0x99 60e9+0.02e9x{MINUTES}"}),
    Case("AccelMemoryLeak", 169, {USED: f"60e9+0x99 60e9+0.1e9x{MINUTES}"}, {USED: f"79.2e9+0.004e9x{MINUTES}"}),
    Case("AccelIdleButHeld", 130, {BUSY: turned(60, 0.95, 0.01)}, {BUSY: turned(60, 0.95, 0.02)}),
    Case("AccelIdleButHeld", 130, {BUSY: turned(60, 0.95, 0), JOB: None}, {BUSY: turned(60, 0.95, 0), JOB: None, USED: flat(0.9e9)}),
    Case("AccelIdleButHeld", 130, {BUSY: turned(60, 0.95, 0), USED: None}, {BUSY: flat(0), USED: None, JOB: ended(flat(1))}),
    Case(
        "AccelIdleButHeld",
        130,
        {CORES_BUSY: turned(60, 0.8, 0), device("accel_job_info", "trn.6", 'job_id="43"'): flat(1)},
        {CORES_BUSY: turned(60, 0.8, 0)},
        "trn.6",
    ),
    Case(
        "AccelStraggler", 110, {CLOCK: turned(100, 1.9e9, 1.7e9)}, {CLOCK: turned(100, 1.9e9, 1.72e9), AMD_CLOCK: turned(100, 1.9e9, 1.0e9)}
    ),
    Case(
        "AccelHang",
        115,
        {TRAINS_AT: turned(100, 650, 200), STEPS: grown(100, 60, 0)},
        {TRAINS_AT: turned(100, 650, 300), STEPS: grown(100, 60, 0)},
        "gpu.0",
    ),
    Case("AccelCounterStuck", 115, {ENERGY: grown(100, 36_000, 0)}, {ENERGY: grown(100, 36_000, 0), own("accel_power_watts"): flat(9)}),
    Case("TrainingLossNotFinite", 101, {LOSS: NOT_FINITE.replace("{}", "NaN")}, {NORM: NOT_FINITE.replace("{}", "NaN")}, NO_DEVICE),
    Case("TrainingLossNotFinite", 101, {LOSS: NOT_FINITE.replace("{}", "-Inf")}, {LOSS: turned(100, 1, 1e30)}, NO_DEVICE),
    Case("TrainingLossNotFinite", 101, {LOST_LOSSES: ONE}, {}, NO_DEVICE),
    Case("TrainingStalled", 120, {STEPS: grown(100, 60, 0)}, {STEPS: grown(100, 60, 0.1)}, NO_DEVICE),
    Case("TrainingLossNotDecreasing", 92, {LOSS: flat(5)}, {LOSS: rising(-0.0002, 5)}, NO_DEVICE),
    Case("TrainingGradientNormHigh", 105, {NORM: turned(100, 1.5, 11)}, {NORM: turned(100, 1.5, 10)}, NO_DEVICE),
    Case("AccelFinding", 100, {finding("loss_spike"): NEW}, {finding("hang"): NEW}),
)
"""Of every alert one at least, but of AccelmetricsRecordingMissing, which asks for other files."""
