"""A training run: the program's steps and what its devices do meanwhile, for a trainer that logs a row every so many steps.

>>> import accelmetrics
>>> with accelmetrics.training(exporters=["jsonl:run.jsonl"]) as run:       # doctest: +SKIP
...     for step, batch in enumerate(batches):
...         loss = train(batch)
...         run.step(step, loss=loss, tokens=batch.tokens)
...         if step % 10 == 0:
...             tracker.log({"loss": loss, **run.row()}, step=step)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import Any, TypeVar

from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.integrations.torch_store import TorchStoreRows, node_place
from accelmetrics.monitor.monitor import Monitor, Share
from accelmetrics.monitor.rules import DEFAULT, RuleChoice
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.energy import COUNTER
from accelmetrics.schemas.finding import NO_FINDINGS, Findings
from accelmetrics.schemas.record import Exporter
from accelmetrics.schemas.selection import MetricChoice, MetricSelection
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.vitals import MEMORY_PERCENT, POWER, TEMPERATURE, UTILIZATION
from accelmetrics.schemas.work import Totals, rates

T = TypeVar("T")

BRIEF = "brief"
"""Of each device utilisation, share of memory, power, temperature and energy; of the job its throughput and work per joule."""
BRIEF_NAMES = (UTILIZATION, MEMORY_PERCENT, POWER, TEMPERATURE)
BRIEF_SELECTION = MetricSelection([*chain(*BRIEF_NAMES), COUNTER])
READINGS = "readings"
"""The name in a row that says how many readings it is made of."""
STATISTICS = ("mean", "min", "max", "last", "p50", "p95", "p99")
DEFAULT_PREFIX = "system/"

_REFUSED = re.compile(r"[^/\w.\- :]", re.ASCII)
"""What trackers do not take in a name."""


RowChoice = Callable[[MetricChoice, Iterable[str]], tuple[MetricSelection, Sequence[str]]]


def row_choice(tell: Callable[[str, str], object]) -> RowChoice:
    """Return what reads what a row is asked for. What cannot be used is told, and replaced by the default.

    Args:
        tell: Called with a mark of what is wrong and with words for it, each time.
    """
    selections: dict[object, MetricSelection] = {BRIEF: BRIEF_SELECTION}

    def read(keys: MetricChoice, stats: Iterable[str]) -> tuple[MetricSelection, Sequence[str]]:
        choice = tuple(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else keys
        if choice not in selections:
            outcome = guarded(MetricSelection, choice)
            if outcome.failure is not None:
                tell(f"keys {choice}", f"row: {outcome.failure.detail}: it has the brief keys instead")
            selections[choice] = outcome.value or BRIEF_SELECTION
        asked = [stats] if isinstance(stats, str) else list(stats)
        wrong = [stat for stat in asked if stat not in STATISTICS]
        if wrong:
            tell(f"stats {wrong}", f"row: there is no statistic {wrong[0]!r}: there are {', '.join(STATISTICS)}")
        return selections[choice], [stat for stat in asked if stat in STATISTICS] or ["mean"]

    return read


def measured(
    taken: WindowAggregator, devices: Iterable[str], last: Mapping[str, float], selection: MetricSelection, stats: Sequence[str]
) -> dict[str, float]:
    """Return the statistics of what was read, of what was not read anew the last reading, energy, and the number of readings.

    Args:
        taken: The readings.
        devices: The devices' keys.
        last: The last reading.
        selection: What is wanted.
        stats: Which statistics.
    """
    read = taken.metrics
    keys: Iterable[str] = filter(selection.wants, {**last, **read})
    if selection is BRIEF_SELECTION:  # of each device the first of each measure's names that it has
        known = read.keys() | last.keys()
        named = ([f"{device}.{name}" for name in names] for device in devices for names in BRIEF_NAMES)
        keys = [key for alike in named for key in [next((one for one in alike if one in known), "")] if key]
    found: dict[str, float] = {}
    for key in keys:
        if key.endswith(f".{COUNTER}"):
            continue
        if _only_rises(key):
            found[key] = read[key].last if key in read else last[key]
            continue
        summary = read[key].summary() if key in read else None
        found.update(
            (key if stat == "mean" else f"{key}.{stat}", last[key] if summary is None else getattr(summary, stat)) for stat in stats
        )
    for device, used in taken.energy_joules().items():
        if selection.wants(f"{device}.{COUNTER}"):
            found[f"{device}.{COUNTER}"] = used.joules
    return {**found, READINGS: taken.readings}


@lru_cache(maxsize=16384)
def _only_rises(key: str) -> bool:
    """Return whether a metric is a counter, so that its mean says nothing."""
    row = match(key)
    return row is not None and row.kind == "counter"


def headed(prefix: str) -> str:
    """Return what names begin with: one without a slash gets one, since trackers group by it."""
    return prefix if "/" in prefix else f"{prefix or DEFAULT_PREFIX.rstrip('/')}/"


def named(found: Mapping[str, float], head: str) -> dict[str, float]:
    """Return numbers under names that trackers take."""
    return {_REFUSED.sub("_", head + name): value for name, value in found.items()}


class TrainingRun:
    """One training run in one process; made by :func:`accelmetrics.training`.

    It never raises into the program: what goes wrong is logged once, under the logger ``accelmetrics``.

    Args:
        monitor: The monitor below, started or not.

    Attributes:
        monitor: The monitor below: its windows, history, status and ``subscribe``.
        rank: The rank of this process among all of the job, as its launcher says; None without one.
        local_rank: Its rank among those of this machine; None where its launcher does not say.
        world_size: How many processes the job has; 1 where its launcher does not say.
        node: The machine's name.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        found = monitor.labels
        numbers = {name: int(text) for name, text in found.items() if name in ("rank", "local_rank", "world_size") and text.isdecimal()}
        self.rank, self.local_rank = numbers.get("rank"), numbers.get("local_rank")
        self.world_size = numbers.get("world_size") or 1
        self.node = found["hostname"]
        self._window = monitor.tumbling_window()
        self._begun_in = 0  # the process: windows of a parent get no readings in its child
        self._worked: Totals = {}
        self._tell = WarnOnce("training: ")
        self._choice = row_choice(self._tell)
        self._other_nodes: TorchStoreRows | None = None
        self._for_others: TrainingRun | None = None

    def start(self) -> TrainingRun:
        """Begin to read, in the background. Starting twice changes nothing; a run that was closed goes on."""
        self._contain("start", self._start)
        return self

    def close(self) -> None:
        """Take one last reading, deliver what was logged, and end: seconds at most. Closing twice changes nothing."""
        if self._other_nodes is not None:
            self._contain("close", self._other_nodes.close)
        self._contain("close", self.monitor.stop)

    def __enter__(self) -> TrainingRun:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(self, /, step: Any = None, *unused: object, **values: Any) -> None:
        """Log numbers of a step, from any rank. Never waits, and never synchronises a device.

        Args:
            step: The trainer's own step.
            unused: Nothing; told once where there is something.
            values: Numbers by name: ``loss``, ``grad_norm``, ``lr``, ``epoch``, any others. ``tokens`` and ``samples`` are those of this
                step in this process: throughput and work per joule follow from them. None is left out.
        """
        self.monitor.log(step, **values)  # raises nothing, and does not wait
        if unused:
            self._tell("step", f"step takes one number and names (`step(7, loss=loss)`): {len(unused)} more were left out")

    def row(self, prefix: str = DEFAULT_PREFIX, keys: MetricChoice = BRIEF, stats: Iterable[str] = ("mean",)) -> dict[str, float]:
        """Return what the devices did since the last row, flat, for the trainer's own logger. Never waits, also while a driver hangs.

        Each reading is part of one row, however often rows are asked for. A reading stands for the time since the one before.

        - A metric has its mean under its key: ``system/gpu.0.powerWatts``; other statistics with their name behind it:
          ``system/gpu.0.powerWatts.max``.
        - ``system/gpu.0.energyJoules`` is the energy since the last row. Other counters stand as they are.
        - ``system/tokens_per_second`` is that of all ranks that this monitor hears, ``system/tokens_per_joule`` over the energy of all
          its devices; ``samples`` likewise. They are of the steps whose readings are there: the latest may follow in the next row.
        - ``system/readings`` is the number of readings since the last row. Where it is 0 there was none: metrics have their last
          reading again, energy is left out. Before the first reading it stands alone.
        - In a torch job of several machines the first rank has the latest brief row of each other machine too, under its name:
          ``system/node-1/gpu.0.powerWatts``, for as long as that says something.
        - What no device says has no name here. A metric whose source has not been read anew has its last reading.

        Args:
            prefix: What names begin with. One without a slash gets one behind it: trackers group by it.
            keys: ``"brief"``: of each device utilisation, share of memory, power, temperature, energy; of the job throughput and work
                per joule. Else a selection of metrics, as ``Monitor(metrics=)`` takes it; throughput and work per joule are there too.
            stats: Which statistics: of ``mean``, ``min``, ``max``, ``last``, ``p50``, ``p95``, ``p99``.

        Returns:
            Finite numbers by name. Names have letters, digits and ``/ _ . - :`` and spaces alone; anything else becomes ``_``.
        """
        return self._contain("row", self._row, prefix, keys, stats) or {}

    def findings(self) -> Findings:
        """Return what rules have found: what lasts, by iterating, what was over last, and what they could not judge. Never waits."""
        found = self._contain("findings", lambda: self.monitor.findings)
        return NO_FINDINGS if found is None else found

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f" rank {self.rank} of {self.world_size}:"
        return f"<TrainingRun:{rank} {self.monitor!r}>"

    def _start(self) -> None:
        if self._begun_in != os.getpid():
            if self._begun_in:
                self._window = self.monitor.tumbling_window()
            self._begun_in = os.getpid()
            self._window.begin()  # before the first reading, which belongs to it
        self.monitor.start()
        if self._for_others is not None and self._other_nodes is not None:
            self._for_others.start()
            self._other_nodes.start()

    def hear_other_nodes(self) -> None:
        """Have rows of the job's other nodes too, where it is a torch job of several; before it is started."""
        place = node_place()
        if place is not None:
            self._for_others = own = TrainingRun(self.monitor)  # its rows are apart from the program's
            self._other_nodes = TorchStoreRows(place, lambda: own.row("/"), self.monitor.interval)

    def _row(self, prefix: str, keys: MetricChoice, stats: Iterable[str]) -> dict[str, float]:
        selection, chosen = self._choice(keys, stats)
        taken = self._window.take(selection)
        latest = self.monitor.latest
        devices = [slot.key for slot in latest.identities] if latest is not None else []
        found = measured(taken, devices, latest.metrics if latest is not None else {}, selection, chosen)
        before, self._worked = self._worked, self.monitor.work
        for name, rate in rates(self._worked, before).items():
            found.update({f"{name}_{per}": value for per, value in rate.items() if value is not None})
        if self._other_nodes is not None:
            found.update(self._other_nodes.rows())
        return named(found, headed(prefix))

    def _contain(self, what: str, call: Callable[..., T], *arguments: object) -> T | None:
        """Call our own code in the program's stead: whatever goes wrong there is told once and stays there."""
        outcome = guarded(call, *arguments)
        if isinstance(outcome.error, SystemExit):
            raise outcome.error  # of a signal handler: the program ends
        if outcome.failure is not None:
            self._tell(f"{what} {type(outcome.error)}", f"{what} failed: {outcome.failure.detail}")
        return outcome.value


def training(
    interval: float = 1.0,
    exporters: Sequence[str | Exporter] = (),
    *,
    share: Share | None = "node",
    labels: Mapping[str, str] | None = None,
    rules: RuleChoice = DEFAULT,
    **options: Any,
) -> TrainingRun:
    """Make a training run: a context manager over one monitor of the devices that the job sees on this machine.

    Args:
        interval: Seconds between two readings.
        exporters: Where readings and steps go, as for :class:`~accelmetrics.Monitor`; none are needed for rows.
        share: ``"node"``: the ranks of this machine share one reading, and hear of each other's steps. None: each reads for itself.
        labels: Travel with every record.
        rules: What the run is judged by, as for :class:`~accelmetrics.Monitor`.
        options: What else ``Monitor`` takes. ``visible`` is true unless given: the job's devices are those that its processes see.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend, an exporter or a metric that does not exist.
        MissingDependencyError: An exporter needs a package that is not installed.
    """
    options.setdefault("visible", True)
    run = TrainingRun(Monitor(interval, exporters, share=share, labels=labels, rules=rules, **options))
    if share is not None:
        run.hear_other_nodes()
    return run
