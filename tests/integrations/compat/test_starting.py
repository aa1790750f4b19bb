"""Programs are reached however they are started, and nothing below them is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import zipapp
from pathlib import Path

import pytest

from accelmetrics.integrations.compat.startup import _accelmetrics_hook as hook
from tests.cli.shell import call, environment
from tests.cli.terminals import Terminal
from tests.simulators.amdgpu import Tree
from tests.support.as_nvml import AS_NVML, RELEASES, release, through, told, two_mi210

READ = """
import importlib, json, sys
nvml = importlib.import_module(sys.argv[1] if sys.argv[1:] else "pynvml")
nvml.nvmlInit()
def text(found):
    return found.decode() if isinstance(found, bytes) else found
def one(number):
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = [[one.pid, one.usedGpuMemory] for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] if number == 0 else []
    return {
        "name": text(nvml.nvmlDeviceGetName(handle)),
        "uuid": text(nvml.nvmlDeviceGetUUID(handle)),
        "power": nvml.nvmlDeviceGetPowerUsage(handle),
        "temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "utilization": nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory": [memory.total, memory.used, memory.free],
        "address": text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "processes": processes,
    }
found = [one(number) for number in range(nvml.nvmlDeviceGetCount())]
nvml.nvmlShutdown()
print(json.dumps(found))
"""
ONE = "import json, pynvml; pynvml.nvmlInit(); print(json.dumps(pynvml.nvmlDeviceGetCount()))"
PYTHONS = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
"""Those that a program may be installed with."""
MIB = 2**20
HERE = str(Path.cwd())


def expected(pid: int) -> list[dict[str, object]]:
    """What the two accelerators are."""
    total = 65520 * MIB
    return [
        {
            "name": "AMD Instinct MI210",
            "uuid": f"0x8e5520cb71d2aa0{number}",
            "power": (212000, 43000)[number],
            "temperature": (47, 31)[number],
            "utilization": (83, 7)[number],
            "memory": [total, used, total - used],
            "address": ("00000000:43:00.0", "00000000:83:00.0")[number],
            "processes": [[pid, 16000 * MIB]] if number == 0 else [],
        }
        for number, used in enumerate((16380 * MIB, 12 * MIB))
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Two accelerators, used by this process."""
    return two_mi210(tmp_path / "root", os.getpid())


def interpreter(version: str) -> str:
    """A Python of this version; one of pyenv's where the machine has several."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (*sorted(homes.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip(f"platform: no Python {version} on this machine")


def test_the_binding_of_this_environment(tree: Tree) -> None:
    """It gives what the machine has."""
    assert told(READ, tree=tree) == expected(os.getpid())


@pytest.mark.parametrize("requirement", RELEASES)
def test_every_release_of_the_binding(tree: Tree, requirement: str) -> None:
    """Its own structures, constants and exceptions stay: only what is under it is another."""
    home = release(requirement)
    module = "py3nvml.py3nvml" if requirement.startswith("py3nvml") else "pynvml"
    whose = f"assert nvml.__file__.startswith({str(home)!r})\n"
    assert told(READ + whose, module, tree=tree, PYTHONPATH=f"{home}:{HERE}") == expected(os.getpid())


@pytest.mark.parametrize("version", PYTHONS)
def test_every_python(tree: Tree, version: str) -> None:
    """A program's own Python has no accelmetrics, and where it has no binding is given ours."""
    assert told(READ, tree=tree, python=interpreter(version)) == expected(os.getpid())


@pytest.mark.parametrize("options", [("-s",), ("-B", "-W", "error"), ("-P",), ()], ids=" ".join)
def test_options_of_the_interpreter(tree: Tree, options: tuple[str, ...]) -> None:
    """Those that leave the environment in force change nothing; nor does a safe path by its variable."""
    if "-P" in options and sys.version_info < (3, 11):
        pytest.skip("platform: Python 3.10 knows no -P")
    assert told(ONE, tree=tree, options=options, PYTHONSAFEPATH="" if options else "1") == 2


def test_a_shell_a_zip_file_and_a_module_beside_the_script(tree: Tree, tmp_path: Path) -> None:
    """All lead to the same."""
    assert through("sh", "-c", f'"{sys.executable}" -c "{ONE}"', tree=tree).stdout == "2\n"
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text(ONE)
    zipapp.create_archive(package, tmp_path / "program.pyz")
    assert through(sys.executable, str(tmp_path / "program.pyz"), tree=tree).stdout == "2\n"
    shutil.copy(release("nvidia-ml-py==12.560.30") / "pynvml.py", package / "pynvml.py")
    (package / "script.py").write_text(ONE + "; print(pynvml.__file__)")
    done = through(sys.executable, str(package / "script.py"), tree=tree)
    assert done.stdout.split() == ["2", str(package / "pynvml.py")]


