"""The output of ``npu-smi``, in the forms that it has for each generation of chips, after the vendor's manuals."""

from __future__ import annotations

from collections.abc import Mapping

CELLS = {
    # of each form: the cells of both lines of headings
    "910B": (("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"), ("Chip", "Bus-Id", "{util}")),
    "A3": (("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"), ("Chip  Phy-ID", "Bus-Id", "{util}")),
    "310": (("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"), ("Chip  Device", "Bus-Id", "{util}")),
    "950": (("NPU ID", "Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"), ("", "", "Bus-Id", "{util}")),
}
UTILISATION = {
    "910B": "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)",
    "A3": "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)",
    "310": "AICore(%)   Memory-Usage(MB)",
    "950": "NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)",
}
WIDTHS = {"950": (8, 18, 15, 56)}
LINE, DOUBLE = "-", "="


def chip(npu: int, chip: int = 0, form: str = "910B", **changed: str) -> dict[str, str]:
    """One chip's values as texts; each has its own."""
    device = 2 * npu + chip if form in ("A3", "310") else npu
    values = {
        **{"npu": str(npu), "chip": str(chip), "device": str(device), "health": "OK", "bus": f"0000:{0xC1 + device:02X}:00.0"},
        **{"power": f"9{device}.5", "temp": f"4{device}", "util": f"2{device}", "ddr": "0    / 0", "hbm": f"{3400 + device} / 65536"},
        **{"name": {"910B": "910B3", "A3": "Ascend910", "310": "310P3", "950": "Ascend950PR"}[form], "huge": "0    / 0"},
    }
    if form == "A3" and chip:
        values["power"] = "-"
    if form == "310":
        values |= {"power": "NA", "ddr": f"{1800 + device} / 21527", "hbm": ""}
    return values | changed


def info(*chips: Mapping[str, str], form: str = "910B", processes: str | None = None, version: str = "24.1.0") -> str:
    """``npu-smi info``.

    Args:
        chips: In the order in which they are listed.
        form: The form of the table.
        processes: The lines of the table of processes; None where the tool prints no such table.
        version: That of tool and driver.
    """
    widths = WIDTHS.get(form, (27, 15, 56))
    inside = sum(widths) + len(widths) - 1

    def line(cells: tuple[str, ...]) -> str:
        return "|" + "|".join(f" {cell}".ljust(width) for cell, width in zip(cells, widths, strict=True)) + "|"

    def rule(stroke: str) -> str:
        return "+" + "+".join(stroke * width for width in widths) + "+"

    first, second = CELLS[form]
    lines = [f"+{LINE * inside}+", f"| npu-smi {version}".ljust(36) + f"Version: {version}".ljust(inside - 35) + "|", rule(LINE)]
    lines += [line(first), line(tuple(cell.replace("{util}", UTILISATION[form]) for cell in second)), rule(DOUBLE)]
    for place, each in enumerate(chips):
        top, bottom = f"{each['power']:<12}{each['temp']:<18}{each['huge']}", f"{each['util']:<12}{each['ddr']:<18}{each['hbm']}"
        if form == "950":
            lines += [line((each["npu"], each["name"], each["health"], top)), line(("", "", each["bus"], bottom))]
        else:
            number = f"{each['chip']:<6}{each['device']}" if form in ("A3", "310") else each["chip"]
            lines += [line((f"{each['npu']:<6}{each['name']}", each["health"], top)), line((number, each["bus"], bottom))]
        last = place == len(chips) - 1 or chips[place + 1]["npu"] != each["npu"]
        lines.append(rule(DOUBLE) if last else f"+{LINE * inside}+")
    if processes is not None:
        head, *rows = processes.splitlines()
        lines += [rule(LINE), head, *(line for row in rows for line in (rule(DOUBLE), row)), rule(DOUBLE)]
    return "\n".join(lines) + "\n"


