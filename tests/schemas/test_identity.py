"""What devices are known by."""

from __future__ import annotations

import pytest

from accelmetrics.schemas.identity import pci_address


@pytest.mark.parametrize(
    "text",
    [
        *("0000:3b:00.0", "0000:3B:00.0", "00000000:3B:00.0", "3b:00.0", "00:3b:00.0", " 3B:00.0\n", "3b:0.0"),
        *("0x3b:00.0", "0x0000:0x3b:0x00.0x0", "0X0000:3B:00.0"),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_writes_them(text: str) -> None:
    assert pci_address(text) == "0000:3b:00.0"


@pytest.mark.parametrize(
    ("text", "address"), [("00010000:3b:00.0", "10000:3b:00.0"), ("1:3B:1f.7", "0001:3b:1f.7"), ("0001:00:00.0", "0001:00:00.0")]
)
def test_domains_bridges_and_functions_tell_devices_apart(text: str, address: str) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize("text", ["", "0", "C1", "N/A", "a:b:c:d:e", "3b:00", "3b:00.8", "100:00.0", "switch"])
def test_what_is_no_pci_address_stays(text: str) -> None:
    """In lower case: no part of it is made up."""
    assert pci_address(f" {text}") == text.lower()
