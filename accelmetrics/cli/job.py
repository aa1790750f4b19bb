"""``accelmetrics job``: the command for a scheduler's Prolog and Epilog, which run when a job begins and ends on this node."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from accelmetrics.backends.guard import guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor.settings import JOBS, SUMMARIES, path, span
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.visibility.slurm_jobs import job_of, job_text, open_folder, parse_job, parsed, read_small, reason_of, write_in

WAIT = 5.0
LOOK = 0.05
"""Seconds between two checks for the summary."""

EXAMPLES = """\
  accelmetrics job begin
      in Slurm's Prolog: record the devices of the job
  accelmetrics job end >> /var/log/jobs.txt
      in its Epilog: print the summary of the job, and remove the record
  accelmetrics job end --json

`accelmetrics serve` reads the records, reports the holder of each device to
Prometheus, and measures the job. Without it there is no summary, and nothing
else is missing. The scripts are in deploy/slurm, the documentation in
docs/cluster.md.

Errors are printed to standard error, but the exit status is 0, because Slurm
drains a node whose Prolog fails."""
OPTIONS: arguments.Groups = {
    "": {
        "action": {"choices": ("begin", "end"), "metavar": "begin|end", "help": "whether the job begins or ends"},
        "--jobs": {"type": path.parse, "default": JOBS, "metavar": "DIR", "help": f"directory of the records of jobs (default: {JOBS})"},
    },
    "the summary, at the end": {
        "--summaries": {
            "type": path.parse,
            "default": SUMMARIES,
            "metavar": "DIR",
            "help": f"directory where `accelmetrics serve` writes summaries (default: {SUMMARIES})",
        },
        "--wait": {"type": span.parse, "default": WAIT, "metavar": "S", "help": f"seconds to wait for it (default: {WAIT:g})"},
        "--json": {"action": "store_true", "help": "print it as one JSON object"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Begin or end a job. An error is a line on standard error, and the exit status stays 0."""
    # Slurm drains a node whose Prolog fails.
    outcome = guarded(_begin, options.jobs) if options.action == "begin" else guarded(_end, options, out)
    if outcome.failure is not None:
        say(f"accelmetrics job {options.action}: {outcome.failure.detail}")
    return 0


def _begin(folder: str) -> None:
    job = job_of(os.environ, time.time())
    if job.devices:
        try:
            with open_folder(folder, owned=True, make=True) as jobs:
                write_in(jobs, f"{job.job_id}.json", job_text(job))
        except (OSError, ValueError) as error:
            raise AccelMetricsError(f"nothing was written: {folder}: {reason_of(error)}") from error
    elif given := os.environ.get("SLURM_JOB_GPUS", ""):
        say(f"accelmetrics job begin: job {job.job_id}: SLURM_JOB_GPUS ({given[:200]!r}) names no GPU: nothing was written")
    else:
        say(f"accelmetrics job begin: job {job.job_id} has no devices: nothing was written")


def _end(options: Namespace, out: Stdout) -> None:
    job_id = job_of(os.environ, time.time()).job_id
    name, file = f"{job_id}.json", Path(options.jobs, f"{job_id}.json")
    absent = f"accelmetrics job end: {file} is not there: the job had no devices, or its Prolog did not run `accelmetrics job begin`"
    with ExitStack() as stack:
        try:
            jobs = stack.enter_context(open_folder(options.jobs, owned=True))
        except FileNotFoundError:
            say(absent)
            return
        except (OSError, ValueError) as error:
            raise AccelMetricsError(f"the job cannot be looked up: {options.jobs}: {reason_of(error)}") from error
        try:
            job = parse_job(read_small(name, trusted=True, folder=jobs))._replace(ended=time.time())
        except FileNotFoundError:
            say(absent)
            return
        except (OSError, ValueError) as error:
            raise AccelMetricsError(f"{file} is no file of `accelmetrics job begin` and is left as it is: {reason_of(error)}") from error
        # From here on the file is removed in any case: the job is over, with or without a summary.
        stack.callback(_remove, jobs, name)
        result = Path(options.summaries, name)
        if _summary(result, job.began) is None:
            say(f"accelmetrics job end: no summary of job {job_id}: `accelmetrics serve` did not see the job")
            return
        # `accelmetrics serve` reads the end of the job from this file, and then completes the summary.
        write_in(jobs, name, job_text(job))
        until = time.monotonic() + options.wait
        while (found := _summary(result, job.began) or {}).get("state") != "ended" and time.monotonic() < until:
            time.sleep(LOOK)
    if found.get("state") != "ended":
        say(f"accelmetrics job end: no summary of job {job_id} within {options.wait:g} s: `accelmetrics serve` has not written {result}")
        return
    if options.json:
        out.write(json.dumps(found) + "\n")
        return
    from accelmetrics.views.summaries import of_job

    out.write(of_job(found))


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _summary(file: Path, began: float) -> dict[str, Any] | None:
    """Read the summary of the job that began at this time. None if there is none, or an earlier job's with the same id.

    The daemon that writes it may be another user, so the content is only printed.

    Raises:
        AccelMetricsError: The file is no summary.
    """
    try:
        with open_folder(str(file.parent), owned=False) as folder:
            found = parsed(read_small(file.name, folder=folder))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise AccelMetricsError(f"no summary: {file}: {reason_of(error)}") from error
    return found if isinstance(found, dict) and found.get("began") == began else None
