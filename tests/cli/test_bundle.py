"""``bundle`` writes what a machine answered, ``dump --replay`` reads it in the machine's place; nothing in it names anybody."""

from __future__ import annotations

import ctypes
import errno
import gzip
import io
import json
import os
import pty
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelmetrics.backends.nvidia.nvml import INSUFFICIENT_SIZE, NOT_RECORDED
from accelmetrics.backends.nvidia.recorded import RecordedCalls, RecordingLibrary, ReplayedLibrary
from accelmetrics.visibility.bundle import FORMAT
from accelmetrics.visibility.pseudonyms import HOST, USER, Pseudonyms
from tests.cli.shell import COMMAND, Tree, document as checked, environment, one_line, run
from tests.simulators.amd_smi import AmdSmiStandIn, document, metric, static
from tests.simulators.amdgpu import Tree as Cards, client, machines
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, report, runtime
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.waiting import HANG

SERIAL = "8e5520cb71d2aa00"
USER_NAME, HOST_NAME, PROGRAM = "jmustermann", "frida-lab-17", "secretnet"
PERSONAL = (
    USER_NAME,
    HOST_NAME,
    PROGRAM,
    SERIAL,
    str(int(SERIAL, 16)),
    "PCB03110",
    "PCB052210",
    "10.20.30.40",
    "52:54:00:aa:31:07",
    "otherprogram",
    "model.bin",
    "peer-rack-8",
    "i-0abc123def",
)


