"""Metrics of GPUs only: activity under W&B's names, and metrics of vendors' links, fault codes and profiling counters."""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric, field_of

_WORDS = {"tx": "transmit", "rx": "receive"}
"""OpenTelemetry's words for directions."""

ACTIVITY = (
    Metric(
        "gpu.{i}.gpu",
        "%",
        "gauge",
        "Share of the time during which at least one kernel was running.",
        'accel_utilization_ratio{engine="compute"}',
        'hw.gpu.utilization{hw.gpu.task="general"}',
        maximum=100,
        preset="core",
    ),
    Metric(
        "gpu.{i}.memoryReadWriteActivity", "%", "gauge", "The same value as `memory`, under the name that W&B gives it on AMD.", maximum=100
    ),
    Metric(
        "gpu.{i}.memoryOverDrive",
        "%",
        "gauge",
        "By how much the memory clock is raised above its default limit.",
        "accel_memory_overdrive_ratio",
        "accel.memory.overdrive",
    ),
    Metric(
        "gpu.process.{i}.gpu",
        "%",
        "gauge",
        "Share of the time during which kernels of the watched process and its descendants were running.",
        maximum=100,
    ),
)

APPLE = (
    Metric(
        "gpu.{i}.scaledUtilization",
        "%",
        "gauge",
        "Share of the GPU's capacity that was used: the time it was active, weighted by its clock relative to the highest.",
        'accel_utilization_ratio{engine="scaled"}',
        "accel.gpu.utilization.scaled",
        maximum=100,
    ),
    Metric(
        "gpu.{i}.freq",
        "MHz",
        "gauge",
        "Clock of the GPU, averaged over the time it was active.",
        'accel_clock_hertz{domain="gpu"}',
        'accel.clock.frequency{accelmetrics.domain="gpu"}',
        preset="core",
    ),
)

FAULTS = (
    Metric(
        "gpu.{i}.xidErrors",
        "1",
        "counter",
        "Xid errors that the driver has reported since this program began to listen; `serve` adds earlier ones that it knows.",
        "accel_xid_errors_total",
        'hw.errors{hw.type="gpu",error.type="xid"}',
        integer=True,
    ),
    Metric(
        "gpu.{i}.lastXid",
        "1",
        "gauge",
        "Code of the newest Xid error; missing before the first error.",
        "accel_xid_last_code",
        "accel.xid.last_code",
        integer=True,
        minimum=1,
    ),
    Metric(
        "gpu.{i}.xid.{code}.errors",
        "1",
        "counter",
        "Xid errors with this code; missing before the first one.",
        'accel_xid_code_errors_total{code="{code}"}',
        'accel.xid.errors{accelmetrics.code="{code}"}',
        integer=True,
    ),
    Metric(
        "gpu.{i}.recoveryAction",
        "1",
        "gauge",
        "Action that the driver requests to recover the GPU: 0 none, 1 reset it, 2 reboot, 3 drain peer-to-peer traffic, 4 drain and "
        "reset it, 5 recover its IMEX domain, 6 reset its bus, 7 restart the whole system.",
        "accel_recovery_action",
        "accel.recovery.action",
        integer=True,
    ),
)


def _link_bytes(link: str, direction: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.{link}{direction.capitalize()}BytesTotal",
        "By",
        "counter",
        meaning,
        f'accel_link_bytes_total{{link_type="{link}",direction="{direction}"}}',
        f'accel.link.io{{accelmetrics.link_type="{link}",network.io.direction="{_WORDS[direction]}"}}',
        integer=True,
    )


def _link_errors(error: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.nvlink{error.capitalize()}Errors",
        "1",
        "counter",
        meaning,
        f'accel_link_errors_total{{link_type="nvlink",error="{error}"}}',
        f'accel.link.errors{{accelmetrics.link_type="nvlink",error.type="{error}"}}',
        integer=True,
    )


def _port_bytes(direction: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.nvlink.{{link}}.{direction}BytesTotal",
        "By",
        "counter",
        meaning,
        f'accel_link_port_bytes_total{{link_type="nvlink",direction="{direction}",link="{{link}}"}}',
        f'accel.link.port.io{{accelmetrics.link_type="nvlink",network.io.direction="{_WORDS[direction]}",accelmetrics.link="{{link}}"}}',
        integer=True,
        preset="all",
    )


