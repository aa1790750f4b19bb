"""What a person is shown of a node: no number that was not measured, and a word for each that is missing."""

from __future__ import annotations

import dataclasses

import pytest

from accelmetrics.schemas.errors import IN_ORDER, WORDS, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess
from accelmetrics.schemas.record import CannotTell, Findings, Holder, Holders
from accelmetrics.views.device_view import DeviceView, WarningLevels
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.visibility.processes import ProcessInfo, ProcessListing
from tests.views.nodes import GIB, SECOND, Node


def view_of(node: Node, key: str = "gpu.0") -> DeviceView:
    found = node_view(node.record()).device(key)
    assert found is not None
    return found


def test_a_sound_device_has_its_numbers_and_nothing_to_say() -> None:
    device = view_of(Node(1))
    assert device.state == "ok"
    assert (device.mark, device.note) == ("", "")
    assert device.values["utilization"] == 93.0
    assert device.values["memory_percent"] == 56.5
    assert device.values["power_limit_watts"] == 700.0
    assert device.values["sm_clock_mhz"] == 1980
    assert not device.missing
    assert device.links == ("PCIe 5.0 x16",)
    assert device.name == "H100 80GB HBM3"


@pytest.mark.parametrize("reason", [*Reason, "on_holiday"], ids=str)
def test_each_reason_of_a_missing_value_has_a_word(reason: str) -> None:
    """One of a newer release is its own; one that is not in order is a warning."""
    node = Node(1)
    node.miss("gpu.0", ("gpu",), reason, "NVML_ERROR")
    device = view_of(node)
    assert "utilization" not in device.values
    assert device.missing["utilization"].word.startswith(WORDS.get(reason, "on holiday"))
    assert (device.state, device.note) == (("ok", "") if reason in IN_ORDER else ("warn", f"util {device.missing['utilization'].word}"))
    assert device.missing["utilization"].detail == "NVML_ERROR"
    assert device.values["power_watts"] == 612.4


def test_a_lost_device_says_so_and_what_to_do_and_keeps_what_it_gave_last() -> None:
    node = Node(2)
    first = node_view(node.record())
    node.wait(240)
    node.silence("gpu.1", Reason.DEVICE_LOST, "NVML_ERROR_GPU_IS_LOST")
    second = node_view(node.record(), before=first)
    node.wait(60)
    third = node_view(node.record(), before=second)
    device = third.devices[1]
    assert (device.state, device.mark) == ("bad", "X")
    assert device.values == {}
    assert device.note == "lost for 5 min, NVML_ERROR_GPU_IS_LOST"
    assert device.silent_since_ns == first.time_ns
    assert device.last["power_watts"] == 612.4
    assert any("dmesg" in advice for advice in device.advice)
    assert (third.summary.lost, len(third.summary.devices)) == (1, 2)
    assert third.summary.power_watts == 612.4
    node.set("gpu.1", dict(node.metrics["gpu.0"]))
    assert node_view(node.record(), before=third).devices[1].silent is None


def test_another_device_under_the_same_key_inherits_nothing() -> None:
    node = Node(1)
    first = node_view(node.record())
    node.silence("gpu.0", Reason.DEVICE_LOST)
    node.slots[0] = node.slots[0]._replace(identity=node.slots[0].identity._replace(uuid="GPU-0b5e"))
    device = node_view(node.record(), before=first).devices[0]
    assert device.silent is not None
    assert (device.silent_since_ns, dict(device.last)) == (None, {})


def test_a_call_that_hangs_tells_for_how_long() -> None:
    node = Node(1)
    first = node_view(node.record())
    node.wait(12)
    node.silence("gpu.0", Reason.TIMED_OUT, "a call into the driver has not returned")
    device = node_view(node.record(), before=first).devices[0]
    assert device.missing["utilization"].word == "timed out 12 s"
    assert device.notes == ("timed out 12 s", "a call into the driver has not returned")


