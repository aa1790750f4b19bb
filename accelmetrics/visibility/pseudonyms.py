"""Pseudonyms for names and ids of a machine, its devices and its users, in texts and raw buffers that leave the machine.

A value has the same pseudonym everywhere, with the same form and length: a digit is replaced by a digit, a letter by a letter. So a parser
of the original also parses the pseudonym. Pseudonyms are drawn with a random key that is never stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

UUID, SERIAL, HOST, USER, PROCESS, ADDRESS, IDENTIFIER = (
    *("UUIDs", "serial numbers", "host names", "user names", "process names", "network addresses", "long identifiers"),
)
COMMON = frozenset(
    {
        *(
            "root",
            "nobody",
            "daemon",
            "admin",
            "user",
            "users",
            "home",
            "ubuntu",
            "debian",
            "localhost",
            "localdomain",
            "host",
            "node",
            "server",
        ),
        *("vm", "worker", "main", "test", "gpu", "gpus", "cpu", "npu", "nvidia", "amd", "amdgpu", "intel", "device", "devices", "driver"),
        *("python", "python3", "bash", "sh", "zsh", "sleep", "java", "ray", "accelmetrics"),
    }
)
"""Names that identify nobody. They are also ordinary words in the output of vendors' tools, and parsers need them."""
SHORTEST = 3
"""Characters that a name must have to be replaced. A shorter one occurs by chance in too many places."""

_HEX = re.compile("[0-9a-f]{8,}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}", re.IGNORECASE)
_UUID = rb"(?<![0-9a-f])[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}(?![0-9a-f])"
_FORMS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    (UUID, re.compile(_UUID, re.IGNORECASE)),
    (IDENTIFIER, re.compile(rb"(?<![0-9a-f])[0-9a-f]{32,128}(?![0-9a-f])", re.IGNORECASE)),
    (ADDRESS, re.compile(rb"(?<![0-9a-f:])[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?::[0-9a-f]{2}){0,14}(?![0-9a-f:])", re.IGNORECASE)),
    (ADDRESS, re.compile(rb"(?<![0-9a-f:.])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{4}(?![0-9a-f:.])", re.IGNORECASE)),
    (ADDRESS, re.compile(rb"(?<![0-9a-z:.])[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?(?![0-9a-z:.])")),
    (ADDRESS, re.compile(rb"(?<![0-9.])(?!127\.|0\.|255\.)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![0-9.])")),
)
# In this order: UUIDs, ids of containers, MAC addresses, InfiniBand's GUIDs and long IPv6, IPv6 with "::", IPv4 without loopback and masks.
_HOMES = re.compile(rb"(?<=/home/|Users/)[^/\0\s\"':,;]+")
_SERIALS = re.compile(
    rb"(?:serial|unique[ _-]?id)(?:[ _-]?(?:number|num|no|id))?[\"']?[ \t]*(?:[:=][ \t]*[\"']?|[ \t])"
    rb"((?:0x)?[0-9A-Za-z][0-9A-Za-z-]{5,63})",
    re.IGNORECASE,
)
# "Serial Number: 1234567", in the spellings of commands and of the kernel.
_NAMES = frozenset({"name", "process_name", "command", "cmdline", "comm", "process"})
_OWNERS = frozenset({"user", "username", "user_name", "owner"})
_HOSTS = frozenset({"hostname", "host_name", "nodename", "node_name", "instance_name", "instance_id", "ami_id", "subnet_id"})
# Keys of JSON objects, in lower case with underscores. A "name" is a process's only in an object that also has a process id. Owners and
# hosts are read from any object.
_HOST_NAMES = re.compile(rb"(?:host|node)[ _-]?name[\"']?[ \t]*[:=][ \t]*[\"']?([0-9A-Za-z][0-9A-Za-z.-]+)", re.IGNORECASE)


