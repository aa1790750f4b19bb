"""Metrics of IPUs. Names include the unit, as W&B spells them. Tested on simulators only, never on a real IPU."""

from __future__ import annotations

from accelmetrics.schemas.metric import ABSOLUTE_ZERO, Metric

ACTIVITY = (
    Metric(
        "ipu.{i}.ipu utilisation (%)",
        "%",
        "gauge",
        "Share of the time during which the IPU computed.",
        'accel_utilization_ratio{engine="ipu"}',
        "accel.ipu.utilization",
        maximum=100,
        preset="core",
    ),
    Metric(
        "ipu.{i}.ipu utilisation (session) (%)",
        "%",
        "gauge",
        "Share of the time during which the IPU computed, in the session of the program that holds it.",
        'accel_utilization_ratio{engine="ipu_session"}',
        "accel.ipu.session.utilization",
        maximum=100,
    ),
    Metric(
        "ipu.{i}.clock (MHz)",
        "MHz",
        "gauge",
        "Clock of the IPU's tiles.",
        'accel_clock_hertz{domain="ipu"}',
        'accel.clock.frequency{accelmetrics.domain="ipu"}',
        preset="core",
    ),
)

CONDITION = (
    Metric(
        "ipu.{i}.average die temp (C)",
        "Cel",
        "gauge",
        "Mean temperature of the IPU's own sensors.",
        'accel_temperature_celsius{sensor="die"}',
        'hw.temperature{hw.sensor_location="die"}',
        minimum=ABSOLUTE_ZERO,
        preset="core",
    ),
    Metric(
        "ipu.{i}.average board temp (C)",
        "Cel",
        "gauge",
        "Mean temperature of the sensors on the board, which its IPUs share.",
        'accel_temperature_celsius{sensor="board"}',
        'hw.temperature{hw.sensor_location="board"}',
        minimum=ABSOLUTE_ZERO,
    ),
    Metric(
        "ipu.{i}.ipu power (W)",
        "W",
        "gauge",
        "Power that the IPU draws; missing on boards without such a sensor.",
        "accel_ipu_power_watts",
        'hw.power{hw.type="ipu"}',
        preset="core",
    ),
    Metric(
        "ipu.{i}.total board power (W)",
        "W",
        "gauge",
        "Power that the whole board draws: the same value at each of its IPUs, not to be added up over them.",
        "accel_board_power_watts",
        "accel.board.power",
    ),
    Metric(
        "ipu.{i}.link speed (GT/s)",
        "GT/s",
        "gauge",
        "Transfers per second and lane on the link to the host.",
        "accel_link_transfers_per_second",
        "accel.link.speed",
        aliases=("ipu.{i}.speed (GT/s)",),
    ),
)