@pytest.mark.parametrize("reason", [Reason.NOT_IN_USE, Reason.SUSPENDED], ids=str)
def test_a_device_at_rest_is_missing_and_not_bad(reason: Reason) -> None:
    node = Node(0)
    node.add("tpu", "google", "TPU v5e")
    node.silence("tpu.0", reason)
    view = node_view(node.record())
    assert (view.devices[0].state, view.devices[0].note) == ("missing", WORDS[reason])
    assert view.devices[0].mark == "-"
    assert view.summary.lost == 0


@pytest.mark.parametrize(
    ("values", "state", "note", "levels"),
    [
        ({"temp": 84}, "ok", "", {}),
        ({"temp": 86}, "warn", "86 °C, slows down at 90 °C", {"temperature_celsius": "warn"}),
        ({"temp": 91}, "bad", "91 °C, slows down at 90 °C", {"temperature_celsius": "bad"}),
        ({"memoryAllocated": 95.0}, "ok", "", {"memory_percent": "warn"}),
        ({"throttle.hwThermalSlowdown": 1}, "warn", "throttled: heat", {}),
        ({"throttle.hwThermalSlowdown": 1, "gpu": 3.0}, "ok", "throttled: heat", {}),
        ({"throttle.swPowerCap": 1}, "ok", "throttled: power cap", {}),
    ],
    ids=["warm", "near its limit", "beyond it", "full memory", "heat under load", "heat at rest", "power cap"],
)
def test_what_is_a_warning(values: dict[str, float], state: str, note: str, levels: dict[str, str]) -> None:
    """Heat near the device's own limit, and that slows work down; full memory is marked alone, since programs reserve all of it."""
    node = Node(1)
    node.set("gpu.0", values)
    device = view_of(node)
    assert (device.state, device.note, device.levels) == (state, note, levels)


def test_a_device_that_states_no_limit_is_hot_above_80_or_a_chosen_level() -> None:
    node = Node(2)
    for number, temp in enumerate((80, 81)):
        node.set(f"gpu.{number}", {"temp": temp})
        del node.metrics[f"gpu.{number}"]["tempLimit.slowdown"]
    assert [device.state for device in node_view(node.record()).devices] == ["ok", "warn"]
    assert node_view(node.record(), levels=WarningLevels(temperature=70)).summary.hot == 2


def test_errors_and_links_are_told() -> None:
    node = Node(2)
    links = {f"nvlink.{number}.state": 1 for number in range(18)}
    errors = {"uncorrectedMemoryErrors": 1, "correctedMemoryErrors": 4, "correctedEccErrors": 5}
    node.set("gpu.0", {**links, **errors, "lastXid": 79, "xidErrors": 1})
    node.set("gpu.1", {**links, "nvlink.3.state": 0, "pcieLinkWidth": 4})
    first, second = node_view(node.record()).devices
    assert first.state == "warn"
    assert first.notes[0] == "1 uncorrected error"
    assert (first.values["corrected_errors"], first.values["uncorrected_errors"]) == (5, 1)  # those of the whole chip, if it counts them
    assert "5 corrected errors" in first.notes
    assert first.errors == ("Xid 79: the GPU has fallen off the bus",)
    assert second.state == "warn"
    assert second.links == ("PCIe 5.0 x4 of x16", "NVLink 17 of 18 up")


def test_what_a_finding_says_is_not_said_twice() -> None:
    node = Node(1)
    node.set("gpu.0", {"uncorrectedMemoryErrors": 2})
    node.find("ecc_uncorrected", "critical", "gpu.0", "uncorrected errors: 2 (memory)")
    device = view_of(node)
    assert device.notes == ("uncorrected errors: 2 (memory)",)
    assert device.state == "bad"