def bundled(path: Path, env: Mapping[str, str], *arguments: str) -> dict[str, bytes]:
    """Write a bundle: its files."""
    done = run("bundle", str(path), "--yes", *arguments, env=dict(env))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def readings(env: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """What ``dump --json`` prints, which must be a document."""
    done = run("dump", "--json", *arguments, env=dict(env))
    assert (done.returncode, done.stderr) == (0, "")
    checked(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sources(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """How each backend fared."""
    return {each["name"]: (each["status"], each["source"]) for each in found["backends"]}


def of_cards(found: dict[str, Any]) -> dict[str, Any]:
    """The values of the GPUs, and why others are missing."""
    return {key: value for part in ("metrics", "unavailable") for key, value in found[part].items() if key.startswith("gpu.")}


def nobody_is_named(path: Path, personal: tuple[str, ...]) -> None:
    """None of it stands in the archive, its names included, however its files are packed."""
    with zipfile.ZipFile(path) as archive:
        content = b"\0".join(name.encode() + b"\0" + archive.read(name) for name in archive.namelist()).lower()
    assert [each for each in personal if each.lower().encode() in content] == []


@pytest.fixture
def stand_in(tmp_path: Path) -> AmdSmiStandIn:
    """The vendor's command, which prints names of users and programs too."""
    made = AmdSmiStandIn(tmp_path)
    peers = {"peer": {"hostname": "peer-rack-8", "note": "x"}, "where": {"instance_id": "i-0abc123def"}}
    used = {**peers, "process_list": [{"process_info": {"name": f"/home/{USER_NAME}/bin/{PROGRAM}", "pid": 4711, "user": USER_NAME}}]}
    words = f"on {HOST_NAME} (10.20.30.40, 52:54:00:aa:31:07):\nlog: /home/{USER_NAME}/smi.log\n{HOST_NAME}: done\n"
    made.behave(document([metric(0, **used)], "list"), document([static(0, machines.PAIR[0], f"0x{SERIAL}")], "list"), errors=words)
    return made


@pytest.fixture
def cards(tmp_path: Path, stand_in: AmdSmiStandIn) -> dict[str, str]:
    """Two simulated MI210s, and who uses them."""
    root = tmp_path / "root"
    root.mkdir()
    tree = Cards(root)
    machines.mi210_pair(tree)
    tree.write("/proc/sys/kernel/hostname", HOST_NAME)
    tree.whole_machine()
    node = "/dev/dri/renderD128"
    for card in ("sys/bus/pci/devices/" + address for address in machines.PAIR[:1]):
        (root / card / "drm/renderD128").mkdir(parents=True)
    for pid, name in ((4711, PROGRAM), (4712, "otherprogram")):
        descriptors = {3: (node, client(machines.PAIR[0], pid, 1 << 20, gfx=10**9)), 4: (f"/home/{USER_NAME}/model.bin", "")}
        tree.process(pid, descriptors)
        tree.write(f"/proc/{pid}/comm", name)
        tree.write(f"/proc/{pid}/stat", f"{pid} ({name}) S 1 {pid} {pid} 0 -1 0" + " 0" * 45)
        tree.write(f"/proc/{pid}/status", f"Name:\t{name}\nPPid:\t1\nNSpid:\t{pid}")
    tree.write("/sys/class/kfd/kfd/topology/nodes/1/properties", f"simd_count 416\nunique_id {int(SERIAL, 16)}")
    return environment(ACCELMETRICS_SYSROOT=str(root), PATH=stand_in.path, USER=USER_NAME, HOME=f"/home/{USER_NAME}")


def test_files_are_replayed(tmp_path: Path, cards: dict[str, str]) -> None:
    """Values, reasons and devices of cards that are read from the kernel's files, on a machine that has none."""
    path = tmp_path / "fault.zip"
    before = readings(cards)
    files = bundled(path, cards)
    after = readings(environment(), "--replay", str(path))
    assert sources(after) == sources(before)
    assert before["metrics"]["gpu.0.powerWatts"] == 212
    assert of_cards(after) == of_cards(before)
    assert [each["pid"] for each in before["processes"]["gpu.0"]] == [4711, 4712]
    # How busy a process keeps a card is a rate, which no recording has.
    assert after["processes"] == {key: [{**each, "utilization": None} for each in held] for key, held in before["processes"].items()}
    assert [each["pci_bus_id"] for each in after["devices"]] == list(machines.PAIR)
    assert after["devices"][0]["uuid"] != before["devices"][0]["uuid"]
    assert len(after["devices"][0]["uuid"]) == len(before["devices"][0]["uuid"])
    assert b"MI210" in files["doctor.txt"]
    assert len(files["readings.jsonl"].splitlines()) == 3
    for line in files["readings.jsonl"].splitlines():
        assert json.loads(line)["metrics"]["gpu.0.temp"] == 47
    nobody_is_named(path, PERSONAL)


def test_commands_are_replayed(tmp_path: Path, cards: dict[str, str], stand_in: AmdSmiStandIn) -> None:
    """Each run of a command is answered as it was, the vendor's warnings included, and the command itself is not called."""
    path = tmp_path / "fault.zip"
    before = readings(cards, "--amd-source", "amd-smi")
    files = bundled(path, cards, "--amd-source", "amd-smi")
    nobody_is_named(path, PERSONAL)
    calls = stand_in.calls
    after = readings({**environment(), "PATH": cards["PATH"]}, "--replay", str(path))
    assert stand_in.calls == calls
    assert sources(after)["amd"] == ("ok", "amd-smi")
    assert of_cards(after) == of_cards(before)
    runs = json.loads(files["commands.json"])["runs"]
    for run_ in runs:
        assert (run_["argv"][0], run_["returncode"]) == (str(stand_in.directory / "amd-smi"), 0)
        assert run_["seconds"] > 0
    assert any("market_name" in run_["stdout"] for run_ in runs)
    assert all("smi.log" in run_["stderr"] for run_ in runs)


@pytest.fixture
def nvidia(tree: Tree, simulator: NvmlSimulator) -> dict[str, str]:
    """Two simulated H100s."""
    tree.gpu("0000:01:00.0", "0x10de", "nvidia").write("/dev/nvidiactl")
    return tree.environment(**simulator.environment())


def identities(found: dict[str, Any]) -> tuple[str, ...]:
    """What tells the devices from all others: UUIDs with dashes and without, serial numbers."""
    told = [each[part] for each in found["devices"] for part in ("uuid", "serial") if each.get(part)]
    return tuple(part for each in told for part in (each.partition("-")[2] or each, each.partition("-")[2].replace("-", "")) if part)


STATES: dict[str, Callable[[NvmlSimulator], object]] = {
    "sound": lambda simulator: None,
    "lost": lambda simulator: simulator.lose(1),
    "refused": lambda simulator: simulator.gpu[0].set(temperature=Ret.NO_PERMISSION, power_mw=Ret.UNKNOWN),
    "partitioned": lambda simulator: simulator.partition(1, ["3g.40gb", "1g.10gb"]),
    "in use": lambda simulator: simulator.processes(0, [Process(4711, used=3 << 30), Process(4712, used=5 << 30)]),
    "in a fabric": lambda simulator: simulator.gpu[0].set(fabric_cluster=77, fabric_clique=3, fabric_status=0),
    "without a driver": lambda simulator: simulator.fail_init(Ret.DRIVER_NOT_LOADED),
    "of two versions": lambda simulator: simulator.fail_init(Ret.LIB_RM_VERSION_MISMATCH),
}


@pytest.mark.parametrize("state", STATES)
def test_nvml_is_replayed(tmp_path: Path, simulator: NvmlSimulator, nvidia: dict[str, str], state: str) -> None:
    """Values, reasons, devices and processes of NVML, where there is none; each identity has another."""
    STATES[state](simulator)
    path = tmp_path / "fault.zip"
    before = readings(nvidia, "--backends", "nvidia")
    files = bundled(path, nvidia, "--backends", "nvidia")
    after = readings(environment(), "--replay", str(path))
    for part in ("metrics", "unavailable", "processes"):
        assert after[part] == before[part]
    for each, other in zip(after["backends"], before["backends"], strict=True):
        assert [each[name] for name in ("status", "reason", "detail", "source")] == [
            other[name] for name in ("status", "reason", "detail", "source")
        ]
    nobody_is_named(path, identities(before))
    for each, other in zip(after["devices"], before["devices"], strict=True):
        assert each["uuid"] != other["uuid"] or not other["uuid"]
        assert {name for name in other if each[name] != other[name]} <= {"uuid", "serial", "chassis_serial", "parent", "fabric"}
    calls = json.loads(files["nvml.json"])["nvidia"]["calls"]
    assert any(call["function"] == "nvmlInitWithFlags" for call in calls)


@pytest.mark.parametrize(("library", "vendor"), [("ixml", "iluvatar"), ("hgml", "thead"), ("efml", "enflame")])
def test_library_of_another_vendor_is_replayed(tmp_path: Path, tree: Tree, library: str, vendor: str) -> None:
    """One of NVML's form, beside NVIDIA's own."""
    path = tmp_path / "fault.zip"
    tree.gpu("0000:01:00.0", "0x10de", "nvidia").write("/dev/nvidiactl")
    with NvmlSimulator(1) as simulator, NvmlSimulator(2, clone=library) as other:
        folders = ":".join(str(each.library.parent) for each in (simulator, other))
        env = tree.environment(**{**simulator.environment(), **other.environment(), "LD_LIBRARY_PATH": folders})
        before = readings(env, "--backends", f"nvidia,{vendor}")
        files = bundled(path, env, "--backends", f"nvidia,{vendor}")
    after = readings(environment(), "--replay", str(path))
    assert sources(before) == {"nvidia": ("ok", "nvml"), vendor: ("ok", library)}
    assert sources(after) == sources(before)
    for part in ("metrics", "unavailable"):
        assert after[part] == before[part]
    assert [each["vendor"] for each in after["devices"]] == ["nvidia", vendor, vendor]
    nobody_is_named(path, identities(before))
    assert json.loads(files["nvml.json"]).keys() == {"nvidia", vendor}


def test_topology_is_replayed(tmp_path: Path, nvidia: dict[str, str]) -> None:
    """Which GPUs are linked; of a bundle without those calls the reason says so."""
    path = tmp_path / "fault.zip"
    before = readings(nvidia, "--backends", "nvidia", "--topology")
    files = bundled(path, nvidia, "--backends", "nvidia")
    assert before["topology"]["connections"][0]["links"] > 0
    assert readings(environment(), "--replay", str(path), "--topology")["topology"] == before["topology"]
    notes = json.loads(files["nvml.json"])
    notes["nvidia"]["calls"] = [call for call in notes["nvidia"]["calls"] if call["function"] != "nvmlDeviceGetNvLinkRemoteDeviceType"]
    notes["nvidia"]["calls"] = [call for call in notes["nvidia"]["calls"] if call["function"] != "nvmlDeviceGetNvLinkState"]
    path.write_bytes(as_zip({**files, "nvml.json": json.dumps(notes).encode()}))
    (connection,) = readings(environment(), "--replay", str(path), "--topology")["topology"]["connections"]
    why = connection["unavailable"]["links"]
    assert (why["reason"], "the bundle has no answer" in why["detail"]) == ("driver_unavailable", True)


def test_hung_call_is_replayed(tmp_path: Path, simulator: NvmlSimulator, nvidia: dict[str, str]) -> None:
    """A call that never returned never returns: the GPU is timed out, the other one has its values."""
    simulator.rule("nvmlDeviceGetUtilizationRates", gpu=1, hang=True)
    path = tmp_path / "fault.zip"
    bundled(path, nvidia, "--backends", "nvidia", "--timeout", "0.5")
    simulator.clear_rules()
    after = readings(environment(), "--replay", str(path), "--timeout", "0.5")
    assert after["unavailable"]["gpu.1.gpu"]["reason"] == "timed_out"
    assert "gpu.0.gpu" in after["metrics"]


def test_library_that_is_missing_is_replayed(tmp_path: Path, tree: Tree, simulator: NvmlSimulator) -> None:
    """A GPU without a library has the same reason, though this machine has the library."""
    tree.gpu("0000:01:00.0", "0x10de", "nvidia")
    path = tmp_path / "fault.zip"
    before = readings(tree.environment(), "--backends", "nvidia")
    bundled(path, tree.environment(), "--backends", "nvidia")
    after = readings(environment(**simulator.environment()), "--replay", str(path))
    assert before["backends"][0]["status"] == "failed"
    assert [after["backends"][0][name] for name in ("status", "detail")] == [before["backends"][0][name] for name in ("status", "detail")]
    assert after["unavailable"] == before["unavailable"]


def test_handles_of_a_library_that_was_opened_again_are_told_apart_by_their_questions() -> None:
    """Each opening of NVIDIA's stand-in gives others: what was asked with one is answered to the other."""
    calls = RecordedCalls()
    made: dict[int, int] = {}

    def handle_by_index(index: ctypes.c_uint, found: Any) -> int:
        found._obj.value = 0x7F0000000000 + 8 * len(made)
        made[found._obj.value] = index.value
        return 0

    def temperature(handle: ctypes.c_void_p, answer: Any) -> int:
        answer._obj.value = 40 + made[handle.value or 0]
        return 0

    def handles(library: Any) -> list[ctypes.c_void_p]:
        found = [ctypes.c_void_p() for _ in range(2)]
        assert [library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(one)) for index, one in enumerate(found)] == [0, 0]
        return found

    library = RecordingLibrary(SimpleNamespace(nvmlDeviceGetHandleByIndex_v2=handle_by_index, nvmlDeviceGetTemperature=temperature), calls)
    first, second = handles(library), handles(library)
    assert len({one.value for one in (*first, *second)}) == 4
    assert library.nvmlDeviceGetTemperature(second[0], ctypes.byref(ctypes.c_uint())) == 0
    assert library.nvmlDeviceGetTemperature(first[1], ctypes.byref(ctypes.c_uint())) == 0
    replayed = ReplayedLibrary(json.loads(json.dumps(calls.to_dict(lambda data: data, str))))
    for _ in range(3):
        answers = [ctypes.c_uint() for _ in range(2)]
        for one, answer in zip(handles(replayed), answers, strict=True):
            assert replayed.nvmlDeviceGetTemperature(one, ctypes.byref(answer)) == 0
        assert [answer.value for answer in answers] == [40, 41]


def test_answers_beyond_a_buffer_are_refused() -> None:
    """Notes of somebody else's never write beside the buffers that they are given."""
    answer = {"status": 0, "times": 1, "seconds": 0, "written": [[0, 2, "ff" * 16]]}
    notes = {"failure": {}, "functions": {"nvmlX": True}, "calls": [{"function": "nvmlX", "arguments": [7, None], "answers": [answer]}]}
    memory = (ctypes.c_uint8 * 64)()
    buffer = (ctypes.c_uint8 * 8).from_buffer(memory)
    for written in ([[0, 2, "ff" * 7]], [[0, -4, "ff"]], [[1, 0, "ff"]], [[-1, 0, "ff"]]):
        answer["written"] = written
        assert ReplayedLibrary(notes).nvmlX(7, ctypes.byref(buffer)) == INSUFFICIENT_SIZE
    assert not any(memory)
    answer["written"] = [[0, 2, "ff" * 6]]
    library = ReplayedLibrary(notes)
    assert library.nvmlX(7, ctypes.byref(buffer)) == 0
    assert bytes(memory) == b"\0\0" + b"\xff" * 6 + bytes(56)
    assert library.nvmlX(8, ctypes.byref(buffer)) == NOT_RECORDED
    assert not hasattr(library, "nvmlY")
    call = {"function": "nvmlX", "arguments": [[]], "answers": [answer]}
    for strange in (
        {},
        {**notes, "calls": [7]},
        {**notes, "functions": []},
        {**notes, "calls": [call]},
        {**notes, "failure": {"reason": 1}},
    ):
        with pytest.raises(ValueError, match="unknown form"):
            ReplayedLibrary(strange)


@pytest.mark.parametrize("mode", ["", "die"])
def test_streams_are_replayed(tmp_path: Path, mode: str) -> None:
    """A command that prints a report a second, or ends after it was started."""
    root = tmp_path / "root"
    root.mkdir()
    chip = SysfsTree(root)
    chip.add_chip(0)
    chip.add_node()
    monitor = NeuronMonitorStandIn(tmp_path)
    monitor.tell(report=report([runtime(12)]), mode=mode, errors=f"log: /home/{USER_NAME}/neuron.log\n")
    env = environment(ACCELMETRICS_SYSROOT=str(root), PATH=f"{monitor.path}:/usr/bin:/bin")
    path = tmp_path / "fault.zip"
    before = readings(env, "--backends", "neuron")
    bundled(path, env, "--backends", "neuron")
    nobody_is_named(path, PERSONAL)
    starts = len(monitor.starts)
    after = readings(environment(), "--replay", str(path))
    assert len(monitor.starts) == starts
    assert sources(after) == sources(before)
    assert after["metrics"] == before["metrics"]
    assert {key: why["reason"] for key, why in after["unavailable"].items()} == {
        key: why["reason"] for key, why in before["unavailable"].items()
    }
    assert bool(after["metrics"]) == (mode == "")


@pytest.mark.parametrize("fault", ["missing", "denied", "crashes"])
def test_faults_are_replayed(tmp_path: Path, cards: dict[str, str], stand_in: AmdSmiStandIn, fault: str) -> None:
    """A command that is not there, fails, or prints rubbish gives the same reason in the same words."""
    command = stand_in.directory / "amd-smi"
    if fault == "missing":
        command.unlink()
    else:
        stand_in.behave("{" if fault == "crashes" else "", errors="Permission denied" * (fault == "denied"), status=1)
    path = tmp_path / "fault.zip"
    before = readings(cards, "--amd-source", "amd-smi")
    bundled(path, cards, "--amd-source", "amd-smi")
    after = readings({**environment(), "PATH": f"{tmp_path}:/usr/bin:/bin"}, "--replay", str(path))
    (was,), (is_,) = ([each for each in found["backends"] if each["name"] == "amd"] for found in (before, after))
    assert was["status"] == "failed"
    assert [is_[part] for part in ("status", "reason", "detail")] == [was[part] for part in ("status", "reason", "detail")]


def test_machine_with_nothing(tmp_path: Path, tree: Tree) -> None:
    """No driver, no device: the same keys and reasons, and the process is that of the recording."""
    tree.write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    path = tmp_path / "nothing.tar.gz"
    env = tree.environment()
    done = run("bundle", str(path), "--yes", env=env)
    assert done.returncode == 0
    before, after = readings(env), readings(environment(), "--replay", str(path))
    for part in ("metrics", "unavailable"):
        assert after[part].keys() == before[part].keys()
    assert after["metrics"]["memory_percent"] == 75
    assert sources(after) == sources(before)


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], object]) -> None:
    """Change an archive's manifest and files."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest, files)
    path.write_bytes(as_zip({**files, "manifest.json": json.dumps(manifest).encode()}))


def test_own_machine(tmp_path: Path) -> None:
    """The keys of this very machine, the sizes of its file systems as of the recording, and no rate: none was measured."""
    path = tmp_path / "own.zip"
    files = bundled(path, environment())
    before, after = readings(environment()), readings(environment(), "--replay", str(path))
    assert before["metrics"].keys() | before["unavailable"].keys() == after["metrics"].keys() | after["unavailable"].keys()
    assert after["metrics"]["memory.totalBytes"] == before["metrics"]["memory.totalBytes"]
    rates = [key for key in before["metrics"] if key in ("cpu", "cpu.0.cpu_percent", "cpu.powerWatts") or key.endswith("Bps")]
    assert {"cpu", "cpu.0.cpu_percent", "network.sentBps"} <= set(rates)
    assert {after["unavailable"][key]["reason"] for key in rates} == {"needs_interval"}
    assert after["hostname"] == json.loads(files["manifest.json"])["hostname"]
    assert after["hostname"] == json.loads(files["readings.jsonl"].splitlines()[0])["hostname"]
    changed(path, lambda manifest, files: manifest.update(hostname="its-name", file_systems={"/": [1 << 30, 3 << 30]}))
    after = readings(environment(), "--replay", str(path))
    assert (after["hostname"], after["metrics"]["disk./.usageGB"], after["metrics"]["disk./.usagePercent"]) == ("its-name", 1, 25)


@pytest.mark.parametrize(("number", "reason"), [(errno.EACCES, "no_permission"), (errno.EIO, "driver_error")])
def test_file_that_could_not_be_read_fails_in_the_same_way(tmp_path: Path, cards: dict[str, str], number: int, reason: str) -> None:
    """For root too, who may read every file."""
    path = tmp_path / "fault.zip"
    bundled(path, cards)

    def refuse(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        (name,) = (name for name in files if machines.PAIR[0] in name and name.endswith("/gpu_busy_percent"))
        del files[name]
        manifest["errors"][name.removeprefix("files")] = number

    changed(path, refuse)
    after = readings(environment(), "--replay", str(path))
    assert after["unavailable"]["gpu.0.gpu"]["reason"] == reason
    assert after["metrics"]["gpu.1.gpu"] == 7
    assert after["metrics"]["gpu.0.powerWatts"] == 212


def test_contents_are_shown_first(tmp_path: Path, cards: dict[str, str]) -> None:
    """Without a yes nothing is written, with what would be in it on the screen."""
    path = tmp_path / "fault.zip"
    done = run("bundle", str(path), "--amd-source", "amd-smi", env=cards)
    assert done.returncode == 1
    assert "give --yes" in one_line(done.stderr)
    assert not path.exists()
    for words in ("manifest.json", "commands.json", "doctor.txt", "0000:43:00.0/vendor", "serial numbers", "user names"):
        assert words in done.stdout, words


@pytest.mark.parametrize("answer", ["y", "n"])
def test_terminal_is_asked(tmp_path: Path, tree: Tree, answer: str) -> None:
    """A yes on a terminal writes it."""
    path = tmp_path / "fault.zip"
    mine, its = pty.openpty()
    os.write(mine, f"{answer}\n".encode())
    command = [*COMMAND, "bundle", str(path)]
    done = subprocess.run(command, env=tree.environment(), stdin=its, capture_output=True, text=True, timeout=HANG)
    os.close(mine)
    os.close(its)
    assert done.returncode == (0 if answer == "y" else 1)
    assert path.exists() == (answer == "y")
    assert f"write {path}? [y/N]" in done.stderr


def test_name_says_the_form(tmp_path: Path) -> None:
    """Another name is refused before anything is read."""
    done = run("bundle", str(tmp_path / "fault.rar"), "--yes")
    assert done.returncode == 2
    assert ".zip, .tar.gz, .tgz" in one_line(done.stderr)


MANIFEST: dict[str, Any] = {
    **{"format": FORMAT, "pid": 7, "options": {}, "environment": {}, "nvml_installed": False},
    **{"names": {}, "links": {}, "errors": {}},
}
NO_CALLS = b'{"nvidia": {"failure": {}, "functions": {}, "calls": []}}'
SOUND = {
    "manifest.json": json.dumps(MANIFEST).encode(),
    "commands.json": b'{"found": {}, "may_run": {}, "runs": []}',
    "nvml.json": NO_CALLS,
}


def with_manifest(**changes: Any) -> dict[str, bytes]:
    """A bundle whose manifest is another."""
    return {**SOUND, "manifest.json": json.dumps({**MANIFEST, **changes}).encode()}


def as_zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def as_tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def special(kind: bytes, name: str = "files/sys/x", target: str = "") -> bytes:
    """A tar with a member that is no plain file."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return as_tar((member, b""))


