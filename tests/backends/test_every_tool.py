"""What is the same for every vendor that is read by a command: it does not open, its devices come and go, it is found on the bus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import cambricon, deepx, hygon, kunlunxin, metax, moorethreads, qualcomm, rebellions, registry, vastai
from accelmetrics.backends.kit.commands import Command
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.doctor import diagnose
from tests.simulators import (
    cndev,
    deepx as dxrt,
    hygon as hy_smi,
    kunlunxin as xpu_smi,
    metax as mx_smi,
    moorethreads as gmi,
    qualcomm as qaic,
    rebellions as rbln,
    vastai as vasmi,
)
from tests.simulators.commands import CommandStandIn
from tests.support.pci import function
from tests.support.waiting import until, until_reason


class Tool(NamedTuple):
    """A vendor's command.

    Attributes:
        vendor: Its backend's module.
        name: What it is called.
        answers: By what it is asked, what it prints for devices of these numbers.
        key: A value of the first device.
        cut: How much of each answer there is when it is cut off in the middle; None where the whole devices of such an answer are read.
    """

    vendor: ModuleType
    name: str
    answers: dict[str, Callable[..., str]]
    key: str = "npu.0.temp"
    cut: int | None = None

    def says(self, tool: CommandStandIn, *numbers: int, hang: bool = False, cut: int | None = None) -> None:
        for asked, printed in self.answers.items():
            tool.behave(printed(*numbers)[:cut], asked=asked, hang=hang)


def each(of_all: Callable[..., str], of_one: Callable[[int], object]) -> Callable[..., str]:
    return lambda *numbers: of_all(*map(of_one, numbers))


TOOLS = {
    "rebellions": Tool(rebellions, "rbln-smi", {"": each(rbln.listing, rbln.npu)}, cut=-900),
    "deepx": Tool(deepx, "dxrt-cli", {"": each(dxrt.listing, dxrt.device)}),
    "qualcomm": Tool(qualcomm, "qaic-util", {"": each(qaic.listing, lambda number: qaic.device(number, card="B1"))}),
    "vastai": Tool(
        vastai,
        "vasmi",
        {"getmem": each(vasmi.document, vasmi.memory), "summary": each(vasmi.document, vasmi.summary)},
        key="npu.0.powerWatts",
        cut=30,
    ),
    "moorethreads": Tool(moorethreads, "mthreads-gmi", {"-q": each(gmi.query, gmi.gpu), "": gmi.table}, key="gpu.0.temp", cut=60),
    "metax": Tool(
        metax,
        "mx-smi",
        {"--summary": mx_smi.summary, "": mx_smi.table, "--count-ecc": mx_smi.slow, "-L": mx_smi.listing},
        key="gpu.0.temp",
        cut=30,
    ),
    "kunlunxin": Tool(kunlunxin, "xpu-smi", {"-q -x": xpu_smi.xml, "-q": lambda *_: ""}),
    "cambricon": Tool(
        cambricon,
        "cnmon",
        {"info": lambda *numbers: "".join(map(cndev.info, numbers)), "": each(cndev.table, cndev.row)},
    ),
    "hygon": Tool(
        hygon,
        "hy-smi",
        {
            "--showuse": lambda *numbers: hy_smi.document({number: hy_smi.card(number) for number in numbers}),
            " ".join(hygon.STEADY_FLAGS): lambda *numbers: hy_smi.document({number: hy_smi.about(number) for number in numbers}),
            "": hy_smi.table,
            "--showproductname": lambda *_: "HCU[0]\t\t: Card Series: K100_AI\n",
        },
        key="gpu.0.temp",
        cut=20,
    ),
}
HELP = {"metax": mx_smi.HELP, "kunlunxin": xpu_smi.HELP}
"""What tools print that are first asked whose they are."""


@pytest.fixture
def tool(vendor: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    """The command of a machine on which nothing else of the vendor's is to be seen."""
    made = CommandStandIn(tmp_path, TOOLS[vendor].name)
    monkeypatch.setenv("PATH", str(made.directory))
    made.behave(HELP.get(vendor, ""), asked="-h")
    if vendor == "deepx":
        function(root, "0000:0a:00.0", "0x1ff4")
    return made


