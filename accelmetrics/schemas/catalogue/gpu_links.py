"""GPUs: errors, and the links that carry data to and from the device."""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric


def _errors(name: str, severity: str, scope: str, meaning: str, aliases: tuple[str, ...] = ()) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        aliases,
        integer=True,
        prometheus=f'accel_ecc_errors_total{{severity="{severity}",scope="{scope}"}}',
        otel=f'hw.errors{{hw.type="gpu",error.type="{severity}",scope="{scope}"}}',
    )


def _remapped(name: str, severity: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        integer=True,
        prometheus=f'accel_remapped_rows_total{{severity="{severity}"}}',
        otel=f'accel.memory.remapped_rows{{severity="{severity}"}}',
    )


ERRORS = (
    _errors(
        "correctedMemoryErrors",
        "corrected",
        "volatile",
        "Memory errors that were corrected since the driver was loaded.",
    ),
    _errors(
        "uncorrectedMemoryErrors",
        "uncorrected",
        "volatile",
        "Memory errors that could not be corrected since the driver was loaded.",
        ("gpu.{i}.unCorrectedMemoryErrors",),
    ),
    _errors(
        "correctedMemoryErrorsAggregate",
        "corrected",
        "aggregate",
        "Memory errors that were corrected over the life of the device.",
    ),
    _errors(
        "uncorrectedMemoryErrorsAggregate",
        "uncorrected",
        "aggregate",
        "Memory errors that could not be corrected over the life of the device.",
    ),
    _remapped(
        "remappedRowsCorrected",
        "corrected",
        "Memory rows that were replaced by spare ones after corrected errors.",
    ),
    _remapped(
        "remappedRowsUncorrected",
        "uncorrected",
        "Memory rows that were replaced by spare ones after uncorrected errors.",
    ),
)


FAULTS = (
    Metric(
        "gpu.{i}.xidErrors",
        "1",
        "counter",
        "Xid errors that the driver has reported since this program began to listen.",
        integer=True,
        prometheus="accel_xid_errors_total",
        otel='hw.errors{hw.type="gpu",error.type="xid"}',
    ),
    Metric(
        "gpu.{i}.lastXid",
        "1",
        "gauge",
        "Code of the newest of them; there is none before the first.",
        integer=True,
        minimum=1,
        conditional=True,
        prometheus="accel_xid_last_code",
        otel="accel.xid.last_code",
    ),
)


def _pcie_link(name: str, series: str, otel: str, meaning: str, maximum: float | None = None) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "1",
        "gauge",
        meaning,
        integer=True,
        minimum=1,
        maximum=maximum,
        prometheus=f"accel_pcie_link_{series}",
        otel=f"accel.pcie.link.{otel}",
    )


def _moved(name: str, prometheus: str, otel: str, meaning: str) -> Metric:
    return Metric(f"gpu.{{i}}.{name}", "By", "counter", meaning, integer=True, prometheus=prometheus, otel=otel)


PCIE = (
    _pcie_link(
        "pcieLinkGen",
        "generation",
        "generation",
        "PCIe generation that the link runs at now; it falls while the device is idle.",
    ),
    _pcie_link("pcieLinkWidth", "width", "width", "PCIe lanes that the link uses now.", 32),
    _pcie_link(
        "maxPcieLinkGen",
        "max_generation",
        "generation.limit",
        "Highest PCIe generation that this device can reach in this slot.",
    ),
    _pcie_link(
        "maxPcieLinkWidth",
        "max_width",
        "width.limit",
        "Most PCIe lanes that this device can use in this slot.",
        32,
    ),
    Metric(
        "gpu.{i}.pcieLinkSpeed",
        "By/s",
        "gauge",
        "Speed of the PCIe link; W&B's collector has the key and leaves it switched off, and no backend gives it.",
        integer=True,
        prometheus="accel_pcie_link_bytes_per_second",
        otel="accel.pcie.link.speed",
    ),
    Metric(
        "gpu.{i}.pcieReplays",
        "1",
        "counter",
        "PCIe packets that had to be sent again.",
        integer=True,
        prometheus="accel_pcie_replays_total",
        otel="accel.pcie.replays",
    ),
    _moved(
        "pcieTxBytesTotal",
        'accel_pcie_bytes_total{direction="tx"}',
        'hw.gpu.io{network.io.direction="transmit"}',
        "Bytes sent over PCIe since the driver was loaded.",
    ),
    _moved(
        "pcieRxBytesTotal",
        'accel_pcie_bytes_total{direction="rx"}',
        'hw.gpu.io{network.io.direction="receive"}',
        "Bytes received over PCIe since the driver was loaded.",
    ),
)


