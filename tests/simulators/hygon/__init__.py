"""What ``hy-smi`` prints: its document with all its commas or without some, its lines, its table under the names of two releases."""

from __future__ import annotations

import json
from collections.abc import Mapping

from accelmetrics.backends.hygon import STEADY_FLAGS
from tests.simulators.commands import CommandStandIn

NO_DEVICE = "======== System Management Interface ========\nERROR: No device found\n======== End of SMI Log ========\n"


def address(number: int) -> str:
    """The PCI address of a DCU."""
    return f"0000:{0x09 + number:02x}:00.0"


def card(number: int, word: str = "HCU", **changed: str) -> dict[str, str]:
    """What is told of a DCU every time.

    Args:
        number: Its number.
        word: The word for such a card: ``DCU`` before DTK 25.04.
        changed: Values that are others, by the last word of their name before the unit.
    """
    values = {
        "Temperature (Sensor edge) (C)": f"{51 + number}.0",
        "Temperature (Sensor junction) (C)": f"{56 + number}.0",
        "Temperature (Sensor mem) (C)": f"{48 + number}.0",
        "mclk clock level": "1 (1800Mhz)",
        "mclk clock speed": "(1800Mhz)",
        "sclk clock level": "9 (1350Mhz)",
        "sclk clock speed": "(1350Mhz)",
        "pcie clock level": "2 (32.0GT/s, x16 1100Mhz)",
        "Average Graphics Package Power (W)": f"{188 + number}.5",
        f"{word} use (%)": f"{63 + number}.5",
        f"{word} memory use (%)": "25",
        "PCI Bus": address(number),
        "vram Total Memory (MiB)": "65520",
        "vram Total Used Memory (MiB)": "16380",
    }
    return {key: changed.get((key.rpartition(" (")[0] or key).rpartition(" ")[2].strip(")"), said) for key, said in values.items()}


def about(number: int) -> dict[str, str]:
    """What is told of it now and then."""
    return {
        "Unique ID": f"0x5c88007bd1f20a{number:02x}",
        "Serial Number": f"TMB24{number:06}",
        "Card Series": "K100_AI",
        "Card Model": "0x6210",
        "Card Vendor": "Chengdu Haiguang IC Design Co., Ltd.",
        "Max Graphics Package Power (W)": "400.0",
        "PCI Bus": f"{address(number)} --> SN: TRAY-7",
    }


def document(cards: Mapping[int, Mapping[str, str]], commas: bool = True) -> str:
    """The document of some DCUs. Without commas, the one before the share of use is missing, as on BW cards."""
    printed = json.dumps({f"card{number}": values for number, values in cards.items()})
    return printed if commas else printed.replace('", "HCU use', '""HCU use').replace('", "Serial', '""Serial')


def lines(cards: Mapping[int, Mapping[str, str]]) -> str:
    """The same where no document is printed: as all that is told of one, card by card."""
    rows = (f"HCU[{number}]\t\t: {key}: {said}\n" for number, values in cards.items() for key, said in values.items())
    return f"\n{'=' * 30} System Management Interface {'=' * 30}\n{''.join(rows)}{'=' * 30} End of SMI Log {'=' * 30}\n"


def table(*numbers: int, word: str = "HCU", changes: Mapping[str, str] | None = None, coders: bool = False) -> str:
    """The table that is printed without arguments.

    Args:
        numbers: The DCUs.
        word: The word for such a card.
        changes: Cells that are others, by heading.
        coders: Whether it has the columns of encoders and decoders, as DTK 26.04.
    """
    heads = [word, "Temp", "AvgPwr", "Perf", "PwrCap", "VRAM%", f"{word}%", *(("Dec%", "Enc%") if coders else ()), "Mode"]
    rows = [heads]
    for number in numbers:
        cells = {"Temp": f"{51 + number}.0C", "AvgPwr": f"{188 + number}.5W", "Perf": "auto", "PwrCap": "400.0W", "VRAM%": "25%"}
        cells |= {f"{word}%": f"{63 + number}.5%", "Dec%": "4%", "Enc%": "3%", "Mode": "Normal", word: str(number)}
        rows.append([(changes or {}).get(head, cells[head]) for head in heads])
    drawn = "\n".join("     ".join(f"{cell:<8}" for cell in row).rstrip() for row in rows)
    return f"\n{'=' * 20} System Management Interface {'=' * 20}\n{'=' * 70}\n{drawn}\n{'=' * 70}\n{'=' * 25} End of SMI Log {'=' * 25}\n"


def answer(tool: CommandStandIn, *numbers: int, hang: bool = False, cut: int | None = None, commas: bool = True) -> None:
    """Have the tool answer all that it is asked for some DCUs."""
    for asked, said in {
        "--showuse": document({number: card(number) for number in numbers}, commas),
        " ".join(STEADY_FLAGS): document({number: about(number) for number in numbers}, commas),
        "--showproductname": lines({number: {"Card Series": about(number)["Card Series"]} for number in numbers}),
        "": table(*numbers),
    }.items():
        tool.behave(said[:cut], asked=asked, hang=hang)
