"""Follows the readings of `accelmetrics serve --ui` as the script of its page does.

Arguments: port, pages, seconds. Asks for the state and then for `/api/updates`, with a browser's headers, each page on connections that it
keeps. Prints how many readings all pages got together, and their bytes.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import zlib

HEADERS = """\
Host: 127.0.0.1
Connection: keep-alive
Cache-Control: max-age=0
sec-ch-ua-platform: "Linux"
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36
sec-ch-ua: "Chromium";v="142", "Not_A Brand";v="99"
sec-ch-ua-mobile: ?0
Accept: */*
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: cors
Sec-Fetch-Dest: empty
Referer: http://127.0.0.1/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
""".replace("\n", "\r\n")
SHOWN = ("utilization", "memory_percent", "power_watts", "temperature_celsius", "sm_clock_mhz")
LARGEST = 1 << 22


async def follow(port: int, got: list[int]) -> None:
    """Open the page and take its readings without end."""
    await asyncio.sleep(random.random())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LARGEST)
    writer.write(f"GET /api/state HTTP/1.1\r\n{HEADERS}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    state = json.loads(zlib.decompress(await reader.readexactly(length), 31))
    columns = [*SHOWN, *(line for graph in state["host_metrics"].values() for line in graph["lines"])]
    writer.write(f"GET /api/updates?since=0&metrics={'%2C'.join(columns)} HTTP/1.1\r\n{HEADERS}\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    unpacked, rest = zlib.decompressobj(31), b""
    while True:
        size = int(await reader.readline(), 16)
        *lines, rest = (rest + unpacked.decompress(await reader.readexactly(size))).split(b"\n")
        await reader.readexactly(2)
        got[0] += sum(1 for line in lines if b'"complete"' in line[:60])
        got[1] += size


async def main() -> None:
    """Run the pages for a while."""
    port, pages, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    got = [0, 0]
    tasks = [asyncio.create_task(follow(port, got)) for _ in range(pages)]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    sys.stdout.write(json.dumps({"readings": got[0], "bytes": got[1]}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
