"""Who a card is, from what ``rocm-smi`` prints and the kernel adds."""

from __future__ import annotations

import re
from collections import Counter

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.fields import EDGE, JUNCTION, MEMORY, card_memory
from accelmetrics.backends.amd.rocm_smi_json import Card
from accelmetrics.backends.amd.values import is_absent, text
from accelmetrics.schemas.identity import DeviceIdentity

NAMES = ("Card Series", "Device Name", "Card Model", "Device ID", "GPU ID")
SOCKET_POWER = ("Current Socket Graphics Package Power (W)",)

_DECIMAL_GFX = re.compile(r"gfx(9|1\d)(\d)(\d\d)", re.ASCII)
_GFX = re.compile(r"gfx[0-9a-f]{3,5}", re.ASCII)


def identify(cards: dict[int, Card], system: Card) -> tuple[DeviceIdentity, ...]:
    """The devices in the order of their card numbers."""
    shared = {uuid for uuid, count in Counter(unique_id(card) for card in cards.values()).items() if count > 1}
    return tuple(_identify(number, cards[number], system, shared) for number in sorted(cards))


def _identify(number: int, card: Card, system: Card, shared: set[str]) -> DeviceIdentity:
    address, uuid, unified = pci_bus_id(card), unique_id(card), is_unified(card)
    total = card_memory(card, unified).total
    return DeviceIdentity(
        kind="gpu",
        vendor="amd",
        vendor_index=number,
        name=_first(card, NAMES),
        # The partitions of one card print one id: it names none of them.
        uuid="" if uuid in shared else uuid,
        pci_bus_id=address,
        serial=text(card.get("serial number")),
        architecture=architecture(text(card.get("gfx version"))),
        driver_version=text(system.get("driver version")),
        firmware=text(card.get("vbios version")),
        memory_total_bytes=total if isinstance(total, int) else None,
        numa_node=sysfs.numa_node(address),
        unified=unified,
    )


def unique_id(card: Card) -> str:
    """The card's unique id as printed (``0x5c…``); empty where it has none, which some print as zero."""
    printed = text(card.get("unique id"))
    return "" if printed.removeprefix("0x").strip("0") == "" else printed


def pci_bus_id(card: Card) -> str:
    """``0000:29:00.0`` as printed; empty when it was not."""
    return text(card.get("pci bus"))


def is_unified(card: Card) -> bool:
    """Whether the card is part of a processor and shares its memory.

    The kernel says so where it knows the card's address. Otherwise it is told by what such a GPU has and a card has not:
    a socket's power, and an edge sensor alone.
    """
    known = sysfs.is_integrated(pci_bus_id(card))
    if known is not None:
        return known
    edge_alone = _has(card, EDGE) and not _has(card, (*JUNCTION, *MEMORY))
    return edge_alone and _has(card, SOCKET_POWER)


def architecture(printed: str) -> str:
    """``gfx90a``, from that or from ``gfx9010``: releases since 6.1 print the stepping with two decimal digits."""
    match = _DECIMAL_GFX.fullmatch(printed)
    if match:
        return f"gfx{match.group(1)}{match.group(2)}{int(match.group(3)):x}"
    return printed if _GFX.fullmatch(printed) else ""


def _has(card: Card, keys: tuple[str, ...]) -> bool:
    return any(not is_absent(card.get(key.lower())) for key in keys)


def _first(card: Card, keys: tuple[str, ...]) -> str:
    return next((found for found in (text(card.get(key.lower())) for key in keys) if found), "")