@pytest.mark.parametrize("options", ["-E", "-Es", "-I", "-sE"])
def test_scripts_that_installers_write(tree: Tree, tmp_path: Path, options: str) -> None:
    """With options that would have Python pass over the environment, as pipx writes them; what else those say is kept."""
    script = tmp_path / "bin" / "program"
    script.parent.mkdir()
    flags = "[sys.flags.ignore_environment, sys.flags.no_user_site, sys.path[0] == os.path.dirname(os.path.abspath(__file__))]"
    text = f"#!{sys.executable} {options}\nimport json, os, sys, pynvml\npynvml.nvmlInit()\n"
    script.write_text(f"{text}print(json.dumps([pynvml.nvmlDeviceGetCount(), *{flags}, sys.argv[1:]]))\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    done = through("program", "-x", tree=tree, PATH=f"{script.parent}:{os.environ['PATH']}")
    users_site = int("s" in options or "I" in options)
    beside = "I" not in options or sys.version_info < (3, 11)
    assert (done.stderr, json.loads(done.stdout)) == ("", [2, 0, users_site, beside, ["-x"]])


def test_an_interpreter_that_passes_over_the_environment_is_told_of(tree: Tree) -> None:
    """As are all programs that no binding was loaded in."""
    done = through(sys.executable, "-E", "-c", "import pynvml; pynvml.nvmlInit()", tree=tree)
    assert done.returncode == 1
    assert "NVML Shared Library Not Found" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("accelmetrics run: the command saw no devices")


def test_the_environment_is_the_programs_own_again(tree: Tree, tmp_path: Path) -> None:
    """The next ``sitecustomize`` is run, and what the program starts has no part in it."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['NEXT'] = 'was run'")
    program = """
    import json, os, subprocess, sys
    child = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), [name for name in sys.modules if '_accel' in name]]))"
    below = json.loads(subprocess.check_output([sys.executable, "-c", child]))
    print(json.dumps([os.environ.get("NEXT"), os.environ.get("PYTHONPATH"), sys.modules["sitecustomize"].__file__, below]))
    """
    path = f"{tmp_path}:{HERE}"
    done = through(sys.executable, "-c", program.replace("\n    ", "\n"), tree=tree, PYTHONPATH=path)
    assert json.loads(done.stdout) == ["was run", path, str(tmp_path / "sitecustomize.py"), [path, []]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("requirement", ["", "pynvml==11.5.3", "py3nvml==0.2.7"], ids=["own", "package", "py3nvml"])
def test_processes_of_multiprocessing(tree: Tree, tmp_path: Path, method: str, requirement: str) -> None:
    """They see the devices too, as workers of dask do."""
    module = "py3nvml.py3nvml" if requirement.startswith("py3nvml") else "pynvml"
    script = tmp_path / "script.py"
    script.write_text(
        f"import json, multiprocessing\nimport {module} as nvml\n"
        "def count(_):\n    nvml.nvmlInit()\n    return nvml.nvmlDeviceGetCount(), nvml.__file__\n"
        f"if __name__ == '__main__':\n    with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        "        print(json.dumps(pool.map(count, range(2))))\n"
    )
    import pynvml

    home = str(release(requirement)) if requirement else str(Path(pynvml.__file__).parent)
    path = [home] if requirement else []
    done = through(sys.executable, "-W", "ignore", str(script), tree=tree, PYTHONPATH=":".join([*path, HERE]))
    assert done.stderr == ""
    assert [(count, file.startswith(home)) for count, file in json.loads(done.stdout)] == [(2, True), (2, True)]


def test_threads_that_import_at_once(tree: Tree) -> None:
    """None sees a binding without its library."""
    program = """
    import json, threading
    barrier, found = threading.Barrier(16), []
    def work():
        barrier.wait()
        import pynvml
        pynvml.nvmlInit()
        found.append(pynvml.nvmlDeviceGetCount())
    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps(found))
    """
    assert told(program, tree=tree) == [2] * 16


def test_a_program_without_the_binding_is_given_ours(tree: Tree) -> None:
    """By its path, without anything else of this environment."""
    program = """
    import sys
    sys.path = [entry for entry in sys.path if "site-packages" not in entry]
    import json, pynvml
    pynvml.nvmlInit()
    print(json.dumps([pynvml.nvmlDeviceGetCount(), pynvml.__file__]))
    """
    import pynvml

    assert told(program, tree=tree) == [2, pynvml.__file__]


@pytest.mark.parametrize("package", ["dask_cuda", "ray", "sglang", "vllm"])
def test_what_places_work_counts_no_device(tree: Tree, tmp_path: Path, package: str) -> None:
    """Where it has no copy of the binding, and uses the program's: it is told that there is no driver."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "platforms.py").write_text(
        "import pynvml\ndef count(function, *arguments):\n"
        "    try:\n        return getattr(pynvml, function)(*arguments)\n"
        "    except pynvml.NVMLError as error:\n        return [error.value]\n"
    )
    program = f"""
    import json, pynvml
    from {package}.platforms import count
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    theirs = [count("nvmlInit"), count("nvmlDeviceGetCount"), count("nvmlDeviceGetPowerUsage", handle)]
    print(json.dumps([pynvml.nvmlDeviceGetCount(), *theirs]))
    """
    assert told(program, tree=tree, PYTHONPATH=f"{tmp_path}:{HERE}") == [2, [9], [9], 212_000]