NVLINK = (
    _link_bytes("nvlink", "tx", "Bytes of payload sent over all NVLinks since the driver was loaded."),
    _link_bytes("nvlink", "rx", "Bytes of payload received over all NVLinks since the driver was loaded."),
    _link_errors("crc", "Checksum errors on all NVLinks."),
    _link_errors("replay", "Transmissions over all NVLinks that had to be repeated."),
    _link_errors("recovery", "Times that an NVLink had to be set up again after errors."),
    *(
        Metric(
            f"gpu.{{i}}.nvlinkRecovery{result.capitalize()}",
            "1",
            "counter",
            meaning,
            f'accel_link_recoveries_total{{link_type="nvlink",result="{result}"}}',
            f'accel.link.recoveries{{accelmetrics.link_type="nvlink",accelmetrics.result="{result}"}}',
            integer=True,
            preset="all",
        )
        for result, meaning in (
            ("successes", "Times that an NVLink came up again after errors."),
            ("failures", "Times that an NVLink stayed down after errors."),
        )
    ),
    _link_errors("malformed", "Packets received over all NVLinks that were malformed."),
    _link_errors("overrun", "Packets received over all NVLinks that were discarded because a buffer was full."),
    _link_errors("receive", "Packets received over all NVLinks that had errors."),
    _link_errors("remote", "Packets received over all NVLinks that the other end had marked as bad."),
    _link_errors("header", "Packets received over all NVLinks whose header did not match."),
    _link_errors("integrity", "Times that an NVLink had more local errors than a threshold allows."),
    _link_errors("discard", "Packets with errors that were to be sent over all NVLinks and were discarded."),
    _link_errors("effective", "Errors in packets received over all NVLinks that forward error correction left."),
    _link_errors("symbol", "Symbols received over all NVLinks that were wrong."),
    *(
        Metric(
            f"gpu.{{i}}.nvlink{error.capitalize()}ErrorRatio",
            "1",
            "gauge",
            meaning,
            f'accel_link_bit_error_rate{{link_type="nvlink",error="{error}"}}',
            f'accel.link.bit_error_rate{{accelmetrics.link_type="nvlink",error.type="{error}"}}',
            preset="all",
        )
        for error, meaning in (
            ("effective", "Share of wrong bits that forward error correction left, on the worst NVLink."),
            ("symbol", "Share of wrong bits before they were corrected, on the worst NVLink."),
        )
    ),
    *(
        Metric(
            f"gpu.{{i}}.nvlinkFec.bin{number}",
            "1",
            "counter",
            f"Count of all NVLinks in bin {number} of the histogram of symbol errors that forward error correction corrected.",
            f'accel_link_fec_total{{link_type="nvlink",bin="{number}"}}',
            f'accel.link.fec{{accelmetrics.link_type="nvlink",accelmetrics.bin="{number}"}}',
            integer=True,
            preset="all",
        )
        for number in range(16)
    ),
    Metric(
        "gpu.{i}.nvlink.{link}.state",
        "1",
        "gauge",
        "1 while the link is up, else 0.",
        'accel_link_port_up{link_type="nvlink",link="{link}"}',
        'accel.link.port.up{accelmetrics.link_type="nvlink",accelmetrics.link="{link}"}',
        integer=True,
        maximum=1,
        preset="all",
    ),
    _port_bytes("tx", "Bytes of payload sent over the link since the driver was loaded."),
    _port_bytes("rx", "Bytes of payload received over the link since the driver was loaded."),
    Metric(
        "gpu.{i}.fabricState",
        "1",
        "gauge",
        "Progress of joining the fabric of NVLink switches: 1 not begun, 2 in progress, 3 done.",
        "accel_fabric_state",
        "accel.fabric.state",
        integer=True,
        minimum=1,
        maximum=3,
    ),
    Metric(
        "gpu.{i}.fabricHealthSummary",
        "1",
        "gauge",
        "Health of the connection to the fabric of NVLink switches: 1 healthy, 2 unhealthy, 3 less than full capacity.",
        "accel_fabric_health",
        "accel.fabric.health",
        integer=True,
        minimum=1,
        maximum=3,
    ),
    Metric(
        "gpu.{i}.fabricHealthMask",
        "1",
        "gauge",
        "The driver's whole health report about that connection, as one number; `fabricHealth` has its parts.",
        "accel_fabric_health_mask",
        "accel.fabric.health.mask",
        integer=True,
        preset="all",
    ),
    *(
        Metric(
            f"gpu.{{i}}.fabricHealth.{name}",
            "1",
            "gauge",
            f"1 while {meaning}, else 0.",
            f"accel_fabric_{field_of(name)}",
            f"accel.fabric.{field_of(name)}",
            integer=True,
            maximum=1,
            preset="all",
        )
        for name, meaning in (
            ("degradedBandwidth", "the device has less than its full bandwidth to the fabric"),
            ("routeRecovery", "one of its routes through the fabric is being recovered"),
            ("routeUnhealthy", "one of its routes through the fabric is unhealthy"),
            ("accessTimeoutRecovery", "it recovers from an access over the fabric that timed out"),
        )
    ),
    Metric(
        "gpu.{i}.fabricHealth.incorrectConfiguration",
        "1",
        "gauge",
        "Error of its configuration in the fabric: 1 none, 2 the system's GUID, 3 the chassis' serial number, 4 it has no "
        "partition, 5 too few NVLinks, 6 its firmware, 7 its location, 8 the state of the device.",
        "accel_fabric_incorrect_configuration",
        "accel.fabric.incorrect_configuration",
        integer=True,
        minimum=1,
        maximum=15,
        preset="all",
    ),
)