@pytest.mark.parametrize(
    ("temp", "state", "notes"),
    [
        (86, "warn", ("core at 86 °C",)),
        (91, "bad", ("91 °C, slows down at 90 °C", "core at 86 °C")),
    ],
)
def test_a_temperature_is_noted_once(temp: int, state: str, notes: tuple[str, ...]) -> None:
    """A finding has it in its message. Only a worse state than the finding's has a note of its own."""
    node = Node(1)
    node.set("gpu.0", {"temp": temp})
    node.find("hot", "warning", "gpu.0", "core at 86 °C")
    device = view_of(node)
    assert (device.state, device.notes) == (state, notes)
    assert device.levels == {"temperature_celsius": state}


def test_of_what_a_driver_says_the_note_has_the_words() -> None:
    node = Node(2)
    links = {f"nvlink.{number}.state": 1 for number in range(18)}
    node.set("gpu.0", links)
    node.set("gpu.1", links)
    first = node_view(node.record())
    node.silence("gpu.1", Reason.DEVICE_LOST, "nvmlDeviceGetName: the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)")
    device = node_view(node.record(), before=first).devices[1]
    assert device.notes == ("lost for 0 s", "the GPU has fallen off the bus")
    assert device.silent is not None
    assert device.silent.detail == "nvmlDeviceGetName: the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)"
    assert device.links == ()  # those of a lost device are not known


def test_what_was_found_of_a_lost_device_is_told_as_last_seen_and_its_loss_once() -> None:
    node = Node(1)
    first = node_view(node.record())
    node.silence("gpu.0", Reason.DEVICE_LOST, "the GPU has fallen off the bus")
    node.find("device_lost", "critical", "gpu.0", "lost: the GPU has fallen off the bus")
    node.find("xid_hardware", "critical", "gpu.0", "Xid 79: the GPU has fallen off the bus")
    device = node_view(node.record(), before=first).devices[0]
    assert device.notes == ("lost for 0 s", "the GPU has fallen off the bus", "last seen: Xid 79: the GPU has fallen off the bus")
    assert len(device.findings) == 2


@pytest.mark.parametrize("reason", [Reason.DEVICE_LOST, Reason.DRIVER_UNAVAILABLE, Reason.TIMED_OUT, Reason.RESET_REQUIRED], ids=str)
def test_a_device_that_fell_silent_says_what_to_do(reason: Reason) -> None:
    node = Node(1)
    node.silence("gpu.0", reason, "no answer")
    assert view_of(node).advice


def test_the_gravest_comes_first() -> None:
    node = Node(1)
    node.set("gpu.0", {"temp": 86})
    node.find("memory_full", "info", "gpu.0", "95 % of its memory in use")
    node.find("xid_hardware", "critical", "gpu.0", "Xid 79", "Drain the node.")
    node.find("straggler", "warning", "gpu.5", "another one's")
    device = view_of(node)
    assert device.state == "bad"
    assert device.notes == ("Xid 79", "86 °C, slows down at 90 °C", "95 % of its memory in use")
    assert device.advice[0] == "Drain the node."
    assert [one.rule for one in device.findings] == ["xid_hardware", "memory_full"]


def test_partitions_belong_to_their_device_and_count_nowhere() -> None:
    node = Node(1)
    node.miss("gpu.0", ("gpu",), Reason.NOT_SUPPORTED)
    child = node.add(parent="gpu.0", name="NVIDIA H100 MIG 1g.10gb")
    node.set(child, {"smActive": 50.0}, only=True)
    view = node_view(node.record())
    assert view.devices[0].note == "MIG: no util"
    assert (view.devices[1].label, view.devices[1].parent) == ("gpu.0.0", "gpu.0")
    assert view.devices[1].state == "ok"
    assert view.devices[1].missing["utilization"].word == "n/a"
    assert len(view.summary.devices) == 1


def test_a_partition_alone_is_a_device() -> None:
    """A program that was given one instance sees no other device: it counts, in the node's line of a fleet too."""
    node = Node(1)
    child = node.add(parent="gpu.0", name="NVIDIA H100 MIG 1g.10gb")
    node.set(child, {"smActive": 50.0}, only=True)
    del node.metrics["gpu.0"], node.gaps["gpu.0"]  # which the program does not see
    view = node_view(node.record())
    assert (len(view.summary.devices), view.summary.kinds) == (1, {"gpu": 1})
    assert [one.key for one in view.summary.devices] == [child]