@pytest.mark.parametrize("vendor", [vendor for vendor in TOOLS if vendor != "cambricon"])  # its library has a say in what is lost
def test_a_device_that_goes_is_lost_and_comes_back_as_itself(
    vendor: str, tool: CommandStandIn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs that are cut, and a tool that hangs, cost readings and no device; rows in another order are the same devices."""
    row = TOOLS[vendor]
    for command in vars(row.vendor).values():
        if isinstance(command, Command):
            monkeypatch.setattr(command, "timeout", 0.5)
    row.says(tool, 0, 1)
    with Sampler([vendor], clock=clock, open_timeout=30.0) as sampler:

        def reason(expected: Reason | None) -> None:
            until_reason(sampler, clock, row.key, expected)

        reason(None)
        first = sampler.sample()
        row.says(tool, 1)
        reason(Reason.DEVICE_LOST)
        if row.cut is not None:
            row.says(tool, 0, 1, cut=row.cut)
            reason(Reason.PARSE_ERROR)
        row.says(tool, 0, 1, hang=True)
        reason(Reason.TIMED_OUT)
        row.says(tool, 1, 0)
        again = until(sampler, clock, lambda latest: latest.metrics.get(row.key) == first.metrics[row.key])
        assert [device.identity for device in again.devices] == [device.identity for device in first.devices]


NONE, REFUSED, WRONG, FAILED = Reason.DRIVER_UNAVAILABLE, Reason.NO_PERMISSION, Reason.PARSE_ERROR, Reason.DRIVER_ERROR


@pytest.mark.parametrize(
    ("vendor", "stdout", "stderr", "status", "reason", "words"),
    [
        *((vendor, "", "open: Permission denied", 1, REFUSED, "Permission denied") for vendor in TOOLS if vendor != "hygon"),
        ("cambricon", "Permission denied", "", 1, REFUSED, "Permission denied"),
        ("cambricon", "cndevInit failed", "", 1, FAILED, "cndevInit failed"),
        ("cambricon", "", "", 0, WRONG, "printed nothing"),
        ("deepx", "DXRT v2.6.3\n", "", 0, NONE, "dxrt-cli lists no NPU"),
        ("deepx", "Device not found", "", 255, FAILED, "Device not found"),
        ("kunlunxin", "", "failed to open /dev/xpuctrl", 1, FAILED, "/dev/xpuctrl"),
        ("kunlunxin", "<xpu_smi_log></xpu_smi_log>", "", 0, WRONG, "lists no XPU"),
        ("kunlunxin", "garbage <", "", 0, WRONG, "lists no XPU"),
        ("metax", "", "mxcd is not there", 255, FAILED, "mxcd is not there"),
        ("metax", "mx-smi  version: 2.2.12\nNo available devices\n", "", 0, NONE, "has no access to any GPU"),
        ("metax", "Segmentation fault", "", 139, FAILED, "Segmentation fault"),
        ("moorethreads", "", "failed to initialise MTML: driver not loaded", 255, FAILED, "driver not loaded"),
        ("moorethreads", "Segmentation fault", "", 0, WRONG, "no JSON"),
        ("moorethreads", '{"GPU": []}', "", 0, NONE, "lists no GPU"),
        ("moorethreads", '{"GPU": {"Index": "0"}}', "", 0, WRONG, "no list of GPUs"),
        ("qualcomm", "Number of devices: 0\n", "", 0, NONE, "qaic-util lists no NPU"),
        ("qualcomm", "", "failed to open LRT", 255, FAILED, "failed to open LRT"),
        ("qualcomm", "", "", 0, WRONG, "printed nothing"),
        ("rebellions", "", "failed to open driver", 255, FAILED, "failed to open driver"),
        ("rebellions", "Segmentation fault", "", 0, WRONG, "no JSON"),
        ("rebellions", '{"devices": []}', "", 0, NONE, "rbln-smi lists no NPU"),
        *(
            ("rebellions", printed, "", 0, WRONG, "no list of devices")
            for printed in ('{"devices": null}', '{"devices": {"npu": 0}}', "[1, 2]", '{"error": "none"}', "[[]]")
        ),
        ("vastai", '{"elem": []}', "", 0, NONE, "lists no NPU"),
        ("vastai", "no JSON at all", "", 0, WRONG, "no JSON"),
    ],
)
def test_why_it_does_not_open(vendor: str, tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    for asked in TOOLS[vendor].answers:
        tool.behave(stdout, stderr=stderr, status=status, asked=asked)
    with pytest.raises(SourceError, match=words) as caught:
        registry.load(vendor).open()
    assert caught.value.reason == reason
    assert vendor != "metax" or "--device=/dev/mxcd" in caught.value.advice


@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        ("cambricon", "cnmon was not found"),
        ("deepx", "dxrt-cli or dxcli was not found"),
        ("hygon", "hy-smi or rocm-smi was not found in PATH, /opt/hyhal/bin"),
        ("kunlunxin", "xpu-smi or xpu_smi was not found"),
        ("metax", "mx-smi was not found in PATH, /opt/mxdriver/bin"),
        ("moorethreads", "mthreads-gmi was not found in PATH"),
        ("qualcomm", "qaic-util was not found"),
        ("rebellions", "rbln-smi or rbln-stat was not found in PATH"),
        ("vastai", "vasmi was not found"),
    ],
)
def test_where_there_is_no_tool(vendor: str, words: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceError, match=words) as caught:
        registry.load(vendor).open()
    assert (caught.value.reason, "install" in caught.value.advice) == (NONE, True)


@pytest.mark.parametrize(
    ("vendor", "ours", "other", "node", "absent", "advice"),
    [
        ("ascend", ("0x19e5", "0xd802"), ("0x19e5", "0xd802", "0x020000"), "davinci3", "Huawei (0x19e5)", "Ascend container runtime"),
        ("biren", None, None, "biren/card_0", "no /dev/biren/card_*", ""),
        ("cambricon", ("0xcabc", "0x0370"), None, "cambricon_dev0", "Cambricon (0xcabc)", ""),
        ("kunlunxin", ("0x1d22", "0x3688", "0x078000"), ("0x1d22", "0x1380", "0x078000"), "xpu0", "0x1d22", "--device=/dev/xpu0"),
        ("metax", ("0x9999", "0x4001", "0x030200"), ("0x9999", "0x4001", "0x020000"), "mxcd", "0x9999", "--device=/dev/mxcd"),
        ("moorethreads", ("0x1ed5", "0x0327", "0x030000"), ("0x1ed5", "0x0327", "0x040300"), "mtgpu.0", "0x1ed5", "=/dev/mtgpu.0"),
        ("rebellions", ("0x1eff", "0x1220"), None, "rbln0", "Rebellions (0x1eff)", ""),
    ],
)
def test_it_is_found_on_the_bus_and_by_its_nodes(
    vendor: str, ours: tuple[str, ...] | None, other: tuple[str, ...] | None, node: str, absent: str, advice: str, root: Path
) -> None:
    """Other functions of the vendor (network, sound, storage), and nodes that belong to no device, are none."""
    backend = registry.load(vendor)
    (root / "dev/accel").mkdir(parents=True)
    for unspecific in ("accel/accel0", "cambricon_ctl", "cambricon_gdr", "cambricon_ipcm0"):
        (root / "dev" / unspecific).touch()
    if other:
        function(root, "0000:01:00.0", *other)
    found = backend.detect()
    assert (found.present, found.devices) == (False, 0) and absent in found.evidence
    if ours:
        function(root, "0000:51:00.0", *ours)
        found = backend.detect()
        assert (found.present, found.devices) == (True, 1)
        assert "0000:51:00.0" in found.evidence and advice in found.advice
    if node:
        (root / "dev" / node).parent.mkdir(exist_ok=True)
        (root / "dev" / node).touch()
        found = backend.detect()
        assert (found.present, found.devices) == (True, 1) and f"/dev/{node}" in found.evidence
        assert not (advice and found.advice), "the driver is loaded, and its nodes are in this container"


@pytest.mark.parametrize(
    ("vendor", "pci"),
    [
        ("cambricon", ("0xcabc", "0x0370")),
        ("deepx", ("0x1ff4",)),
        ("furiosa", ("0x1ed2",)),
        ("gaudi", ("0x1da3", "0x1020")),
        ("kunlunxin", ("0x1d22", "0x3688", "0x078000")),
        ("metax", ("0x9999", "0x4001", "0x030200")),
        ("moorethreads", ("0x1ed5", "0x0327", "0x030000")),
        ("qualcomm", ("0x17cb", "0xa100")),
        ("rebellions", ("0x1eff", "0x1220")),
    ],
)
def test_a_tool_is_not_run_while_a_device_sleeps(
    vendor: str, pci: tuple[str, ...], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads every device and would wake it: nothing is wrong meanwhile, and it is run once the device is awake."""
    name = {"furiosa": "furiosa-smi", "gaudi": "hl-smi"}.get(vendor) or TOOLS[vendor].name
    tool = CommandStandIn(tmp_path, name)
    tool.behave(HELP.get(vendor, ""), asked="-h")
    monkeypatch.setenv("PATH", str(tool.directory))
    sleeping = function(root, "0000:0a:00.0", *pci) / "power/runtime_status"
    sleeping.parent.mkdir()
    sleeping.write_text("suspended\n")
    clock = FakeClock()
    with Sampler([vendor], clock=clock) as sampler:
        asleep = sampler.sample().backends[0]
        assert (tool.calls, asleep.status) == ([], "ok")
        assert "0000:0a:00.0 is suspended" in asleep.detail
        sleeping.write_text("active\n")
        clock.advance(1.1)
        sampler.sample()
        assert tool.calls


@pytest.mark.parametrize(
    ("vendor", "words"),
    [("deepx", "the format is known from the vendor's source"), ("vastai", "its names are known from a single program")],
)
def test_doctor_says_what_is_experimental(vendor: str, words: str, tool: CommandStandIn) -> None:
    TOOLS[vendor].says(tool, 0)
    (finding,) = diagnose(backends=[vendor]).backends
    assert f"experimental: {words}" in finding.evidence
