"""The output of ``hl-smi`` and the files of the habanalabs driver, by the vendor's documentation and programs that read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.simulators.commands import ScriptedCommand

UNITS = {
    **{"memory.used": "MiB", "memory.total": "MiB", "power.draw": "W", "power.max": "W", "temperature.aip": "C", "utilization.aip": "%"},
    **{"clocks.current.soc": "MHz", "clocks.max.soc": "MHz"},
}
"""By field, its unit: in the heading, and beside each value."""
FIELDS = {
    **{"index": "{n}", "name": "HL-225", "uuid": "01P0-HL2080A0-14-T7U1{n}", "serial": "AM000{n}", "bus_id": "0000:3{n}:00.0"},
    **{"module_id": "{module}", "driver_version": "1.21.0-0badcaf", "memory.used": "{used}", "memory.total": "98304"},
    **{"power.draw": "11{n}", "power.max": "600", "temperature.aip": "3{n}", "utilization.aip": "6{n}"},
    **{"clocks.current.soc": "1650", "clocks.max.soc": "1800", "ecc.errors.corrected.volatile.total": "3"},
    **{"ecc.errors.uncorrected.volatile.total": "0", "ecc.errors.corrected.aggregate.total": "9"},
    **{"ecc.errors.uncorrected.aggregate.total": "1", "ecc.errors.dram-corrected.volatile.total": "2"},
    **{"ecc.errors.dram-corrected.aggregate.total": "5", "pcie.link.gen.current": "N/A", "pcie.link.width.current": "N/A"},
    **{"pcie.link.gen.max": "Gen4", "pcie.link.width.max": "x16"},
}
"""By field of a query, what a release answers that knows all of them; ``{module}`` is 7 less the number."""
PROGRAM = """\
import json, os, sys, time
from pathlib import Path
with (Path(__file__).parent / "calls.jsonl").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
state = json.loads((Path(__file__).parent / "behaviour.json").read_text())
while state.get("hang"):
    time.sleep(60)
if "stdout" in state:
    print(state["stdout"], end="")
    print(state["stderr"], end="", file=sys.stderr)
    sys.exit(state["status"])
logs = os.environ.get("HABANA_LOGS", "")
if not os.path.isdir(logs) or not os.access(logs, os.W_OK):
    sys.exit("failed to create the log directory")
if "-Q" not in sys.argv:
    print(state["table"], end="")
    sys.exit(0 if state["table"] else 1)
asked = sys.argv[sys.argv.index("-Q") + 1].split(",")
unknown = [field for field in asked if field not in state["known"]]
if unknown:
    sys.exit(f"hl-smi: unknown query {unknown[0]}")
print(", ".join(f"{field} [{state['units'][field]}]" if field in state["units"] else field for field in asked))
for row in state["rows"]:
    print(", ".join(row[field] for field in asked))
"""


class HlSmi(ScriptedCommand):
    """The command in a directory of its own, listing no device at first.

    Args:
        directory: Where to put it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, PROGRAM, "hl-smi")
        self.lists()

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every run so far."""
        return self.noted()

    def lists(self, *numbers: int, without: tuple[str, ...] = (), changes: Mapping[str, str] = {}) -> None:
        """List these devices from the next run on; fields of ``without`` are unknown, those of ``changes`` are printed as given."""
        rows = [row(number, changes) for number in numbers]
        printed = table(*numbers) if numbers else ""
        self.scripted({"rows": rows, "units": UNITS, "known": sorted(FIELDS.keys() - set(without)), "table": printed})

    def prints(self, stdout: str, stderr: str = "", status: int = 0) -> None:
        """Print this, whatever is asked."""
        self.scripted({"stdout": stdout, "stderr": stderr, "status": status})

    def prints_table(self, printed: str) -> None:
        """Know no query, and print a table by itself."""
        self.scripted({"rows": [], "units": {}, "known": [], "table": printed})

    def hangs(self) -> None:
        """Never answer."""
        self.scripted({"hang": True})


def row(number: int, changes: Mapping[str, str] = {}) -> dict[str, str]:
    """One device, by field."""
    values = {"n": str(number), "module": str(7 - number), "used": str(768 + 1024 * number)}
    printed = {field: text.format_map(values) for field, text in FIELDS.items()}
    return {field: f"{text} {UNITS[field]}" if field in UNITS else text for field, text in printed.items()} | dict(changes)


def table(*numbers: int, old: bool = False, used: str = "") -> str:
    """``hl-smi`` by itself: of release 1.21, or of 1.4."""
    share = "N/A" if old else " 1%"
    rule = "|-------------------------------+----------------------+----------------------+"
    rows = "\n".join(
        f"""|   {n}  HL-2{"05" if old else "25"}              N/A  | 0000:3{n}:00.0     N/A |                   {n}  |
