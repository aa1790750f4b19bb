"""Who holds the devices: claims joined with the devices of a reading, and sources that hang, fail and come back."""

from __future__ import annotations

import logging

import pytest

from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Holder
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.visibility.attribution import Attribution, Claim, ClaimSource, DeviceRef, Listing, resolve
from tests.support.threads import wait_for_no_threads
from tests.support.waiting import Gate, wait_for

FIRST, SECOND = "GPU-18ef2d05-33ca-4c1f-9f0b-6e1f4a3b2c1d", "GPU-5ad4d6c1-8a2b-4b7e-9c55-0a1b2c3d4e5f"
INSTANCES = ("MIG-6c4fd5a8-6ac3-5a2d-8a39-4a6b3a7f6f41", "MIG-0f2a6b3a-1111-5a2d-8a39-4a6b3a7f6f42")


def slot(key: str, index: int, **about: object) -> DeviceSlot:
    """A device."""
    identity = DeviceIdentity(**{"kind": key.partition(".")[0], "vendor": "nvidia", "vendor_index": index, **about})  # type: ignore[arg-type]
    return DeviceSlot(key, index, None, identity)


SLOTS = (
    slot("gpu.0", 0, uuid=FIRST, pci_bus_id="00000000:18:00.0", minor_number=1),
    slot("gpu.1", 1, uuid=SECOND, pci_bus_id="00000000:3B:00.0", minor_number=0),
    slot("gpu.1.mig.0", 0, uuid=INSTANCES[0], parent=SECOND, gpu_instance_id=7),
    slot("gpu.1.mig.1", 1, uuid=INSTANCES[1], parent=SECOND, gpu_instance_id=9),
    slot("gpu.2", 0, vendor="amd", pci_bus_id="0000:c1:00.0"),
    slot("tpu.0", 0, vendor="google"),
)


def job(job_id: str, *devices: DeviceRef) -> Claim:
    return ("job", {"job_id": job_id}, devices)


@pytest.mark.parametrize(
    ("device", "key"),
    [
        (("uuid", FIRST), "gpu.0"),
        (("uuid", INSTANCES[1]), "gpu.1.mig.1"),
        (("minor", "0"), "gpu.1"),
        (("index", "0"), "gpu.0"),
        (("index", "1.9"), "gpu.1.mig.1"),
        (("minor", "0.7"), "gpu.1.mig.0"),
        (("pci", "0000:3b:00.0"), "gpu.1"),
        (("pci", "0000:c1:00.0"), "gpu.2"),
        (("tpu", "0"), "tpu.0"),
        (("uuid", "GPU-of-another-machine"), None),
        (("minor", "5"), None),
    ],
)
def test_a_device_is_found_by_what_its_scheduler_calls_it(device: DeviceRef, key: str | None) -> None:
    """By minor number and by the driver's own number, which differ; what is not read here is passed over."""
    assert [holder.device for holder in resolve([job("7", device)], SLOTS)] == ([key] if key else [])


def test_the_address_of_a_card_is_that_of_each_of_its_parts() -> None:
    """Which of them the job was given, its scheduler does not say."""
    parts = [slot(f"npu.{number}", number, vendor="acme", uuid=f"chip-{number}", pci_bus_id="0000:C1:00.0") for number in range(2)]
    assert [holder.device for holder in resolve([job("7", ("pci", "0000:c1:00.0"))], parts)] == ["npu.0", "npu.1"]


def test_several_hold_a_device_and_each_is_told_once() -> None:
    """Two containers of a pod and two jobs on one GPU; a job that two sources tell of has the labels of the first."""
    full: Claim = ("job", {"job_id": "7", "user": "ada"}, (("uuid", FIRST),))
    pods: list[Claim] = [("pod", {"pod": "a", "container": name}, (("uuid", FIRST), ("minor", "1"))) for name in "xy"]
    found = list(resolve([full, job("7", ("index", "0")), job("8", ("index", "0")), *pods], SLOTS))
    assert found == [
        Holder("gpu.0", "job", full[1]),
        Holder("gpu.0", "job", {"job_id": "8"}),
        *(Holder("gpu.0", "pod", pod[1]) for pod in pods),
    ]


def reading() -> Snapshot:
    return Snapshot(1, "node", {}, SLOTS)


def test_a_source_that_hangs_holds_up_nothing() -> None:
    """What another one says is served meanwhile, and once the last answer has grown old there is none."""
    gate = Gate()
    other = ClaimSource("slurm", 0.01, lambda: ((job("7", ("uuid", FIRST)),), ()))
    with Attribution([ClaimSource("kubernetes", 0.01, gate), other]) as told:
        assert gate.entered.wait(60)
        wait_for(lambda: told(reading()).found)
        assert dict(told(reading()).sources) == {"slurm": ""}
        gate.release()
    wait_for_no_threads()


def test_an_answer_that_grows_old_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the source counts as failed, while it hangs."""
    gate = Gate()
    answers = iter([((job("7", ("uuid", FIRST)),), ())])
    now = [100.0]
    monkeypatch.setattr("accelmetrics.visibility.attribution.time.monotonic", lambda: now[0])

    def read() -> Listing | None:
        found = next(answers, None)
        if found is None:
            gate()
        return found

    with Attribution([ClaimSource("kubernetes", 0.01, read)]) as told:
        assert gate.entered.wait(60)
        assert told(reading()).found
        now[0] += 60.0
        assert told(reading()) == ((), {"kubernetes": "it does not answer"})
        gate.release()
    wait_for_no_threads()


def test_a_failure_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """The last answer stands meanwhile, and the failure beside it; what cannot be used of an answer is told once too."""
    answers: list[Listing | Exception | None] = [((job("7", ("uuid", FIRST)),), ("a bad file",))]
    looks: list[None] = []

    def read() -> Listing | None:
        looks.append(None)
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    def looked() -> None:
        before = len(looks)
        wait_for(lambda: len(looks) >= before + 3)

    with caplog.at_level(logging.WARNING, "accelmetrics"), Attribution([ClaimSource("slurm", 0.001, read)]) as told:
        looked()
        answers.append(OSError("no disk"))
        looked()
        holders = told(reading())
        assert len(holders.found) == 1 and "no disk" in holders.sources["slurm"]
        answers.append(None)
        looked()
        assert told(reading()) == ((), {})
    wait_for_no_threads()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "a bad file" in said[0] and "no disk" in said[1] and "again" in said[2]
