"""Errors that devices count in memories, caches and registers, and the repairs they make."""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric


def _errors(name: str, severity: str, scope: str, meaning: str, aliases: tuple[str, ...] = ()) -> Metric:
    # ``hw.errors`` counts current events. Errors over a device's whole life have another name, so that no sum includes them.
    lifetime = f'accel.memory.errors.lifetime{{error.type="{severity}"}}'
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        f'accel_ecc_errors_total{{severity="{severity}",scope="{scope}"}}',
        lifetime if scope == "aggregate" else f'hw.errors{{hw.type="{{kind}}",error.type="{severity}"}}',
        aliases,
        integer=True,
    )


def _chip_errors(name: str, severity: str, scope: str, meaning: str) -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        f'accel_chip_ecc_errors_total{{severity="{severity}",scope="{scope}"}}',
        f'accel.chip.ecc.errors{{accelmetrics.severity="{severity}",accelmetrics.scope="{scope}"}}',
        integer=True,
    )


def _sram_errors(name: str, severity: str, error: str, scope: str, meaning: str) -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "1",
        "counter",
        meaning,
        f'accel_sram_ecc_errors_total{{severity="{severity}",error="{error}",scope="{scope}"}}',
        f'accel.sram.ecc.errors{{accelmetrics.severity="{severity}",error.type="{error}",accelmetrics.scope="{scope}"}}',
        integer=True,
        preset="all",
    )


_SRAM_SOURCES = {
    "l2": "the L2 cache",
    "sm": "the streaming multiprocessors",
    "microcontroller": "the microcontrollers",
    "pcie": "the PCIe interface",
    "other": "other parts of the chip",
}


def _remapped(severity: str) -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.remappedRows{severity.capitalize()}",
        "1",
        "counter",
        f"Memory rows that were replaced by spare ones after {severity} errors.",
        f'accel_remapped_rows_total{{severity="{severity}"}}',
        f'accel.memory.remapped_rows{{accelmetrics.severity="{severity}"}}',
        integer=True,
    )


ERRORS = (
    _errors("correctedMemoryErrors", "corrected", "volatile", "Memory errors that were corrected since the driver was loaded."),
    _errors(
        "uncorrectedMemoryErrors",
        "uncorrected",
        "volatile",
        "Memory errors that could not be corrected since the driver was loaded.",
        ("{kind}.{i}.unCorrectedMemoryErrors",),
    ),
    _errors("correctedMemoryErrorsAggregate", "corrected", "aggregate", "Memory errors that were corrected over the life of the device."),
    _errors(
        "uncorrectedMemoryErrorsAggregate",
        "uncorrected",
        "aggregate",
        "Memory errors that could not be corrected over the life of the device.",
    ),
    _chip_errors(
        "correctedEccErrors",
        "corrected",
        "volatile",
        "Errors of all memories of the chip, its caches and registers among them, that were corrected since the driver was loaded.",
    ),
    _chip_errors(
        "uncorrectedEccErrors",
        "uncorrected",
        "volatile",
        "Errors of all memories of the chip that could not be corrected since the driver was loaded.",
    ),
    _chip_errors(
        "correctedEccErrorsAggregate",
        "corrected",
        "aggregate",
        "Errors of all memories of the chip that were corrected over the life of the device.",
    ),
    _chip_errors(
        "uncorrectedEccErrorsAggregate",
        "uncorrected",
        "aggregate",
        "Errors of all memories of the chip that could not be corrected over the life of the device.",
    ),
    *(
        _sram_errors(f"{name}{suffix}", severity, error, scope, f"Errors of the chip's SRAM that {what}, {since}.")
        for suffix, scope, since in (
            ("", "volatile", "since the driver was loaded"),
            ("Aggregate", "aggregate", "over the life of the device"),
        )
        for name, severity, error, what in (
            ("correctedSramErrors", "corrected", "any", "were corrected"),
            ("uncorrectedSramParityErrors", "uncorrected", "parity", "a parity check found and nothing could correct"),
            ("uncorrectedSramSecDedErrors", "uncorrected", "sec_ded", "a code for single errors found and could not correct"),
        )
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.uncorrectedSramErrorsAggregate.{source}",
            "1",
            "counter",
            f"Errors of the SRAM of {part} that could not be corrected, over the life of the device.",
            f'accel_sram_ecc_source_errors_total{{source="{source}"}}',
            f'accel.sram.ecc.source.errors{{accelmetrics.source="{source}"}}',
            integer=True,
            preset="all",
        )
        for source, part in _SRAM_SOURCES.items()
    ),
    Metric(
        "{kind}.{i}.sramThresholdExceeded",
        "1",
        "gauge",
        "1 if the chip's SRAM had more errors than its maker allows in service, else 0.",
        "accel_sram_threshold_exceeded",
        "accel.sram.threshold.exceeded",
        integer=True,
        maximum=1,
    ),
    _remapped("corrected"),
    _remapped("uncorrected"),
    Metric(
        "{kind}.{i}.rowRemapPending",
        "1",
        "gauge",
        "1 while memory rows wait for a reset of the device to be replaced by spare ones, else 0.",
        "accel_row_remap_pending",
        "accel.memory.row_remap.pending",
        integer=True,
        maximum=1,
    ),
    Metric(
        "{kind}.{i}.rowRemapFailure",
        "1",
        "gauge",
        "1 if a memory row could not be replaced by a spare one, else 0.",
        "accel_row_remap_failure",
        "accel.memory.row_remap.failure",
        integer=True,
        maximum=1,
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.eccMode{name}",
            "1",
            "gauge",
            f"1 if error correction is on {when}, else 0.",
            f'accel_ecc_mode{{state="{state}"}}',
            f'accel.ecc.mode{{accelmetrics.state="{state}"}}',
            integer=True,
            maximum=1,
            preset="all",
        )
        for name, state, when in (("", "current", "now"), ("Pending", "pending", "after the next reset"))
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.retiredPages{name}",
            "1",
            "counter",
            f"Memory pages that are no longer used because of {errors}.",
            f'accel_retired_pages_total{{cause="{cause}"}}',
            f'accel.memory.retired_pages{{accelmetrics.cause="{cause}"}}',
            integer=True,
        )
        for name, cause, errors in (
            ("SingleBit", "single_bit", "repeated single-bit errors"),
            ("DoubleBit", "double_bit", "a double-bit error"),
        )
    ),
    Metric(
        "{kind}.{i}.retiredPagesPending",
        "1",
        "gauge",
        "1 while memory pages wait for a restart of the driver to be retired, else 0.",
        "accel_retired_pages_pending",
        "accel.memory.retired_pages.pending",
        integer=True,
        maximum=1,
    ),
)
