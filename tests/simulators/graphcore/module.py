"""A stand-in for the module ``gcipuinfo``: does what the file beside it says, and notes how it was called.

Copied to ``DIRECTORY/gcipuinfo.py``. ``DIRECTORY/behaviour.json`` is read at every call, ``DIRECTORY/calls.jsonl`` grows by
a line.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def behaviour() -> dict[str, Any]:
    """What to do now."""
    read: dict[str, Any] = json.loads((HERE / "behaviour.json").read_text(encoding="utf-8"))
    return read


def come_to(*place: object) -> dict[str, Any]:
    """Note where the program is, and do what is to be done there."""
    with (HERE / "calls.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(place) + "\n")
    what = behaviour()
    if what["at"] == place[0]:
        misbehave(what["mode"])
    return what


def misbehave(mode: str) -> None:
    """The ways of not answering."""
    if mode == "raise":
        raise RuntimeError("ipuof: no response from gcd 0")
    if mode == "permission":
        raise PermissionError(13, "Permission denied", "/dev/ipu0")
    if mode == "exit":
        sys.exit(3)
    if mode == "die":
        os._exit(4)
    while mode == "hang" and behaviour()["mode"] == "hang":
        time.sleep(0.01)


class gcipuinfo:  # noqa: N801  the vendor's own spelling
    """The inventory, which answers what it read at first unless it is told to read again."""

    def __init__(self) -> None:
        self.devices = come_to("gcipuinfo")["devices"]
        self.update = False

    def setUpdateMode(self, update: bool) -> None:  # noqa: N802  the vendor's own spelling
        come_to("setUpdateMode", update)
        self.update = update

    def getDevices(self) -> object:  # noqa: N802  the vendor's own spelling
        what = come_to("getDevices")
        time.sleep(what["delay"])
        if what["mode"] in ("garbage", "empty") and what["at"] == "getDevices":
            return "error: 7" if what["mode"] == "garbage" else []
        return what["devices"] if self.update else self.devices


come_to("import")
