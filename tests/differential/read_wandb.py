"""Prints the system metrics in a `.wandb` file, one JSON object per record. Runs in the environment that has wandb.

The file is a LevelDB log: a header of seven bytes, then blocks of 32 KiB that hold fragments, each with a checksum, a
length and a type. Its integers are what `run._system_metrics` drops.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = 32768
FILE_HEADER = b":W&B\xe1\xbe\x00"
HEADER = struct.Struct("<IHB")
FULL, LAST = 1, 4


def fragments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and bytes of every fragment; a cut one at the end is left out."""
    place = len(FILE_HEADER)
    while place + HEADER.size <= len(content):
        room = BLOCK - place % BLOCK
        if room < HEADER.size:
            place += room
            continue
        _, length, kind = HEADER.unpack_from(content, place)
        place += HEADER.size
        if kind == 0 or place + length > len(content):
            return
        yield kind, content[place : place + length]
        place += length


def records(content: bytes) -> Iterator[bytes]:
    """The records: their fragments put together."""
    parts = b""
    for kind, part in fragments(content):
        parts += part
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def main() -> None:
    """Prints `{"time": seconds, "metrics": {...}}` per record of system metrics in the file that is named."""
    from wandb.proto import wandb_internal_pb2  # type: ignore[import-not-found,unused-ignore]

    content = Path(sys.argv[1]).read_bytes()
    if not content.startswith(FILE_HEADER):
        sys.exit(f"{sys.argv[1]} does not begin as a .wandb file does: {content[:8]!r}")
    for raw in records(content):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]  # made when it is imported
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == "stats":
            stats = record.stats
            metrics = {item.key: json.loads(item.value_json) for item in stats.item}
            seconds = stats.timestamp.seconds + stats.timestamp.nanos / 1e9
            sys.stdout.write(json.dumps({"time": seconds, "metrics": metrics}) + "\n")


if __name__ == "__main__":
    main()