def zip_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo("files/sys/x")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"hello", "it is not an archive"),
    "empty": (lambda: b"", "it is not an archive"),
    "cut off": (lambda: as_zip(SOUND)[:80], "damaged"),
    "cut off tar": (lambda: as_tar((tarfile.TarInfo("manifest.json"), SOUND["manifest.json"]))[:60], "damaged"),
    "zip slip": (lambda: as_zip({**SOUND, "../../evil": b"x"}), "does not belong in a bundle"),
    "absolute": (lambda: as_zip({**SOUND, "/tmp/evil": b"x"}), "does not belong in a bundle"),
    "slip of a file": (lambda: as_zip({**SOUND, "files/sys/../../../evil": b"x"}), "does not belong in a bundle"),
    "elsewhere": (lambda: as_zip({**SOUND, "files/etc/passwd": b"x"}), "does not belong in a bundle"),
    "deep": (lambda: as_zip({**SOUND, "files/sys" + "/a" * 200: b"x"}), "too deep"),
    "bomb": (lambda: as_zip({**SOUND, "files/sys/x": bytes(200 << 20)}), "unpacks to more than"),
    "bomb of tar": (lambda: gzip.compress(bytes(300 << 20), 1), "unpacks to more than"),
    "many": (lambda: as_zip({**SOUND, **{f"files/sys/{number}": b"" for number in range(20_001)}}), "more than 20000 files"),
    "link in a zip": (zip_link, "not a regular file"),
    "link in a tar": (lambda: special(tarfile.SYMTYPE, target="/etc/passwd"), "not a regular file"),
    "hard link": (lambda: special(tarfile.LNKTYPE, target="/etc/passwd"), "not a regular file"),
    "device": (lambda: special(tarfile.CHRTYPE), "not a regular file"),
    "pipe": (lambda: special(tarfile.FIFOTYPE), "not a regular file"),
    "no manifest": (lambda: as_zip({"x": b""}), "it has no manifest.json"),
    "broken JSON": (lambda: as_zip({**SOUND, "manifest.json": b"{"}), "not JSON"),
    "deep JSON": (lambda: as_zip({**SOUND, "manifest.json": b"[" * 200_000}), "not JSON"),
    "long number": (
        lambda: as_zip({**SOUND, "commands.json": b'{"found": {}, "may_run": {}, "runs": ' + b"9" * 10_000 + b"}"}),
        "not JSON",
    ),
    "another form": (lambda: as_zip({**SOUND, "manifest.json": b"[]"}), "is not an object"),
    "newer": (lambda: as_zip(with_manifest(format=FORMAT + 1)), f"this release reads {FORMAT}"),
    "strange calls": (
        lambda: as_zip({**SOUND, "nvml.json": b'{"nvidia": {"failure": {}, "functions": {}, "calls": [1]}}'}),
        "unknown form",
    ),
    "no lists": (lambda: as_zip(with_manifest(names=[])), "is not an object"),
    "absolute link": (lambda: as_zip(with_manifest(links={"/sys/x": "/etc/passwd"})), "points outside of it"),
    "link that climbs": (lambda: as_zip(with_manifest(links={"/sys/x": "../" * 30 + "etc/passwd"})), "points outside of it"),
    "links that climb together": (
        lambda: as_zip(with_manifest(names={"/sys/d": True}, links={"/sys/d/a": "../b/../..", "/sys/b": ".."})),
        "points outside of it",
    ),
    "behind a link": (lambda: as_zip(with_manifest(links={"/sys/a": "..", "/sys/a/b/c": "x"})), "cannot be"),
    "loop as a name": (lambda: as_zip(with_manifest(names={"/sys/../../evil": True})), "does not belong in a bundle"),
    "NUL": (lambda: as_zip(with_manifest(names={"/sys/a\0b": True})), "does not belong in a bundle"),
    "file as a folder": (lambda: as_zip({**with_manifest(names={"/sys/x/y": True}), "files/sys/x": b""}), "cannot be unpacked"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bundles(tmp_path: Path, case: str) -> None:
    """One sentence says why it is refused, and nothing is written anywhere."""
    make, words = HOSTILE[case]
    path, scratch = tmp_path / "evil", tmp_path / "scratch"
    path.write_bytes(make())
    scratch.mkdir()
    done = run("dump", "--replay", str(path), env=environment(TMPDIR=str(scratch)))
    assert done.returncode == 1
    assert words in one_line(done.stderr)
    assert list(scratch.iterdir()) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evil", "scratch"]


def test_missing_bundle(tmp_path: Path) -> None:
    """A name that is not there."""
    done = run("dump", "--replay", str(tmp_path / "none.zip"))
    assert done.returncode == 1
    assert "No such file" in one_line(done.stderr)


def test_child_process_is_refused(tmp_path: Path) -> None:
    """A child would read this machine."""
    path = tmp_path / "sound.zip"
    path.write_bytes(as_zip(SOUND))
    done = run("dump", "--replay", str(path), "--isolation", "process")
    assert done.returncode == 2
    assert "--isolation process" in one_line(done.stderr)


def test_stand_ins_keep_their_form() -> None:
    """The same value is the same everywhere, in the form that it had; what is nobody's stays."""
    names = Pseudonyms()
    names.keep(["gpu.{i}.powerWatts"])
    names.add_name(HOST, "frida-lab-17.example.org")
    names.add_name(USER, "power")
    uuid = "GPU-8f3a2b1c-0d4e-4f5a-9b6c-7d8e9f0a1b2c"
    names.add_identity("UUIDs", uuid)
    raw = bytes.fromhex(uuid[4:].replace("-", ""))
    found = names.replace(f"{uuid} {uuid.upper()} FRIDA-LAB-17 frida-lab-17.example.org powerWatts".encode()).decode().split()
    assert found[0] != uuid
    assert found[0].startswith("GPU-")
    assert found[1] == found[0].upper()
    assert found[2].lower() == found[3].partition(".")[0]
    assert found[3].count(".") == 2
    assert found[4] == "powerWatts"
    assert names.left == {"power"}
    assert names.replace(b"\x01" + raw) == b"\x01" + bytes.fromhex(found[0][4:].replace("-", ""))
    kept = "0000:c1:00.0 535.161.07 12:30:01 127.0.0.1 96.00.74.00.01 00000000:C1:00.0 ffffffffffffffffffffffffffffffff 0x1002"
    assert names.text(kept) == kept
    moved = names.text("52:54:00:aa:31:07 192.168.7.9 fe80::5054:ff:fe12:3456 2001:db8:0:1:2:3:4:5678").split()
    assert [each.count(":") for each in moved] == [5, 0, 5, 7]
    assert moved[1].startswith("10.")
    assert "fe80" not in moved[2]
