"""Every key of every IPU, from a module that prints as real devices do."""

import pytest

from accelmetrics import Sampler
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity
from tests.simulators.graphcore import GcipuinfoStandIn, c600, m2000

C600_VALUES = {
    "average board temp (C)": 21.4,
    "average die temp (C)": 27.9,
    "clock (MHz)": 1500,
    "ipu utilisation (%)": 63.2,
    "ipu utilisation (session) (%)": 58.75,
    "link speed (GT/s)": 16.0,
    "speed (GT/s)": 16.0,
    "total board power (W)": 87.3,
}
M2000_VALUES = {
    "average board temp (C)": 31.5,
    "average die temp (C)": 40.25,
    "clock (MHz)": 1330,
    "ipu power (W)": 74.125,
}


def keys(number: int, values: dict[str, float]) -> dict[str, float]:
    return {f"ipu.{number}.{name}": value for name, value in values.items()}


def test_a_card_in_use_gives_every_key_at_every_reading(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    """W&B's collector gives the board's power and the link's speed once only."""
    stand_in.behave([c600(0), c600(1)])
    for _ in range(3):
        snapshot = sampler.sample()
        assert snapshot.metrics == keys(0, C600_VALUES) | keys(1, C600_VALUES)
        assert {key: why.reason for key, why in snapshot.unavailable.items()} == {
            "ipu.0.ipu power (W)": Reason.NOT_SUPPORTED,
            "ipu.1.ipu power (W)": Reason.NOT_SUPPORTED,
        }
        assert snapshot.unavailable["ipu.0.ipu power (W)"].detail == "N/A"


def test_an_idle_ipu_is_read_too(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([m2000(0), m2000(2)])
    snapshot = sampler.sample()
    assert snapshot.metrics == keys(0, M2000_VALUES) | keys(2, M2000_VALUES)
    assert {key.removeprefix("ipu.2."): why.reason for key, why in snapshot.unavailable.items() if key.startswith("ipu.2.")} == {
        "ipu utilisation (%)": Reason.NOT_IN_USE,
        "ipu utilisation (session) (%)": Reason.NOT_IN_USE,
        "link speed (GT/s)": Reason.NOT_SUPPORTED,
        "speed (GT/s)": Reason.NOT_SUPPORTED,
        "total board power (W)": Reason.NOT_SUPPORTED,
    }
    assert 'not report "link speed"' in snapshot.unavailable["ipu.2.link speed (GT/s)"].detail


def test_a_utilisation_that_is_missing_while_a_program_runs_is_not_supported(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    device = c600(0)
    del device["ipu utilisation"]
    stand_in.behave([device])
    assert sampler.sample().unavailable["ipu.0.ipu utilisation (%)"].reason == Reason.NOT_SUPPORTED


def test_without_a_space_before_the_unit_it_is_the_same(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([{name: value.replace(" ", "") for name, value in c600(0).items()}])
    assert sampler.sample().metrics == keys(0, C600_VALUES)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("N/A", Reason.NOT_SUPPORTED),
        ("", Reason.NOT_SUPPORTED),
        ("nan", Reason.NOT_SUPPORTED),
        ("inf W", Reason.INVALID_VALUE),
        ("-3 W", Reason.INVALID_VALUE),
        ("4294967295 W", Reason.INVALID_VALUE),
        ("12.6", Reason.PARSE_ERROR),
        ("12,6 W", Reason.PARSE_ERROR),
        ("twelve watts", Reason.PARSE_ERROR),
    ],
)
def test_what_is_no_value_costs_only_itself(stand_in: GcipuinfoStandIn, sampler: Sampler, printed: str, reason: Reason) -> None:
    stand_in.behave([c600(0, total_board_power=printed)])
    snapshot = sampler.sample()
    assert snapshot.unavailable["ipu.0.total board power (W)"].reason == reason
    assert snapshot.metrics == keys(0, {name: value for name, value in C600_VALUES.items() if name != "total board power (W)"})


def test_the_unit_that_is_printed_is_read(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0, total_board_power="12600 mW")])
    assert sampler.sample().metrics["ipu.0.total board power (W)"] == 12.6


def test_ipus_of_one_board_have_its_power_once(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(number, board_serial_number="0071.1") for number in (0, 1)])
    snapshot = sampler.sample()
    assert snapshot.metrics["ipu.0.total board power (W)"] == 87.3
    assert snapshot.unavailable["ipu.1.total board power (W)"] == (
        Reason.NOT_SUPPORTED,
        "gcipuinfo reports it for the whole card, and IPU 0 has it",
    )


def test_what_is_no_metric_is_the_device_s(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(3), m2000(1)])
    machine, card = sampler.sample().devices
    assert (card.key, machine.key) == ("ipu.3", "ipu.1")
    assert card.identity == DeviceIdentity(
        "ipu",
        "graphcore",
        3,
        name="C600",
        pci_bus_id="0000:33:00.0",
        serial="0071.0044.810003",
        architecture="ipu21",
        driver_version="1.3.7",
        firmware="2.6.11",
        numa_node=1,
    )
    assert machine.identity == DeviceIdentity("ipu", "graphcore", 1, name="M2000", serial="0131.0007.9904411", architecture="ipu2")
    assert [process.pid for process in card.processes or ()] == [4242]
    assert machine.processes == ()


def test_the_typed_view_has_names_without_spaces(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0)])
    view = sampler.sample().devices[0].metrics
    assert (view.clock_mhz, view.average_die_temp_c, view.ipu_utilisation, view.ipu_utilisation_session) == (1500, 27.9, 63.2, 58.75)
    assert (view.total_board_power_w, view.link_speed_gt_s, view.ipu_power_w) == (87.3, 16.0, None)
