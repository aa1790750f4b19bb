"""A backend with several sources: the open one's pace counts, and one of them can be pinned."""

import pickle
from pathlib import Path

import pytest

import accelmetrics
from accelmetrics import InvalidOptionError, Sampler, UnknownNameError
from accelmetrics.backends.amd import backend as amd
from accelmetrics.backends.registry import pinned, select
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.rocm_smi import RocmSmiStandIn, output


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RocmSmiStandIn:
    """A card that the kernel shows, and a command that tells of two others."""
    machines.rx_7900(Tree(tmp_path / "root"))
    command = RocmSmiStandIn(tmp_path)
    command.behave(output("mi250_pair_5_4"))
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path / "root"))
    monkeypatch.setenv("PATH", command.path)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr("accelmetrics.backends.amd.amdsmi.DEFAULT_ROOT", str(tmp_path))
    return command


def test_the_best_source_is_read_when_asked_and_no_command_runs(both: RocmSmiStandIn) -> None:
    with Sampler(["amd"]) as sampler:
        first, second = sampler.sample(), sampler.sample()
    assert first.backends[0].source == "sysfs"
    assert (first.backends[0].sequence, second.backends[0].sequence) == (1, 2)
    assert first.metrics["gpu.0.powerWatts"] == 241
    assert both.calls == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_pinned_command_is_read_at_its_own_pace(both: RocmSmiStandIn, isolation: str) -> None:
    with Sampler(["amd"], amd_source="rocm-smi", isolation=isolation) as sampler:  # type: ignore[arg-type]
        snapshots = [sampler.sample() for _ in range(5)]
    assert {snapshot.backends[0].source for snapshot in snapshots} == {"rocm-smi"}
    assert [device.identity.uuid for device in snapshots[0].devices] == ["0x7d4e1f2a90b3c611", "0x7d4e1f2a90b3c612"]
    assert {snapshot.backends[0].sequence for snapshot in snapshots} == {1}
    assert len(both.calls) == 1


def test_pinned_and_free_samplers_live_side_by_side(both: RocmSmiStandIn) -> None:
    with Sampler(["amd"]) as free, Sampler(["amd"], amd_source="rocm-smi") as bound:
        assert (len(free.sample().devices), len(bound.sample().devices), len(free.sample().devices)) == (1, 2, 1)


def test_samplers_with_the_same_pin_share_a_driver(both: RocmSmiStandIn) -> None:
    with Sampler(["amd"], amd_source="rocm-smi") as first, Sampler(["amd"], amd_source="rocm-smi", timeout=2.0) as second:
        first.sample()
        second.sample()
    assert len(both.calls) <= 2


def test_sample_takes_the_pin_too(both: RocmSmiStandIn) -> None:
    assert accelmetrics.sample(["amd"], amd_source="sysfs").backends[0].source == "sysfs"
    assert accelmetrics.sample(["amd"], amd_source="rocm-smi").backends[0].source == "rocm-smi"


def test_doctor_names_the_source(both: RocmSmiStandIn) -> None:
    assert diagnose(["amd"]).backends[0].source == "sysfs"
    assert diagnose(["amd"], amd_source="rocm-smi").backends[0].source == "rocm-smi"


def test_a_source_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown source of the backend amd 'rocm_smi'\. Did you mean 'rocm-smi'\?.* sysfs, amdsmi"):
        Sampler(["amd"], amd_source="rocm_smi")


def test_a_pin_without_its_backend_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="amd_source is 'sysfs', but the backend amd is not selected"):
        Sampler(["host"], amd_source="sysfs")


def test_a_pin_leaves_other_backends_as_they_are() -> None:
    chosen = select(["host", "amd"])
    assert pinned(chosen, {"amd": None}) == chosen
    bound = pinned(chosen, {"amd": "sysfs"})
    assert bound[0] is amd.pinned("sysfs")
    assert bound[1] is chosen[1]


def test_a_pinned_backend_is_itself_after_a_journey() -> None:
    assert pickle.loads(pickle.dumps(amd)) is amd
    assert pickle.loads(pickle.dumps(amd.pinned("amd-smi"))) is amd.pinned("amd-smi")


@pytest.mark.parametrize(("command", "where"), [("dump", '"source": "rocm-smi"'), ("doctor", '"source": "rocm-smi"')])
def test_the_commands_take_the_pin(both: RocmSmiStandIn, capsys: pytest.CaptureFixture[str], command: str, where: str) -> None:
    from accelmetrics.cli.main import main

    assert main([command, "--json", "--backends", "amd", "--amd-source", "rocm-smi"]) == 0
    assert where in capsys.readouterr().out.replace('"source":"', '"source": "')
    assert main([command, "--json", "--backends", "amd", "--amd-source", "nvml"]) == 2
    assert "sysfs, amdsmi, amd-smi, rocm-smi" in capsys.readouterr().err