@pytest.mark.parametrize("kind", ["tpu", "trn", "ipu", "npu", "hpu"])
def test_devices_of_every_kind_have_the_same_numbers(kind: str) -> None:
    names = {
        "tpu": {"dutyCycle": 50.0, "hbmMemoryUsage": 25.0, "hbmCapacityUsage": 4 * GIB, "hbmCapacityTotal": 16 * GIB},
        "ipu": {"ipu utilisation (%)": 50.0, "average die temp (C)": 40.0, "ipu power (W)": 80.0, "clock (MHz)": 1330},
        "trn": {"neuroncore_utilization": 50.0},
    }
    node = Node(0)
    key = node.add(kind, "acme", "Acme One")
    node.set(key, names.get(kind, {"utilization": 50.0, "temp": 40, "powerWatts": 80.0}), only=True)
    view = node_view(node.record())
    device = view.devices[0]
    assert device.values["utilization"] == 50.0
    assert device.state == "ok"
    assert all(name in device.values or device.missing[name].word == "n/a" for name in ("power_watts", "temperature_celsius"))
    assert view.summary.kinds == {kind: 1}


def test_a_source_that_does_not_answer_is_a_row_that_says_what_to_do() -> None:
    node = Node(1)
    node.sources["amd"] = BackendStatus("amd", "failed", "amdgpu is not loaded", devices=2)
    node.sources["tpu"] = BackendStatus("tpu", "absent")
    view = node_view(node.record())
    assert [source.name for source in view.silent] == ["amd"]
    assert (view.silent[0].state, view.silent[0].detail) == ("bad", "amdgpu is not loaded")
    assert "doctor" in view.silent[0].advice
    assert view.summary.failed == 1
    assert [source.name for source in view.sources] == ["nvidia", "amd"]


def test_values_of_a_source_that_was_read_long_ago_are_marked() -> None:
    node = Node(1)
    node.sources["nvidia"] = node.sources["nvidia"]._replace(age_seconds=1.5)
    assert not node_view(node.record()).devices[0].aged
    assert node_view(node.record(), now_ns=node.time_ns + SECOND).devices[0].aged
    assert not node_view(node.record(), now_ns=node.time_ns + SECOND, interval=5).devices[0].aged
    late = node_view(node.record(), now_ns=node.time_ns + 10 * SECOND)
    assert (late.aged, late.age_seconds) == (True, 10.0)


def test_a_process_on_several_devices_is_one_row() -> None:
    node = Node(3)
    for number in range(2):
        node.processes[f"gpu.{number}"] = (DeviceProcess(48120, "compute", 20 * GIB, 90.0 + number), DeviceProcess(7, "", None, None))
    node.unlisted["gpu.2"] = Unavailable(Reason.NO_PERMISSION, "only root may list them")
    info = ProcessInfo(
        "gpu.0", 48120, user="ann", command="/usr/bin/python train.py --token s3", started="2026-09-21T14:00:00Z", slurm_job="42"
    )
    listing = ProcessListing("", "node7", (info,), (), (), {})
    record = node.record()._replace(holders=Holders((Holder("gpu.0", "job", {"job_id": "42", "user": "ann"}),)))
    now = 1_790_000_134 * SECOND
    view = node_view(record, processes=listing, cpu={48120: 101.0}, now_ns=now)
    first, second = view.processes
    assert (first.pid, first.devices, first.user, first.program) == (48120, ("gpu.0", "gpu.1"), "ann", "python")
    assert (first.memory_bytes, first.utilization, first.cpu_percent) == (40 * GIB, 91.0, 101.0)
    assert first.holder == "job 42 (ann)"
    assert first.seconds is not None
    assert (second.memory_bytes, second.utilization, second.user) == (None, None, "")
    assert second.why
    assert view.unlisted == {"gpu.2": "only root may list them"}
    assert view.devices[0].holders == ("job 42 (ann)",)


