"""IPUs: what Graphcore's ``gcipuinfo`` says of each.

The unit is part of the name, as W&B spells it. Read on stand-ins only, never yet on a real IPU.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric

PERCENT = 0.01
HERTZ_PER_MHZ = 1e6
PER_SECOND_PER_GT = 1e9
ABSOLUTE_ZERO = -273.15


ACTIVITY = (
    Metric(
        "ipu.{i}.ipu utilisation (%)",
        "%",
        "gauge",
        "Share of the time during which the IPU computed.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="ipu"}',
        otel="accel.ipu.utilization",
        factor=PERCENT,
    ),
    Metric(
        "ipu.{i}.ipu utilisation (session) (%)",
        "%",
        "gauge",
        "Share of the time during which the IPU computed, in the session of the program that holds it.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="ipu_session"}',
        otel="accel.ipu.session.utilization",
        factor=PERCENT,
    ),
    Metric(
        "ipu.{i}.clock (MHz)",
        "MHz",
        "gauge",
        "Clock of the IPU's tiles.",
        prometheus='accel_clock_hertz{domain="ipu"}',
        otel='accel.clock.frequency{domain="ipu"}',
        factor=HERTZ_PER_MHZ,
    ),
)

CONDITION = (
    Metric(
        "ipu.{i}.average die temp (C)",
        "Cel",
        "gauge",
        "Mean temperature of the IPU's own sensors.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="die"}',
        otel='hw.temperature{hw.sensor_location="die"}',
    ),
    Metric(
        "ipu.{i}.average board temp (C)",
        "Cel",
        "gauge",
        "Mean temperature of the sensors on the board, which its IPUs share.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="board"}',
        otel='hw.temperature{hw.sensor_location="board"}',
    ),
    Metric(
        "ipu.{i}.ipu power (W)",
        "W",
        "gauge",
        "Power that the IPU draws; boards without such a sensor do not say.",
        prometheus="accel_ipu_power_watts",
        otel='hw.power{hw.type="ipu"}',
    ),
    Metric(
        "ipu.{i}.total board power (W)",
        "W",
        "gauge",
        "Power that the whole board draws: the same value at each of its IPUs, not to be added up over them.",
        prometheus="accel_board_power_watts",
        otel="accel.board.power",
    ),
    Metric(
        "ipu.{i}.link speed (GT/s)",
        "GT/s",
        "gauge",
        "Transfers per second and lane on the link to the host.",
        # As W&B's documentation spells it.
        aliases=("ipu.{i}.speed (GT/s)",),
        prometheus="accel_link_transfers_per_second",
        otel="accel.link.speed",
        factor=PER_SECOND_PER_GT,
    ),
)