@pytest.mark.parametrize("module", ["ray._private.thirdparty.pynvml", "vllm.third_party.pynvml"])
def test_copies_that_schedule_are_left_alone(tree: Tree, tmp_path: Path, module: str) -> None:
    """Ray's and vLLM's decide where work runs: they find no library, as before."""
    import pynvml

    home = tmp_path.joinpath(*module.split(".")[:-1])
    home.mkdir(parents=True)
    shutil.copy(pynvml.__file__, home / "pynvml.py")
    program = f"""
    import importlib, json
    nvml = importlib.import_module({module!r})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        print(json.dumps(error.value))
    """
    done = through(sys.executable, "-c", program.replace("\n    ", "\n"), tree=tree, PYTHONPATH=f"{tmp_path}:{HERE}")
    assert done.stdout == "12\n", done.stderr  # the library was not found


def test_the_library_itself_is_found_by_one_program_alone(tree: Tree, tmp_path: Path) -> None:
    """glances loads it before the binding; what else does, as torch, finds none."""
    home = tmp_path / "glances" / "plugins" / "gpu" / "cards"
    home.mkdir(parents=True)
    (home / "nvidia.py").write_text(
        "import threading\nfrom ctypes import CDLL\nCDLL('libnvidia-ml.so.1')\nother = []\n"
        "def load():\n    import ctypes\n"
        "    try:\n        ctypes.CDLL('libnvidia-ml.so.1')\n    except OSError:\n        other.append('none')\n"
        "thread = threading.Thread(target=load)\nthread.start()\nthread.join()\n"
        "import pynvml\npynvml.nvmlInit()\ncount = pynvml.nvmlDeviceGetCount()\n"
    )
    program = """
    import ctypes, json
    from glances.plugins.gpu.cards import nvidia
    found = [nvidia.count, nvidia.other]
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        found.append("none")
    print(json.dumps(found))
    """
    assert told(program, tree=tree, PYTHONPATH=f"{tmp_path}:{HERE}") == [2, ["none"], "none"]


def test_accelmetrics_itself_is_not_shown_its_own_devices(tree: Tree) -> None:
    """It reads them as ever, and NVIDIA's library itself, not its binding."""
    done = through(sys.executable, "-m", "accelmetrics", "dump", "--backends", "amd,nvidia", "--json", tree=tree)
    document = json.loads(done.stdout)
    assert [device["key"] for device in document["devices"]] == ["gpu.0", "gpu.1"]
    (nvidia,) = [source for source in document["backends"] if source["name"] == "nvidia"]
    assert nvidia["status"] == "absent"
    assert "NVML_ERROR_LIBRARY_NOT_FOUND" in nvidia["detail"]


def test_the_folder_is_this_users_and_goes_with_the_program(tree: Tree) -> None:
    """Readings are for whom started the program."""
    program = """
    import json, os, stat
    folder = os.environ["ACCELMETRICS_AS_NVML"]
    print(json.dumps([folder, stat.S_IMODE(os.stat(folder).st_mode), sorted(os.listdir(folder))]))
    import pynvml
    """
    folder, mode, names = told(program, tree=tree)
    assert (mode, names) == (0o700, ["reading.json"])
    assert not Path(folder).exists()


def test_a_machine_without_devices(tmp_path: Path) -> None:
    """Is one without a driver, and that is said."""
    program = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    done = through(sys.executable, "-c", program, tree=Tree(tmp_path))
    assert (done.stdout, done.stderr) == ("9\n", "accelmetrics run: no device was found to show (`accelmetrics doctor` says why)\n")


def test_what_reads_amds_devices_itself_is_told_of(tree: Tree, tmp_path: Path) -> None:
    """It would have each of them twice."""
    home = tmp_path / "codecarbon" / "core"
    home.mkdir(parents=True)
    for available, lines in ((True, 1), (False, 0)):
        (home / "gpu_amd.py").write_text(f"AMDSMI_AVAILABLE = {available}\n")
        done = through(sys.executable, "-B", "-c", "import codecarbon.core.gpu_amd, pynvml", tree=tree, PYTHONPATH=f"{tmp_path}:{HERE}")
        assert done.stderr.count("codecarbon reads AMD's devices itself and would count each of them twice") == lines, done.stderr
        assert len(done.stderr.splitlines()) == lines