def _link_errors(name: str, error: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        integer=True,
        prometheus=f'accel_link_errors_total{{link_type="nvlink",error="{error}"}}',
        otel=f'accel.link.errors{{link_type="nvlink",error.type="{error}"}}',
    )


def _of_link(name: str, direction: str, word: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.nvlink.{{link}}.{name}",
        "By",
        "counter",
        meaning,
        integer=True,
        conditional=True,
        prometheus=f'accel_link_port_bytes_total{{link_type="nvlink",direction="{direction}",link="{{link}}"}}',
        otel=f'accel.link.port.io{{link_type="nvlink",network.io.direction="{word}",link="{{link}}"}}',
    )


NVLINK = (
    _moved(
        "nvlinkTxBytesTotal",
        'accel_link_bytes_total{link_type="nvlink",direction="tx"}',
        'accel.link.io{link_type="nvlink",network.io.direction="transmit"}',
        "Bytes of payload sent over all NVLinks since the driver was loaded.",
    ),
    _moved(
        "nvlinkRxBytesTotal",
        'accel_link_bytes_total{link_type="nvlink",direction="rx"}',
        'accel.link.io{link_type="nvlink",network.io.direction="receive"}',
        "Bytes of payload received over all NVLinks since the driver was loaded.",
    ),
    _link_errors("nvlinkCrcErrors", "crc", "Checksum errors on all NVLinks."),
    _link_errors(
        "nvlinkReplayErrors",
        "replay",
        "Transmissions over all NVLinks that had to be repeated.",
    ),
    _link_errors(
        "nvlinkRecoveryErrors",
        "recovery",
        "Times that an NVLink had to be set up again after errors.",
    ),
    Metric(
        "gpu.{i}.nvlink.{link}.state",
        "1",
        "gauge",
        "1 while the link is up, else 0.",
        integer=True,
        maximum=1,
        conditional=True,
        prometheus='accel_link_port_up{link_type="nvlink",link="{link}"}',
        otel='accel.link.port.up{link_type="nvlink",link="{link}"}',
    ),
    _of_link("txBytesTotal", "tx", "transmit", "Bytes of payload sent over the link since the driver was loaded."),
    _of_link("rxBytesTotal", "rx", "receive", "Bytes of payload received over the link since the driver was loaded."),
    Metric(
        "gpu.{i}.fabricState",
        "1",
        "gauge",
        "Whether the device has joined the fabric of NVLink switches: 1 not begun, 2 in progress, 3 done.",
        integer=True,
        minimum=1,
        maximum=3,
        prometheus="accel_fabric_state",
        otel="accel.fabric.state",
    ),
)

XGMI = (
    _moved(
        "xgmiTxBytesTotal",
        'accel_link_bytes_total{link_type="xgmi",direction="tx"}',
        'accel.link.io{link_type="xgmi",network.io.direction="transmit"}',
        "Bytes written to other devices over all xGMI links since the driver was loaded.",
    ),
    _moved(
        "xgmiRxBytesTotal",
        'accel_link_bytes_total{link_type="xgmi",direction="rx"}',
        'accel.link.io{link_type="xgmi",network.io.direction="receive"}',
        "Bytes read from other devices over all xGMI links since the driver was loaded.",
    ),
)
