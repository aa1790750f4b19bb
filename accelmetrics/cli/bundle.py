"""``accelmetrics bundle``: one archive from which a maintainer can reproduce a fault, without names of people or machines."""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.doctor import facts, render
from accelmetrics.cli.output import PLAIN_WIDTH, Stdout, check_target, say, write_errors
from accelmetrics.exporters.files import absolute, replace_file
from accelmetrics.monitor import settings
from accelmetrics.schemas.text import aligned, counted, printable, quantity
from accelmetrics.visibility.bundle import FILES, SUFFIXES, Bundle, Recorder, assemble
from accelmetrics.visibility.doctor import diagnose

READINGS, PAUSE = 3, 0.2
"""Number of readings in the recording, and seconds between two of them."""
OWNER_ONLY = 0o600
"""Mode of the archive: it may hold names that were not replaced."""
EXAMPLES = """\
  accelmetrics bundle fault.zip
      reads everything, shows what goes in, and asks
  accelmetrics bundle fault.tar.gz --yes
      writes it without asking
  accelmetrics bundle fault.zip --backends nvidia
      one vendor alone
  accelmetrics dump --replay fault.zip
      reads it as if it were the machine

The archive contains the output of vendors' commands, the files read below /sys,
/proc and /dev, the answers of NVML, versions, the output of `doctor`, and a few
readings. Serial numbers, UUIDs, names of hosts, users and processes, and
network addresses are replaced by pseudonyms, always the same one for the same
value. Nothing is sent anywhere. Check its contents before you send it.

Exit status: 1 if nothing was written, because nobody answered yes or the file
cannot be made; 2 for invalid arguments."""
OPTIONS: arguments.Groups = {
    "": {
        "file": {"metavar": "FILE", "type": settings.path.parse, "help": "file of the archive; its name ends in .zip, .tar.gz or .tgz"},
        "--yes": {"action": "store_true", "help": "write it without asking"},
    },
    arguments.READ: arguments.only("--backends", "--amd-source", "--timeout", "--open-timeout"),
}


def run(options: Namespace, out: Stdout) -> int:
    """Take the readings, list the contents of the archive, ask, and write it. Return 1 if nothing was written."""
    from accelmetrics.sampling.sampler import Sampler

    # A path that cannot be written is refused before the drivers are read.
    suffixes = ", ".join(SUFFIXES)
    arguments.refuse(
        (not options.file.endswith(SUFFIXES), f"the format of {options.file!r} is unknown: give a name that ends in {suffixes}")
    )
    check_target(options.file, out)
    recorder, reading = Recorder(), arguments.reading(options)
    with recorder.listening():
        found = diagnose(**reading)
        with Sampler(**reading) as sampler:
            readings = [sampler.sample(topology=True)]
            while len(readings) < READINGS:
                time.sleep(PAUSE)
                readings.append(sampler.sample())
    documents = {"doctor.txt": render(found, PLAIN_WIDTH), "doctor.json": facts(found)}
    bundle = assemble(recorder, readings, documents, {name: reading[name] for name in ("backends", "amd_source") if name in reading})
    out.show(contents(bundle))
    agreed = options.yes
    if not agreed and sys.stdin is not None and sys.stdin.isatty():
        print(f"write {options.file}? [y/N] ", end="", file=sys.stderr, flush=True)
        agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say(f"{arguments.PROGRAM} bundle: nothing was written: answer yes on a terminal, or give --yes")
        return 1
    with write_errors(options.file):
        replace_file(absolute(options.file), bundle.archive(options.file), OWNER_ONLY)
    say(f"{options.file} was written. Check its contents before you send it to anybody.")
    return 0


def contents(bundle: Bundle) -> str:
    """Return the list of the archive's files with their sizes, and the names that were and were not replaced."""
    rows = [(printable(name), quantity(len(content), "B")) for name, content in bundle.entries.items()]
    replaced = [f"{number} {kind}" for kind, number in bundle.replaced.items()]
    lines = [
        *aligned([("FILE", "SIZE"), *rows]),
        "",
        f"{counted(len(rows), 'file')}, of which {sum(name.startswith(FILES) for name in bundle.entries)} are the system's",
        f"replaced: {', '.join(replaced) or 'nothing'}",
    ]
    if bundle.left:
        lines.append(f"NOT replaced, because vendors also print this word for something else: {', '.join(map(printable, bundle.left))}")
    if bundle.silent:
        lines.append(f"left out, because reading got no answer: {', '.join(map(printable, bundle.silent))}")
    return "\n".join(lines) + "\n"
