"""What a Cambricon machine answers: a C library with the functions of ``libcndev``, and texts as ``cnmon`` prints them."""

from __future__ import annotations

from pathlib import Path

from tests.simulators.stated import compiled


def build(directory: Path) -> Path:
    """Compile the library."""
    return compiled(Path(__file__).parent / "cndev.c", directory / "libcndev.so")


def row(number: int, **changed: str) -> str:
    """The two lines of a card in the table of release 5."""
    said = {"name": "MLU370-X8", "address": f"0000:{0x39 + 4 * number:02X}:00.0", "util": "63%", "fan": "0%", "temp": "32C"}
    said |= {"power": "106 W/ 250 W", "memory": "1024 MiB/ 23374 MiB"} | changed
    return (
        f"| {number:<5} /   {said['name']:<12} v1.1.6 | {said['address']:>20} | {said['util']:<10}       N/A |\n"
        f"|  {said['fan']:<3}  {said['temp']:<6} {said['power']:>18} | {said['memory']:>20} | N/A           Default |\n"
    )


RULE = "+-------------------------------+----------------------+-----------------------+\n"


def table(*rows: str, processes: str = "") -> str:
    """The table, with lines of processes below it."""
    head = (
        "+------------------------------------------------------------------------------+\n"
        "| CNMON v5.10.13                                               Driver v5.10.13 |\n"
        f"{RULE}"
        "| Card  VF  Name       Firmware |               Bus-Id | Util        Ecc-Error |\n"
        "| Fan   Temp      Pwr:Usage/Cap |         Memory-Usage | SR-IOV   Compute-Mode |\n"
        "|===============================+======================+=======================|\n"
    )
    below = (
        f"\n{RULE}|  Processes:                                                                  |\n{processes}{RULE}" if processes else ""
    )
    return f"{head}{RULE.join((*rows, ''))}{below}"


def process(card: int, pid: int, memory: int, command: str = "python3") -> str:
    """One line of them."""
    return f"|  {card}     /   {pid:<7} {command:<30} {memory:>12} MiB  |\n"


def info(number: int, **changed: str) -> str:
    """A card in the list of ``cnmon info``."""
    said = {"util": "63 %", "chip": "41 C", "memory": "38 C", "used": "1024 MiB", "power": "106 W"} | changed
    return f"""Card {number}
        Product Name                   : MLU370-X8
        UUID                           : 20001012-1916-0000-0000-{number:012}
        Driver                         : v5.10.13
        PCI
                Device ID              : 0xcabc0370
                Domain ID              : 0000
                Bus num                : {0x39 + 4 * number:02x}
                Device                 : 00
                Function               : 0
                Current Speed          : 8 GT/s
                Max Speed              : 16 GT/s
                Current Width          : x8
                Max Width              : x16
        Physical Memory Usage
                Total                  : 23374 MiB
                Used                   : {said["used"]}
                Free                   : 22350 MiB
        Virtual Memory Usage
                Total                  : 1048576 MiB
                Used                   : 77 MiB
        Utilization
                MLU Average            : {said["util"]}
                MLU Core 0             : 7 %
        Temperature
                Board                  : 31 C
                Chip                   : {said["chip"]}
                Memory                 : {said["memory"]}
        Power
                Usage                  : {said["power"]}
                Cap                    : 250 W
"""