def programs(*rows: tuple[object, ...], form: str = "910B", idle: tuple[int, ...] = (), container: bool = False) -> str:
    """The lines of the table of processes: NPU, chip, process, name, MB and, since release 26, the process's number in a container."""
    head = "| NPU ID                    " if form == "950" else "| NPU     Chip              "
    lines = [
        f"{head}| Process id    | Process name             | Process memory(MB)       |{' Process id in container |' if container else ''}"
    ]
    for npu, number, pid, name, memory, *here in rows:
        owner = f"{npu}" if form == "950" else f"{npu!s:<8}{number}"
        last = f" {here[0]!s:<23} |" if container else ""
        lines.append(f"| {owner:<26}| {pid!s:<13} | {name!s:<24} | {memory!s:<24} |{last}")
    lines += [f"| No running processes found in NPU {npu:<60} |" for npu in idle]
    return "\n".join(lines)


def common(npu: int, chips: int = 1, form: str = "910B") -> str:
    """``npu-smi info -t common -i``, where the chip's number begins its values, and the card's controller follows."""
    text = _head(npu, chips, form)
    for number in range(chips):
        text += "" if form == "950" else f"\n\tChip ID                        : {number}\n"
        text += _lines(
            {
                **{"Memory Usage Rate(%)": "6", "HBM Usage Rate(%)": "5", "Aicore Usage Rate(%)": f"2{number}", "Aicore Freq(MHZ)": "1800"},
                **{"Aicore curFreq(MHZ)": f"{800 + 100 * npu + number}", "Aicore Count": "24", "Temperature(C)": "46"},
                **{"NPU Real-time Power(W)": "69.0"},
            }
        )
    return text + ("" if form == "950" else "\n\tChip Name                      : mcu\n\tTemperature(C)                 : 38\n")


def usages(npu: int, chips: int = 1, form: str = "910B") -> str:
    """``npu-smi info -t usages -i``, where the chip's number ends its values."""
    hbm = "0" if form == "310" else "65536"
    values = {"DDR Capacity(MB)": "15079", "HBM Capacity(MB)": hbm, "HBM Usage Rate(%)": "5", "Aicore Usage Rate(%)": "20"}
    return _closed(npu, chips, form, {**values, "DDR Bandwidth Usage Rate(%)": "3", "HBM Bandwidth Usage Rate(%)": "1{n}"})


def memory(npu: int, chips: int = 1, form: str = "910B") -> str:
    """``npu-smi info -t memory -i``."""
    values = {"DDR Capacity(MB)": "0", "HBM Capacity(MB)": "65536", "HBM Clock Speed(MHz)": "1600", "HBM Temperature(C)": "5{n}"}
    return _closed(npu, chips, form, {**values, "HBM Manufacturer ID": "0x56"})


def ecc(npu: int, chips: int = 1, form: str = "910B", memories: tuple[str, ...] = ("HBM",), first: int = 0) -> str:
    """``npu-smi info -t ecc -i``, whose counts go up from ``first``."""
    counts = (
        "Single Bit Error Count",
        "Double Bit Error Count",
        "Single Bit Aggregate Total Err Cnt",
        "Double Bit Aggregate Total Err Cnt",
    )
    pages = ("Single Bit Isolated Pages Count", "Double Bit Isolated Pages Count", "Double Bit Next-Isolated Pages Count")
    values = {f"{kind} {name}": str(place) for kind in memories for place, name in enumerate((*counts, *pages), first)}
    return _closed(npu, chips, form, values)


def _head(npu: int, chips: int, form: str) -> str:
    return f"\tNPU ID                         : {npu}\n" + ("" if form == "950" else f"\tChip Count                     : {chips}\n")


def _closed(npu: int, chips: int, form: str, values: Mapping[str, str]) -> str:
    text = _head(npu, chips, form)
    for number in range(chips):
        text += ("" if form == "950" else "\n") + _lines({key: value.replace("{n}", str(npu + number)) for key, value in values.items()})
        text += "" if form == "950" else f"\tChip ID                        : {number}\n"
    return text


def _lines(values: Mapping[str, str]) -> str:
    return "".join(f"\t{key:<40} : {value}\n" for key, value in values.items())
