"""A machine with an accelerator of each of several vendors, for tests and for the bench.

with many_vendors(tmp_path) as machine:
    subprocess.run([...], env=os.environ | machine.environment())

Each vendor's part is the one that its own tests are made with. Where a vendor has several sources, its machine has the plainest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from tests.simulators import ascend, biren, deepx, furiosa, graphcore, kunlunxin, metax, moorethreads, qualcomm, rebellions, vastai
from tests.simulators.amdgpu import Tree
from tests.simulators.amdgpu.machines import hygon, rx_7900
from tests.simulators.biren import Brsmi
from tests.simulators.commands import CommandStandIn
from tests.simulators.furiosa import FuriosaTree
from tests.simulators.gaudi import GaudiTree, HlSmi
from tests.simulators.graphcore import GcipuinfoStandIn
from tests.simulators.neuron import SysfsTree
from tests.simulators.nvml import NvmlSimulator
from tests.simulators.tenstorrent import TenstorrentTree
from tests.simulators.tpu import TpuMachine

REPOSITORY = Path(__file__).parents[2]


class Machine:
    """Where the vendors put what is theirs.

    Attributes:
        root: What stands before ``/sys``, ``/proc`` and ``/dev``.
        commands: The stand-ins of vendors' commands, by their names.
        directories: Where commands lie.
        modules: Directories of Python modules.
        gpus: NVIDIA's simulated driver.
    """

    def __init__(self, directory: Path, gpus: NvmlSimulator) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()
        self.commands: dict[str, CommandStandIn] = {}
        self.directories: list[Path] = []
        self.modules: list[Path] = []
        self.gpus = gpus
        Tree(self.root).whole_machine()

    def command(self, name: str, printed: str, asked: str = "") -> None:
        """Put a vendor's command on the path that prints this, or where its first argument is ``asked``."""
        if name not in self.commands:
            self.commands[name] = CommandStandIn(self.directory, name)
            self.directories.append(self.commands[name].directory)
        self.commands[name].behave(printed, asked=asked)

    def node(self, *paths: str) -> None:
        """Make files that are merely there, such as device nodes."""
        for path in paths:
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def environment(self) -> dict[str, str]:
        """The variables with which a process sees this machine, and no device of the one that it runs on."""
        return {
            **self.gpus.environment(),
            "ACCELMETRICS_SYSROOT": str(self.root),
            "PATH": os.pathsep.join(map(str, self.directories)),
            "PYTHONPATH": os.pathsep.join(map(str, (*self.modules, REPOSITORY))),
        }


def _nvidia(machine: Machine) -> None:
    TpuMachine(machine.root).function("0000:10:00.0", "0x2330", kind="0x030200", vendor="0x10de")
    machine.node("/dev/nvidiactl", "/dev/nvidia0")


def _amd(machine: Machine) -> None:
    rx_7900(Tree(machine.root))


def _tpu(machine: Machine) -> None:
    TpuMachine(machine.root).chips("v5e", 1)


def _neuron(machine: Machine) -> None:
    SysfsTree(machine.root).add_chip(0)
    machine.node("/dev/neuron0")


def _graphcore(machine: Machine) -> None:
    module = GcipuinfoStandIn(machine.directory)
    module.behave([graphcore.c600(0)])
    machine.modules.append(module.directory)


def _rebellions(machine: Machine) -> None:
    machine.command("rbln-smi", rebellions.listing(rebellions.npu(0)))
    machine.node("/dev/rbln0")


def _tenstorrent(machine: Machine) -> None:
    TenstorrentTree(machine.root).card(0)


def _furiosa(machine: Machine) -> None:
    FuriosaTree(machine.root).card(0)
    machine.command("furiosa-smi", furiosa.listing(furiosa.info(0)), "info")
    machine.command("furiosa-smi", furiosa.listing(furiosa.status(0)), "status")


def _metax(machine: Machine) -> None:
    machine.command("mx-smi", "")
    metax.answer(machine.commands["mx-smi"], 0)
    machine.node("/dev/mxcd")


def _moorethreads(machine: Machine) -> None:
    machine.command("mthreads-gmi", moorethreads.table(0))
    machine.command("mthreads-gmi", moorethreads.query(moorethreads.gpu(0)), "-q")
    machine.node("/dev/mtgpu.0")


def _gaudi(machine: Machine) -> None:
    GaudiTree(machine.root).card(1)
    tool = HlSmi(machine.directory)
    tool.lists(1)
    machine.directories.append(tool.directory)


def _hygon(machine: Machine) -> None:
    hygon(Tree(machine.root))


def _qualcomm(machine: Machine) -> None:
    TpuMachine(machine.root).function("0000:c1:00.0", "0xa100", vendor="0x17cb")
    machine.command("qaic-util", qualcomm.listing(qualcomm.device(0, card="B1")))


def _deepx(machine: Machine) -> None:
    machine.command("dxrt-cli", deepx.listing(deepx.device(0)))
    machine.node("/dev/dxrt0")


def _vastai(machine: Machine) -> None:
    machine.command("vasmi", vastai.document(vastai.memory(0)), "getmem")
    machine.command("vasmi", vastai.document(vastai.summary(0)), "summary")
    machine.node("/dev/kchar:0")


def _biren(machine: Machine) -> None:
    tool = Brsmi(machine.directory)
    tool.behave(biren.gpu(0))
    machine.directories.append(tool.directory)
    machine.node("/dev/biren/card_0")


def _ascend(machine: Machine) -> None:
    machine.command("npu-smi", ascend.info(ascend.chip(0)), "info")
    for what, answer in (("common", ascend.common), ("usages", ascend.usages), ("memory", ascend.memory), ("ecc", ascend.ecc)):
        machine.command("npu-smi", answer(0), f"info -t {what} -i 0")
    machine.node("/dev/davinci0")


def _kunlunxin(machine: Machine) -> None:
    machine.command("xpu-smi", kunlunxin.HELP, "-h")
    machine.command("xpu-smi", kunlunxin.xml(0), "-q -x")
    machine.node("/dev/xpu0")


VENDORS: dict[str, Callable[[Machine], None]] = {
    "nvidia": _nvidia,
    "amd": _amd,
    "tpu": _tpu,
    "neuron": _neuron,
    "graphcore": _graphcore,
    "rebellions": _rebellions,
    "tenstorrent": _tenstorrent,
    "furiosa": _furiosa,
    "metax": _metax,
    "moorethreads": _moorethreads,
    "gaudi": _gaudi,
    "hygon": _hygon,
    "qualcomm": _qualcomm,
    "deepx": _deepx,
    "vastai": _vastai,
    "biren": _biren,
    "ascend": _ascend,
    "kunlunxin": _kunlunxin,
}
"""By backend, how one device of it is put in."""


@contextmanager
def many_vendors(directory: Path, vendors: Iterable[str] = VENDORS) -> Generator[Machine, None, None]:
    """Make a machine with one accelerator of each vendor."""
    with NvmlSimulator(gpus=1, profile="h100") as gpus:
        machine = Machine(directory, gpus)
        for vendor in vendors:
            VENDORS[vendor](machine)
        yield machine