| N/A   3{n}C  {"N/A" if old else " P0"}   11{n}W /  600W  | {used or f"{1024 * n + 768}MiB"} /  98304MiB |    6{n}%           {share} |
{rule}"""
        for n in numbers
    )
    return f"""\
+-----------------------------------------------------------------------------+
| HL-SMI Version:                              hl-1.21.0-fw-59.2.1.0          |
| Driver Version:                                     1.21.0-0badcaf          |
{"" if old else "| Nic Driver Version:                                 1.21.0-5c0ffee          |"}
{rule}
| AIP  Name        Persistence-M| Bus-Id        Disp.A | Volatile {"Uncorr. ECC " if old else "Uncor-Events"}|
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | AIP-Util  Compute M. |
|===============================+======================+======================|
{rows}
| Compute Processes:                                               AIP Memory |
|  AIP       PID   Type   Process name                             Usage      |
|=============================================================================|
|   0        N/A   N/A    N/A                                      N/A        |
+=============================================================================+
""".replace("\n\n", "\n")


SENSORS = """\
chip "HL205-pci-*"
    label temp1 "On Chip"
chip "HL225-pci-*" "HL225B-pci-*"
    label temp1 "On Board"
    label temp2 "On Chip HBM0"
    label temp3 "On Chip MME"
    label temp9 "On Chip spare"
    ignore temp9
chip "HL325-pci-*"
    label temp1 "On Chip"
"""


class GaudiTree:
    """The driver's files of no card at first.

    Args:
        root: The root in front of ``/sys``, ``/proc`` and ``/dev``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(root / "etc/sensors.d/hl_sensors.conf", SENSORS)

    def slot(self, number: int) -> Path:
        """The PCI device's directory; card 0 is at 0000:30:00.0."""
        return self.root / f"sys/devices/pci0000:2f/0000:3{number}:00.0"

    def card(self, number: int, *, minor: int | None = None, driven: bool = True) -> None:
        """A card in its slot, ``/dev/accel/accel<minor>`` where the driver is loaded; beside each is its control node."""
        minor = number if minor is None else minor
        slot = self.slot(number)
        link = {
            "current_link_speed": "16.0 GT/s PCIe",
            "current_link_width": "8",
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": "16",
        }
        for name, text in {"vendor": "0x1da3", "device": "0x1020", "class": "0x120000", "numa_node": "1", **link}.items():
            self.write(slot / name, text)
        self._link(self.root / f"sys/bus/pci/devices/{slot.name}", slot)
        if not driven:
            return
        self._link(slot / "driver", self.root / "sys/bus/pci/drivers/habanalabs")
        sensors = {"name": "HL225", "temp1_input": "29000", "temp2_input": f"4{number}500", "temp3_input": "38000", "temp9_input": "99000"}
        for name, text in {"device_type": "GAUDI2", "max_power": "550000", "clk_cur_freq_mhz": "1500"}.items():
            self.write(slot / name, text)
        for name, text in sensors.items():
            self.write(slot / f"hwmon/hwmon{number}/{name}", text)
        for name in (f"accel{minor}", f"accel_controlD{minor}"):
            self.write(slot / f"accel/{name}/dev", f"261:{minor}")
            self._link(slot / f"accel/{name}/device", slot)
            self._link(self.root / f"sys/class/accel/{name}", slot / f"accel/{name}")

    def holding(self, pid: int, *nodes: str) -> None:
        """A process that has these nodes open."""
        descriptors = self.root / f"proc/{pid}/fd"
        descriptors.mkdir(parents=True)
        for descriptor, node in enumerate(nodes, 3):
            (descriptors / str(descriptor)).symlink_to(f"/dev/accel/{node}")

    @staticmethod
    def write(file: Path, text: str) -> None:
        """Write one file, with the line's end that the kernel puts there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "utf-8")

    @staticmethod
    def _link(link: Path, to: Path) -> None:
        to.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(to)