@pytest.mark.parametrize(("vendors", "found"), [((), False), (("0x8086",), False), (("0x8086", "0x1002"), True)])
def test_cards_that_glances_finds_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: tuple[str, ...], found: bool) -> None:
    """Are those of AMD's that the kernel lists."""
    for number, vendor in enumerate(vendors):
        (tmp_path / f"card{number}" / "device").mkdir(parents=True)
        (tmp_path / f"card{number}" / "device" / "vendor").write_text(f"{vendor}\n")
        (tmp_path / f"card{number}-DP-1").mkdir()
    monkeypatch.setattr(hook, "CARDS", str(tmp_path / "none" if not vendors else tmp_path))
    assert hook._cards_of_the_kernel(None) == found


def test_without_a_place_for_the_readings(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and one line says why."""

    def full(*_arguments: object, **_options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    done = call("run", "--backends", "amd", "--as-nvml", "--", "echo", "started", env=environment(ACCELMETRICS_SYSROOT=str(tree.root)))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "accelmetrics run: cannot write the readings for the command: No space left on device\n"


def test_a_device_is_lost_while_a_program_reads_it(tree: Tree) -> None:
    """It is told so, of that device alone."""
    program = f"""
    import json, shutil, time, pynvml
    pynvml.nvmlInit()
    lost, other = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
    before = pynvml.nvmlDeviceGetPowerUsage(lost)
    shutil.rmtree({str(tree.root)!r} + "/sys/bus/pci/devices/0000:43:00.0")
    while True:
        try:
            pynvml.nvmlDeviceGetPowerUsage(lost)
            time.sleep(0.01)
        except pynvml.NVMLError_GpuIsLost:
            break
    print(json.dumps([before, pynvml.nvmlDeviceGetPowerUsage(other), pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(lost)]))
    """
    done = through(sys.executable, "-c", textwrap.dedent(program), tree=tree, start=[*AS_NVML[:-1], "--interval", "0.05", "--"])
    assert json.loads(done.stdout) == [212_000, 43_000, 2, "AMD Instinct MI210"], done.stderr


def test_readings_stop_while_a_program_reads_them(tree: Tree) -> None:
    """As what writes them is killed: the program goes on, and is told that there is no answer any more."""
    program = """
    import json, os, shutil, signal, time, pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    os.kill(os.getppid(), signal.SIGKILL)
    while os.getppid() != 1 and "accelmetrics" in open("/proc/%d/cmdline" % os.getppid()).read():
        time.sleep(0.01)
    found, now = [pynvml.nvmlDeviceGetPowerUsage(handle)], time.monotonic
    time.monotonic = lambda: now() + 60
    for function in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUtilizationRates):
        try:
            function(handle)
        except pynvml.NVMLError_Timeout:
            found.append("timeout")
    shutil.rmtree(os.environ["ACCELMETRICS_AS_NVML"])
    print(json.dumps(found))
    """
    done = through(sys.executable, "-c", textwrap.dedent(program), tree=tree)
    assert (done.returncode, done.stderr) == (-9, "")
    assert json.loads(done.stdout) == [212_000, "timeout", "timeout", "timeout"]


def test_messages_wait_for_the_terminal(tree: Tree) -> None:
    """What the monitor has to say would be written over the program's picture."""
    program = f"""
    import shutil, sys, time, pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for address in ("0000:43:00.0", "0000:83:00.0"):
        shutil.rmtree({str(tree.root)!r} + "/sys/bus/pci/devices/" + address)
    while True:
        try:
            pynvml.nvmlDeviceGetPowerUsage(handle)
            time.sleep(0.01)
        except pynvml.NVMLError:
            break
    input("what is the last word? ")
    """
    command = [*AS_NVML[:-1], "--interval", "0.05", "--", sys.executable, "-c", textwrap.dedent(program)]
    with Terminal(command, environment(ACCELMETRICS_SYSROOT=str(tree.root)), rows=12, columns=160) as terminal:
        terminal.until("what is the last word")
        terminal.type("none\n")
        assert terminal.end() == 0
        first, *said = [line for line in terminal.everything if line]
    assert first == "what is the last word? none"
    assert said
    assert said[0].startswith("accelmetrics: warning: source amd:")


def test_the_option_needs_no_dashes_in_front_of_it() -> None:
    """What it may be is told."""
    done = subprocess.run([*AS_NVML[:-2], "--as-nvml", "nvitop"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "invalid choice: 'nvitop'" in done.stderr
