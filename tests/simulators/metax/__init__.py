"""A C library with the functions of ``libmxsml``; what ``mx-smi`` prints: summary, tables of four releases, errors and links, the list of
GPUs; and what Moffett's ``mx-smi`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tests.simulators.commands import CommandStandIn
from tests.simulators.stated import compiled

HELP = """
USAGE:

   mx-smi  [-hjLsv] [--count-ecc] [--show-board-power] [--show-clk-tr]

   --show-version
     Display maca, bios, driver, firmware version
"""
MOFFETT = """Mon Nov  2 09:15:00 2026
╭──────────────────────────────────────────────────────────────────────────────╮
│MOFFETT-SMI 2.1.0       Driver Version 3.5.0       SOLA Version 3.5.0         │
╰──────────────────────────────────────────────────────────────────────────────╯
 Card
┌──────────────────────────────────────────────────────────────────────────────┐
│Index Name Freq.  Voltage Temp. Pwr Util  Bus ID   Memory-Usage       SN      │
├──────────────────────────────────────────────────────────────────────────────┤
│Card0 S30  700MHz  930mV   44C  6W   0%  0:36:00.0 0MiB/61440MiB 2023000000001│
└──────────────────────────────────────────────────────────────────────────────┘
"""


def build(directory: Path) -> Path:
    """Compile the library."""
    return compiled(Path(__file__).parent / "mxsml.c", directory / "libmxsml.so")


def address(number: int) -> str:
    """The PCI address of a GPU."""
    return f"0000:{0x37 + number:02x}:00.0"


def blocks(numbers: Sequence[int], body: Callable[[int], str]) -> str:
    """An output that has a block for each GPU."""
    log = "\n".join(f"GPU#{number}  MXC500  {address(number)}\n{body(number)}" for number in numbers)
    return (
        f"mx-smi  version: 2.2.12\n\n=== MetaX System Management Interface Log ===\nAttached GPUs    : {len(numbers)}\n{log}\nEnd of Log\n"
    )


def lines(section: str, values: Mapping[str, object], depth: int = 1) -> str:
    """One section of a block, with sections below it."""
    below = (
        lines(name, said, depth + 1) if isinstance(said, Mapping) else f"{'':{4 * depth + 4}}{name:<{46 - 4 * depth}}: {said} "
        for name, said in values.items()
    )
    return "\n".join((f"{'':{4 * depth}}{section}", *below))


def summary(*numbers: int, board: str = "", changes: Mapping[str, str] | None = None) -> str:
    """``mx-smi --summary``; changes by name of a value."""

    def one(number: int) -> str:
        sections: dict[str, dict[str, object]] = {
            "Version": {"MACA": "3.5.3.20", "BIOS": "1.33.5.0", "KMD": "3.8.30"},
            "Serial Number": {"chip serial": f"TP6B24_15_3_{number}", "board serial": board or f"AENA24240000{number}"},
            "Utilization": {"GPU": f"{71 + number} %", "VPUE": "3 %", "VPUD": "4 %"},
            "Chip Temperature": {f"hotspot(sensor{number + 1})": f" {48 + number}.50 C"},
            "Board Temperature": {"DrMOS_core": " 29.00 C", "air-inlet": " 28.62 C"},
            "Board Power": {"Way 0": " 25.789 W", "Way 1": " 26.748 W", "Total": f" {162 + number}.015 W", "Limit": "350.000 W"},
            "Clocks": {"XCORE": {"XCORE_CLK": "1125 MHz"}, "MC0": {"MC0_DFICLK": "1800 MHz", "MC0_BYPASSCLK": "642 MHz"}},
            "Memory": {"vis_vram used": "1024 KB", "vram total": "67108864 KB", "vram used": "16777216 KB", "vram usage": "25 %"},
        }
        changed = changes or {}
        return "\n\n".join(lines(name, {key: changed.get(key, said) for key, said in values.items()}) for name, values in sections.items())

    return blocks(numbers, one)


def slow(*numbers: int, changes: Mapping[str, str] | None = None) -> str:
    """The errors, the PCIe link and the reasons for low clocks, which are printed one after the other, each for all GPUs."""
    reasons = ("Idle", "Applications Limit", "Over Power", "Chip Over Temperature", "Power Brake", "Low Usage", "Other")
    errors = ("SRAM Correctable", "SRAM Uncorrectable", "DRAM Correctable", "DRAM Uncorrectable")
    sections: dict[str, Callable[[int], dict[str, str]]] = {
        "ECC Errors": lambda number: {name: str(10 * number + place) for place, name in enumerate(errors)},
        "Retired Pages": lambda number: {"Double Bit ECC": str(4 + number)},
        "Ecc state": lambda _: {"state": "Enable"},
        "Pcie Info": lambda _: {"Current Speed": "16 GT/s", "Current Width": "x8", "Max Speed": "32 GT/s", "Max Width": "x16"},
        "Pcie Bandwidth": lambda number: {"RX": f"{12 + number} MBytes/s", "TX": "7 MBytes/s"},
        "Xcore Clocks Throttle Reason": lambda _: dict.fromkeys(reasons, "Not Active"),
    }
    changed = changes or {}

    def one(section: str) -> Callable[[int], str]:
        return lambda number: lines(section, {name: changed.get(name, said) for name, said in sections[section](number).items()})

    return "\n".join(blocks(numbers, one(section)) for section in sections)


def listing(*numbers: int) -> str:
    """``mx-smi -L``, with one GPU that may not be read."""
    found = [f"GPU#{n}    MXC500      {address(n)}   Available (UUID: GPU-0a1b2c3d-0000-4000-8000-00000000000{n})\n" for n in numbers]
    return f"mx-smi  version: 2.2.12\n{''.join(found)}GPU#7    MXC500      0000:99:00.0   Not Available(MetaX Sysfs File Unaccessible)\n"


IDLE = "|  no process found                                                               |"
RULE = "+------------------------------------+---------------------+----------------------+"
BAR = "+---------------------------------------------------------------------------------+"
HEADS = {
    "2.1.6": (
        "| GPU         NAME                   | Bus-id              | GPU-Util             |",
        "| Temp        Power                  | Memory-Usage        |                      |",
    ),
    "2.2.4": (
        "| GPU         NAME                   | Bus-id              | GPU-Util             |",
        "| Temp        Pwr:Usage/Cap          | Memory-Usage        | GPU-State            |",
    ),
    "2.2.6": (
        "| GPU     NAME         Persistence-M | Bus-id              | GPU-Util      sGPU-M |",
        "| Temp    Pwr:Usage/Cap         Perf | Memory-Usage        | GPU-State            |",
    ),
    "2.2.12": (
        "| Board       Name | GPU   Persist-M | Bus-id              | GPU-Util      sGPU-M |",
        "| Pwr:Usage/Cap    | Temp       Perf | Memory-Usage        | GPU-State            |",
    ),
}
"""By release, the headings of its table."""


def table(
    *numbers: int, release: str = "2.2.12", boards: Mapping[int, str] | None = None, processes: Iterable[str] = (IDLE,), **changes: str
) -> str:
    """The table of some GPUs, and that of the processes.

    Args:
        numbers: The GPUs.
        release: The release of the tool.
        boards: The numbers of their boards, where those are others than the GPUs'.
        processes: The rows of the processes.
        changes: Cells that are others: ``util``, ``memory``, ``temp``, ``power``, ``perf``.
    """
    rows = []
    for number in numbers:
        said = {"util": f"{71 + number}%", "memory": "16384/65536 MiB", "temp": f"{48 + number}C", "power": f"{162 + number}W / 350W"}
        said |= {"perf": "P3"} | changes
        power = said["power"].partition(" ")[0] if release == "2.1.6" else said["power"]
        right = (
            f"| {address(number):<19} | {said['util']:<20} |",
            f"| {said['memory']:<19} | {'' if release == '2.1.6' else 'Available':<20} |",
        )
        if release == "2.2.12":
            board = (boards or {}).get(number, str(number))
            left = f"| {board:<6}MetaX C500 | {number:<12}Off ", f"| {said['power']:<16} | {said['temp']:<11}{said['perf']:>4} "
        elif release == "2.2.6":
            left = f"| {number:<8}MetaX C500             Off ", f"| {said['temp']:<8}{said['power']:<18}{said['perf']:>8} "
        else:
            left = f"| {number:<12}{'MetaX C500':<22} ", f"| {said['temp']:<12}{power:<22} "
        rows += [*(f"{one}{other}" for one, other in zip(left, right, strict=True)), RULE]
    title = "|  GPU                    PID         Process Name                 GPU Memory     |"
    top = (
        f"| MX-SMI {release:<28}Kernel Mode Driver Version: 3.8.30           |",
        "| MACA Version: 3.5.3.20             BIOS Version: 1.33.5.0     |",
    )
    return "\n".join(
        [
            f"mx-smi  version: {release}\n\n=== MetaX System Management Interface Log ===\n",
            *(BAR, *top, "|------------------+-----------------+---------------------+----------------------|", *HEADS[release]),
            *(
                "|==================+=================+=====================+======================|",
                *rows,
                "",
                BAR,
                f"| Process:{' ' * 72}|",
            ),
            *(title, f"|{'Usage(MiB)':>76}     |", f"|{'=' * 81}|", *processes, BAR, "\nEnd of Log\n"),
        ]
    )


def process(gpu: int, pid: int, memory: str = "128", name: str = "python train.py") -> str:
    """One row of the processes."""
    return f"|  {gpu:<19}{pid:>8}         {name:<29}{memory:<15}|"


def answer(tool: CommandStandIn, *numbers: int, hang: bool = False, cut: int | None = None) -> None:
    """Have the tool answer all that it is asked for some GPUs."""
    tool.behave(HELP, asked="-h")
    for asked, said in {
        "--summary": summary(*numbers),
        "": table(*numbers),
        "--count-ecc": slow(*numbers),
        "-L": listing(*numbers),
    }.items():
        tool.behave(said[:cut], asked=asked, hang=hang)