XGMI = (
    _link_bytes("xgmi", "tx", "Bytes written to other devices over all xGMI links since the driver was loaded."),
    _link_bytes("xgmi", "rx", "Bytes read from other devices over all xGMI links since the driver was loaded."),
)

MODES = (
    *(
        Metric(
            f"gpu.{{i}}.migMode{name}",
            "1",
            "gauge",
            f"1 if the GPU is in MIG mode {when}, whether or not it has instances, else 0.",
            f'accel_mig_mode{{state="{state}"}}',
            f'accel.mig.mode{{accelmetrics.state="{state}"}}',
            integer=True,
            maximum=1,
            preset="all",
        )
        for name, state, when in (("", "current", "now"), ("Pending", "pending", "after the next reset"))
    ),
    Metric(
        "gpu.{i}.computeMode",
        "1",
        "gauge",
        "Programs that may compute: 0 any, 1 a single thread (before CUDA 8), 2 none, 3 a single process.",
        "accel_compute_mode",
        "accel.compute.mode",
        integer=True,
        maximum=3,
        preset="all",
    ),
    Metric(
        "gpu.{i}.persistenceMode",
        "1",
        "gauge",
        "1 if the driver keeps the GPU initialised while no program uses it, else 0.",
        "accel_persistence_mode",
        "accel.persistence.mode",
        integer=True,
        maximum=1,
        preset="all",
    ),
    Metric(
        "gpu.{i}.c2cMode",
        "1",
        "gauge",
        "1 if the link between the GPU and its processor (NVLink-C2C) is on, else 0.",
        "accel_c2c_mode",
        "accel.c2c.mode",
        integer=True,
        maximum=1,
        preset="all",
    ),
    Metric(
        "gpu.{i}.c2cLinks",
        "1",
        "gauge",
        "NVLink-C2C links that the GPU has.",
        "accel_c2c_links",
        "accel.c2c.links",
        integer=True,
        preset="all",
    ),
    Metric(
        "gpu.{i}.c2cLinkSpeed",
        "By/s",
        "gauge",
        "Highest speed of an NVLink-C2C link.",
        "accel_c2c_link_bytes_per_second",
        "accel.c2c.link.speed",
        integer=True,
        preset="all",
    ),
)


def _share(name: str, prometheus: str, otel: str, meaning: str) -> Metric:
    return Metric(f"gpu.{{i}}.{name}", "%", "gauge", meaning, prometheus, otel, maximum=100, preset="all")


def _pipe(name: str, pipe: str, meaning: str) -> Metric:
    return _share(name, f'accel_pipe_active_ratio{{pipe="{pipe}"}}', f'accel.pipe.active{{accelmetrics.pipe="{pipe}"}}', meaning)


# Measured between two consecutive readings. A MIG instance has the shares too; they are shares of its GPU instance.
PROFILING = (
    _share(
        "grEngineActive",
        "accel_gr_engine_active_ratio",
        "accel.gr_engine.active",
        "Share of the time during which the graphics and compute engine had work.",
    ),
    _share(
        "smActive",
        "accel_sm_active_ratio",
        "accel.sm.active",
        "Share of the time during which a streaming multiprocessor had work, averaged over all of them.",
    ),
    _share(
        "smOccupancy",
        "accel_sm_occupancy_ratio",
        "accel.sm.occupancy",
        "Resident warps in percent of the most that the multiprocessors can hold.",
    ),
    _share(
        "pipeTensorActive",
        "accel_tensor_active_ratio",
        "accel.tensor.active",
        "Share of the time during which any tensor pipe was active.",
    ),
    _pipe("pipeTensorHmmaActive", "tensor_hmma", "Share of the time during which the tensor pipe for half precision was active."),
    _pipe("pipeFp64Active", "fp64", "Share of the time during which the double-precision pipe was active."),
    _pipe("pipeFp32Active", "fp32", "Share of the time during which the single-precision pipe was active."),
    _pipe("pipeFp16Active", "fp16", "Share of the time during which the half-precision pipe was active."),
    *(
        Metric(
            f"gpu.{{i}}.nvlink{direction.capitalize()}Bytes",
            "By/s",
            "gauge",
            f"Bytes per second {moved} over all NVLinks.",
            f'accel_link_bytes_per_second{{link_type="nvlink",direction="{direction}"}}',
            f'accel.link.throughput{{accelmetrics.link_type="nvlink",network.io.direction="{_WORDS[direction]}"}}',
            preset="all",
        )
        for direction, moved in (("tx", "sent"), ("rx", "received"))
    ),
)