def test_texts_of_others_change_nothing_about_a_terminal() -> None:
    node = Node(0, hostname="no\x1b[2Jde")
    key = node.add(name="GPU\x1b]0;title\x07\nX")
    node.miss(key, ("gpu",), "timed\x1b_out", "de\x1btail")
    node.find("hot", "warning", key, "mess\x1bage", "ad\x1bvice")
    node.sources["amd"] = BackendStatus("amd", "failed", "bad\x1b[0m", devices=1)
    node.processes[key] = (DeviceProcess(1),)
    listing = ProcessListing("", "", (ProcessInfo(key, 1, user="a\x1bb", command="x\x1by z"),), (), (), {})
    view = node_view(node.record(), processes=listing)

    def texts(part: object) -> list[str]:
        if isinstance(part, str):
            return [part]
        if dataclasses.is_dataclass(part):
            part = [getattr(part, field.name) for field in dataclasses.fields(part) if field.name not in ("identity", "findings", "gaps")]
        if isinstance(part, dict):
            part = list(part.values())
        return [text for each in part for text in texts(each)] if isinstance(part, (list, tuple)) else []

    assert len(texts(view)) > 10
    assert all(text.isprintable() for text in texts(view))


def test_nothing_is_made_up_for_a_machine_without_devices() -> None:
    node = Node(0)
    node.host.clear()
    view = node_view(node.record())
    assert isinstance(view, NodeView)
    assert (view.devices, view.processes, dict(view.host)) == ((), (), {})
    assert (view.summary.power_watts, view.summary.utilization) == (None, None)


def test_the_limit_of_all_is_told_only_where_each_tells_its_own() -> None:
    node = Node(2)
    assert node_view(node.record()).summary.power_limit_watts == 1400.0
    del node.metrics["gpu.1"]["enforcedPowerLimitWatts"]
    assert node_view(node.record()).summary.power_limit_watts is None


def test_what_cannot_be_judged_of_devices_is_told_by_reason_and_rules_about_a_run_in_a_sentence() -> None:
    """A GPU that is lost is one reason, however many rules lack it, and whichever call said so."""
    lost = [
        CannotTell(
            rule,
            ("gpu.1",),
            metric,
            "device_lost",
            f"nvmlDeviceGet{metric.title()}: the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)",
        )
        for rule, metric in (("hot", "temp"), ("idle_held", "gpu"))
    ]
    limits = CannotTell("near_slowdown", ("gpu.0", "gpu.2"), "tempLimit.slowdown", "not_supported", "NVML_ERROR_NOT_SUPPORTED")
    failed = CannotTell("mine", (), "", "rule_failed", "ZeroDivisionError")
    unlogged = [
        CannotTell(rule, (), "*", "not_logged", "a rule about a training run: no program logs here") for rule in ("hang", "goodput")
    ]
    node = Node(3)
    record = node.record()
    view = node_view(record._replace(findings=Findings((), (), (*lost, limits, failed, *unlogged))))
    assert view.not_judged == (
        (("hot", "idle_held"), "gpu.1: the GPU has fallen off the bus"),
        (("near_slowdown",), "tempLimit.slowdown of gpu.0, gpu.2: not supported"),
        (("mine",), "ZeroDivisionError"),
    )
    assert view.not_logged == "rules about a training run: no program logs here"
    logs = tuple(
        CannotTell(rule, (), name, "not_logged", f"the program logs no {name}")
        for rule, name in (("loss_spike", "loss"), ("gradient", "grad_norm"))
    )
    view = node_view(record._replace(findings=Findings((), (), logs)))
    assert (view.not_judged, view.not_logged) == ((), "rules about a training run: the program logs no loss, the program logs no grad_norm")
    assert (node_view(record).not_judged, node_view(record).not_logged) == ((), "")