class Pseudonyms:
    """A replacer of personal values: the added and learned ones, and all with the form of an id or address.

    Attributes:
        replaced: The replaced values by kind, in lower case.
        left: Known names that were not replaced.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._words = set(COMMON)
        self._names: dict[str, str] = {}
        self._known: dict[bytes, tuple[str, bytes]] = {}
        self._raw: dict[bytes, bytes] = {}
        self._issued: set[bytes] = set()
        self._form: re.Pattern[bytes] | None = None
        self.replaced: dict[str, set[bytes]] = {}
        self.left: set[str] = set()

    def keep(self, words: Iterable[str]) -> None:
        """Never replace a name that is a word in these texts, or a part of a ``camelCase`` word in them."""
        # Metric keys and file names have a meaning for parsers. A user called "power" must not change them.
        for text in words:
            self._words.update(word.lower() for form in ("[A-Za-z]+", "[A-Z]?[a-z]+") for word in re.findall(form, text))

    def add_name(self, kind: str, name: str) -> None:
        """Add the name of a host, user or process. It is replaced wherever it occurs as a word."""
        name = name.strip().strip("\0")
        if kind == HOST and "." in name:
            self.add_name(kind, name.partition(".")[0])  # "node-1.example.org" is often printed as "node-1"
        if name and name.lower() not in COMMON:
            self._form = None
            self._names[name] = kind

    def add_identity(self, kind: str, value: str) -> None:
        """Add a UUID or serial number. It is replaced in each of its forms: text, decimal number and raw bytes."""
        # Prefixes such as "GPU-" and "0x" are no part of the id.
        found = re.search(_UUID, value.encode(), re.IGNORECASE)
        value = found[0].decode() if found else re.sub(r"^[A-Z]{2,4}-|^0[xX]", "", value.strip().strip("\0"))
        bare = value.lower().replace("-", "").replace("_", "")
        # Short values occur by chance. Words without a digit, zeros and f's are placeholders of drivers.
        if len(bare) < 6 or not any(map(str.isdigit, bare)) or not bare.strip("0") or bare == "f" * len(bare):
            return
        pseudonym = self._pseudonym(value)
        self._register(kind, value, pseudonym)
        digits = pseudonym.lower().replace("-", "").replace("_", "")
        if re.fullmatch("[0-9a-f]{12,32}", bare):
            self._register(kind, bare, digits)
            if len(bare) <= 16:  # AMD's compute driver prints it as a decimal number
                self._register(kind, str(int(bare, 16)), str(int(digits, 16)))
            elif len(bare) == 32 and _is_rare(bytes.fromhex(bare)):
                self._raw[bytes.fromhex(bare)] = bytes.fromhex(digits)

    def add_raw(self, value: bytes) -> None:
        """Add a raw buffer. Printable text is added as a serial number, other bytes as they are."""
        text = value.rstrip(b"\0")
        if text.isascii() and text.decode().isprintable():
            self.add_identity(SERIAL, text.decode())
        elif _is_rare(value):
            self._raw[value] = self._stream(value.hex(), len(value))

    def learn(self, data: bytes) -> None:
        """Add the serial numbers, UUIDs, users, hosts and processes that a text labels."""
        for name in _HOMES.findall(data):
            self.add_name(USER, name.decode("utf-8", "replace"))
        for name in _HOST_NAMES.findall(data):
            self.add_name(HOST, name.decode())
        for value in _SERIALS.findall(data):
            self.add_identity(SERIAL, value.decode())
        for value in re.findall(_UUID, data, re.IGNORECASE):
            self.add_identity(UUID, value.decode())
        if data.lstrip()[:1] not in (b"{", b"["):
            return
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return
        for holder in _objects(document):
            self.keep(holder)
            texts = {key.lower().replace(" ", "_"): value for key, value in holder.items() if isinstance(value, str)}
            if any(key.lower() in ("pid", "process_id") for key in holder):
                for key in texts.keys() & _NAMES:
                    self.add_name(PROCESS, texts[key].partition(" ")[0].rpartition("/")[2])
            for kind, keys in ((USER, _OWNERS), (HOST, _HOSTS)):
                for key in texts.keys() & keys:
                    self.add_name(kind, texts[key])

    def replace(self, data: bytes) -> bytes:
        """Return data with all personal values replaced."""
        if self._form is None:
            for name, kind in self._names.items():  # decided here and not in add_name: only now are all words known
                if len(name) < SHORTEST or name.isdigit() or name.lower() in self._words:
                    self.left.add(name)
                else:
                    self._register(kind, name, ".".join(map(self._pseudonym, name.split("."))) if kind == HOST else self._pseudonym(name))
            # The longest first, because a value may be part of another one.
            known = b"|".join(map(re.escape, sorted(self._known, key=len, reverse=True))) or rb"(?!)"
            self._form = re.compile(rb"(?<![0-9A-Za-z])(0x)?(" + known + rb")(?![0-9A-Za-z])", re.IGNORECASE)
        for raw, pseudonym in self._raw.items():
            data = data.replace(raw, pseudonym)
        data = self._form.sub(self._replace_known, data)
        data = _HOMES.sub(partial(self._replace_form, USER), data)
        for kind, form in _FORMS:
            data = form.sub(partial(self._replace_form, kind), data)
        return data

    def text(self, text: str) -> str:
        """Return a text with all personal values replaced."""
        return self.replace(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def document(self, value: Any) -> Any:
        """Return plain data with all personal values replaced, also in keys."""
        # The data is replaced before it becomes JSON, where an escaped character would hide a value.
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.document(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.document(each) for each in value]
        return value

    def mask(self, data: bytes) -> bytes:
        """Return a text with every letter and digit replaced, or the text itself if it is a common word."""
        text = data.decode("utf-8", "surrogateescape")
        return data if text.strip() in COMMON else self._pseudonym(text).encode("utf-8", "surrogateescape")

    def _register(self, kind: str, value: str, pseudonym: str) -> None:
        self._form = None
        self._known[value.encode("utf-8", "surrogateescape").lower()] = kind, pseudonym.encode("utf-8", "surrogateescape")
        self._issued.add(pseudonym.lower().encode("utf-8", "surrogateescape"))

    def _replace_known(self, found: re.Match[bytes]) -> bytes:
        value = found[2]
        kind, pseudonym = self._known[value.lower()]
        self.replaced.setdefault(kind, set()).add(value.lower())
        return (found[1] or b"") + (pseudonym.upper() if value.isupper() else pseudonym.lower() if value.islower() else pseudonym)

    def _replace_form(self, kind: str, found: re.Match[bytes]) -> bytes:
        value = found[0]
        lower = value.lower()
        ordinary = kind != USER and len(set(lower) - set(b"0:-_.")) < 2  # zeros, masks
        # A pseudonym has the form of an id, so the patterns find it too. It is not replaced again.
        if lower in self._issued or ordinary or lower.decode("utf-8", "replace") in COMMON:
            return value
        self.replaced.setdefault(kind, set()).add(lower)
        text = value.decode("utf-8", "surrogateescape")
        pseudonym = self._pseudonym(text)
        if b"." in value and kind == ADDRESS:  # digits drawn one by one could make a number above 255
            pseudonym = "10." + ".".join(map(str, self._stream(text, 3)))
        self._issued.add(pseudonym.lower().encode("utf-8", "surrogateescape"))
        return pseudonym.encode("utf-8", "surrogateescape")

    def _pseudonym(self, value: str) -> str:
        """Return the pseudonym of a value. A hexadecimal value becomes a hexadecimal one. In others, digits stay digits."""
        plain = "".join(filter(str.isalnum, value.lower()))
        colons = value.replace(":", "")
        is_hex = _HEX.fullmatch(colons) is not None and not value.isdigit()
        stream = iter(self._stream(plain, len(value)))
        made: list[str] = []
        for character in value:
            drawn = next(stream)
            if is_hex and character.isalnum():
                pseudonym = "0123456789abcdef"[drawn % 16]
            elif character.isdigit():
                pseudonym = "0123456789"[drawn % 10] if made and character == "0" else "123456789"[drawn % 9]
            elif character.isalpha():
                pseudonym = "abcdefghijklmnopqrstuvwxyz"[drawn % 26]
            else:
                pseudonym = character
            made.append(pseudonym.upper() if character.isupper() else pseudonym)
        found = "".join(made)
        return found.upper() if value.isupper() else found

    def _stream(self, value: str, length: int) -> bytes:
        return hashlib.shake_256(self._key + value.encode("utf-8", "surrogateescape")).digest(length)


def _is_rare(value: bytes) -> bool:
    """Return whether these bytes are unlikely to occur by chance."""
    # A small number among zeros, for example, occurs in many buffers and is not replaced there.
    return len(set(value)) >= 8


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a JSON document, at any depth."""
    rest = [document]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            yield each
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)
