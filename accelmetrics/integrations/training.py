"""A training run: the steps of a program and the values of its devices, for a trainer that logs a row every few steps.

>>> import accelmetrics
>>> with accelmetrics.training(exporters=["jsonl:run.jsonl"]) as run:       # doctest: +SKIP
...     for step, batch in enumerate(batches):
...         loss = train(batch)
...         run.step(step, loss=loss, tokens=batch.tokens)
...         if step % 10 == 0:
...             tracker.log({"loss": loss, **run.row()}, step=step)
"""

from __future__ import annotations

import functools
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from accelmetrics.backends.guard import WarnOnce, guarded, warn_user
from accelmetrics.integrations.torch_store import CLOSING, TorchStoreRows, node_place
from accelmetrics.monitor.monitor import Monitor, Share, cannot_share
from accelmetrics.monitor.rules import DEFAULT, RuleChoice
from accelmetrics.sampling.threads import are_green
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import NO_FINDINGS, Exporter, Findings, Totals, rates
from accelmetrics.schemas.selection import MetricChoice, MetricSelection
from accelmetrics.schemas.statistics import COUNTER, WindowAggregator
from accelmetrics.schemas.text import kind_of, shown
from accelmetrics.schemas.vitals import MEMORY_PERCENT, POWER, TEMPERATURE, UTILIZATION

if TYPE_CHECKING:
    from accelmetrics.integrations.torch_watch import ModelWatch

T = TypeVar("T")

ATTENTION = ("*attn*", "*attention*")
"""Usual names of attention modules in model libraries."""
BRIEF = "brief"
"""Utilisation, share of memory, power, temperature and energy of each device; throughput and work per joule of the job."""
BRIEF_NAMES = (UTILIZATION, MEMORY_PERCENT, POWER, TEMPERATURE)
BRIEF_SELECTION = MetricSelection([*chain(*BRIEF_NAMES), COUNTER])
READINGS = "readings"
"""The name in a row for the number of its readings."""
STATISTICS = ("mean", "min", "max", "last", "p50", "p95", "p99")
DEFAULT_PREFIX = "system/"
# Bound for keys and statistics of a row: an iterable from the program may be endless.
MOST_ITEMS = 1000
MOST_NAMES = 10
"""Names of unknown arguments in a message."""

# Characters that trackers do not accept in a name.
_REFUSED = re.compile(r"[^/\w.\- :]", re.ASCII)


RowChoice = Callable[[MetricChoice, Iterable[str]], tuple[MetricSelection, Sequence[str]]]


def row_choice(report: Callable[[object, str], object]) -> RowChoice:
    """Return a function that checks the keys and statistics of a row. Invalid ones are reported and replaced by defaults.

    Args:
        report: Called for each problem, with an identifier of the problem and a message.
    """
    selections: dict[object, MetricSelection] = {BRIEF: BRIEF_SELECTION}

    def selected(keys: MetricChoice) -> MetricSelection:
        choice = tuple(islice(keys, MOST_ITEMS)) if isinstance(keys, Iterable) and not isinstance(keys, str) else keys
        if choice not in selections:
            selections[choice] = MetricSelection(choice)
        return selections[choice]

    def statistics(stats: Iterable[str]) -> list[str]:
        requested = [stats] if isinstance(stats, str) else list(islice(stats, MOST_ITEMS))
        unknown = [stat for stat in requested if stat not in STATISTICS]
        if unknown:
            report(f"stats {shown(unknown)}", f"row: unknown statistic {shown(unknown[0])}: use {', '.join(STATISTICS)}")
        return [stat for stat in requested if stat in STATISTICS] or ["mean"]

    def read(keys: MetricChoice, stats: Iterable[str]) -> tuple[MetricSelection, Sequence[str]]:
        selection, chosen = guarded(selected, keys), guarded(statistics, stats)
        if selection.failure is not None:
            report(f"keys {selection.failure.detail}", f"row: invalid keys: {selection.failure.detail}: the brief keys are used instead")
        if chosen.failure is not None:
            report("stats", f"row: invalid statistics: {chosen.failure.detail}: means are used instead")
        return selection.value or BRIEF_SELECTION, chosen.value or ["mean"]

    return read


def report_unused(report: Callable[[object, str], object], unused: Sequence[object], unknown: Mapping[str, object]) -> None:
    """Report arguments that ``row`` does not accept."""
    if unused or unknown:
        names = [f"{len(unused)} without a name"] * bool(unused) + list(islice(unknown, MOST_NAMES))
        report("arguments", f"row ignores extra arguments ({', '.join(names)}): it takes prefix, keys and stats")


def measured(
    readings: WindowAggregator, devices: Iterable[str], last: Mapping[str, float], selection: MetricSelection, stats: Sequence[str]
) -> dict[str, float]:
    """Return the statistics of the readings, the energy of each device, and the number of readings.

    A metric without a new reading has its last value.

    Args:
        readings: The readings.
        devices: Keys of the devices.
        last: The last reading.
        selection: The wanted metrics.
        stats: The wanted statistics.
    """
    read = readings.metrics
    keys: Iterable[str] = filter(selection.wants, {**last, **read})
    if selection is BRIEF_SELECTION:  # a measure has several names. A device's first known name counts.
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
    for device, used in readings.energy_joules().items():
        if selection.wants(f"{device}.{COUNTER}"):
            found[f"{device}.{COUNTER}"] = used.joules
    return {**found, READINGS: readings.readings}


@lru_cache(maxsize=16384)
def _only_rises(key: str) -> bool:
    """Return whether a metric is a counter. The mean of a counter has no meaning, so a row has its last value."""
    row = match(key)
    return row is not None and row.kind == "counter"


def headed(prefix: str) -> str:
    """Return the prefix of a row's names, with a slash added if it has none."""
    # Trackers group names by the part before the slash.
    return prefix if "/" in prefix else f"{prefix or DEFAULT_PREFIX.rstrip('/')}/"


def named(found: Mapping[str, float], head: str) -> dict[str, float]:
    """Return the numbers under names with the prefix, in characters that trackers accept."""
    return {_REFUSED.sub("_", head + name): value for name, value in found.items()}


class TrainingRun:
    """A training run in this process, made by :func:`accelmetrics.training`.

    Its methods never raise into the program. An error is logged once on the logger ``accelmetrics``.

    Args:
        monitor: The monitor behind it, started or not.

    Attributes:
        monitor: The monitor behind it, for windows, history, status and ``subscribe``.
        rank: The rank of this process in the job, from its launcher. None without a launcher.
        local_rank: Its rank on this machine. None if the launcher does not set it.
        world_size: Number of processes of the job. 1 if the launcher does not set it.
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
        self._started_in = 0  # process id. After a fork, the parent's window gets no readings in the child.
        self._last_work: Totals = {}
        self._warn = WarnOnce("training: ")
        self._choice = row_choice(self._warn)
        self._other_nodes: TorchStoreRows | None = None
        self._for_others: TrainingRun | None = None
        self._watched: list[ModelWatch] = []

    def start(self) -> TrainingRun:
        """Start to read in the background. A second start has no effect. A closed run continues."""
        self._contain("start", self._start)
        return self

    def close(self) -> None:
        """Take a last reading, deliver logged records and stop, within seconds. A second close has no effect."""
        until = time.monotonic() + CLOSING
        for watched in self._watched:
            self._contain("close", watched.remove)
        self._watched.clear()
        if self._other_nodes is not None:
            self._contain("close", self._other_nodes.end)
        self._contain("close", self.monitor.stop)
        # Its thread was asked to end before the monitor stopped, so it has ended by now, unless a call into the store hangs.
        if self._other_nodes is not None:
            self._contain("close", self._other_nodes.join, until)

    def __enter__(self) -> TrainingRun:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(self, step: Any = None, /, *unused: object, **values: Any) -> None:
        """Log the numbers of a step, from any rank. It never waits, and never synchronises a device.

        Args:
            step: The trainer's step number.
            unused: Not used. Further positional arguments are reported once.
            values: Numbers by name: ``loss``, ``grad_norm``, ``lr``, ``epoch``, any others. ``tokens`` and ``samples`` are counts of this
                step in this process. Throughput and work per joule are computed from them. A value of None is left out.
        """
        for watched in self._watched:
            values = {**values, **watched.take()}
        self._contain("step", self.monitor.log, step, **values)
        if unused:
            self._warn("step", f"step ignores extra arguments ({len(unused)}): pass a step number and named values: `step(7, loss=loss)`")

    def watch(self, model: Any, every: int = 100, modules: str | Iterable[str] = ATTENTION, prefix: str = "watch") -> None:
        """Measure a PyTorch model every ``every`` steps of its optimizer, until the run is closed. It never synchronises a device.

        The next :meth:`step` logs the values: ``watch/grad_norm`` and ``watch/weight_norm`` of the model, and for each module
        ``watch/grad_norm/<module>``, ``watch/weight_norm/<module>``, ``watch/activation_mean/<module>``, ``watch/activation_std/<module>``,
        ``watch/activation_zeros/<module>`` (the share of zeros in its output, 0 to 1).

        Args:
            model: The module, after it was wrapped for several devices if it is.
            every: Optimizer steps between two measurements. The first step is measured.
            modules: Patterns for names of modules: ``"*mlp*"``. By default attention modules. Of nested modules, the outer one counts.
            prefix: The prefix of the names.
        """
        self._contain("watch", self._watch, model, every, modules, prefix)

    def _watch(self, model: Any, every: int, modules: str | Iterable[str], prefix: str) -> None:
        from accelmetrics.integrations.torch_watch import ModelWatch

        self._watched.append(ModelWatch(model, every, modules, prefix, self._warn))

    def row(
        self, prefix: str = DEFAULT_PREFIX, keys: MetricChoice = BRIEF, stats: Iterable[str] = ("mean",), *unused: object, **unknown: object
    ) -> dict[str, float]:
        """Return the devices' values since the last row as a flat dictionary for the trainer's logger.

        It never waits, also while a driver hangs. Each reading is part of one row only, and counts for the time since the previous one.

        - A metric's mean has the metric's key: ``system/gpu.0.powerWatts``. Other statistics have their name behind it:
          ``system/gpu.0.powerWatts.max``.
        - ``system/gpu.0.energyJoules`` is the energy since the last row. Other counters have their last value.
        - ``system/tokens_per_second`` is the throughput of all ranks whose steps this monitor receives. ``system/tokens_per_joule`` relates
          it to the energy of all its devices. The same holds for ``samples``. Only steps that already have readings count, so the latest
          steps may count in the next row.
        - ``system/readings`` is the number of readings since the last row. If it is 0, metrics have their last value again, and energy is
          left out. Before the first reading it is the only name.
        - In a torch job on several machines, the first rank also has the latest brief row of each other machine, under the machine's name:
          ``system/node-1/gpu.0.powerWatts``. A machine that reports nothing for a while is left out.
        - A metric that no device reports is absent. A metric without a new reading has its last value.

        Args:
            prefix: The prefix of the names. A slash is added if it has none, because trackers group names by it.
            keys: ``"brief"`` for utilisation, share of memory, power, temperature and energy of each device, and throughput and work per
                joule of the job. Or a selection of metrics, as for ``Monitor(metrics=)``, with the same numbers of the job.
            stats: The statistics, from ``mean``, ``min``, ``max``, ``last``, ``p50``, ``p95``, ``p99``.
            unused: Not used. Further arguments are reported once.
            unknown: Not used.

        Returns:
            Finite numbers by name. Names have only letters, digits, spaces and ``/ _ . - :``. Any other character becomes ``_``.
        """
        report_unused(self._warn, unused, unknown)
        return self._contain("row", self._row, prefix, keys, stats) or {}

    def findings(self) -> Findings:
        """Return the findings of the rules: current ones, ended ones, and rules that could not be evaluated. Never waits."""
        found = self._contain("findings", lambda: self.monitor.findings)
        return NO_FINDINGS if found is None else found

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f" rank {self.rank} of {self.world_size}:"
        return f"<TrainingRun:{rank} {self.monitor!r}>"

    def _start(self) -> None:
        if self._started_in != os.getpid():
            if self._started_in:
                self._window = self.monitor.tumbling_window()
            self._started_in = os.getpid()
            self._window.begin()  # before the first reading, which belongs to it
        self.monitor.start()
        if self._for_others is not None and self._other_nodes is not None:
            self._for_others.start()
            self._other_nodes.start()

    def hear_other_nodes(self) -> None:
        """Add rows of the job's other nodes, in a torch job on several nodes. Call it before ``start``."""
        place = node_place()
        if place is not None:
            # A second run on the same monitor, because each reading is part of one row only. Rows for other nodes must not use up the
            # readings of the program's rows.
            self._for_others = own = TrainingRun(self.monitor)
            self._other_nodes = TorchStoreRows(place, lambda: own.row("/"), self.monitor.interval)

    def _row(self, prefix: str, keys: MetricChoice, stats: Iterable[str]) -> dict[str, float]:
        head = headed(prefix)
        selection, chosen = self._choice(keys, stats)
        readings = self._window.take(selection)
        latest = self.monitor.latest
        devices = [slot.key for slot in latest.identities] if latest is not None else []
        found = measured(readings, devices, latest.metrics if latest is not None else {}, selection, chosen)
        before, self._last_work = self._last_work, self.monitor.work
        for name, rate in rates(self._last_work, before).items():
            found.update({f"{name}_{per}": value for per, value in rate.items() if value is not None})
        if self._other_nodes is not None:
            found.update(self._other_nodes.rows())
        return named(found, head)

    def _contain(self, what: str, call: Callable[..., T], /, *arguments: object, **options: object) -> T | None:
        """Call our code on the program's thread. An error is logged once and does not reach the program."""
        outcome = guarded(call, *arguments, **options)
        if outcome.failure is not None:
            self._warn((what, kind_of(outcome.error)), f"{what} failed: {outcome.failure.detail}")
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
    """Return a training run: a context manager over a monitor of the devices that the job sees on this machine.

    Args:
        interval: Seconds between two readings.
        exporters: Destinations of readings and steps, as for :class:`~accelmetrics.Monitor`. Rows need none.
        share: ``"node"`` if the ranks of this machine share one reading and see each other's steps. None if each rank reads for itself.
        labels: Labels of every record.
        rules: Rules for findings, as for :class:`~accelmetrics.Monitor`.
        options: Other options of ``Monitor``. By default ``visible`` is true: the job's devices are the ones that its processes see.

    Raises:
        InvalidOptionError: An option is invalid.
        UnknownNameError: A backend, an exporter or a metric does not exist.
        MissingDependencyError: An exporter needs a package that is not installed.
    """
    options.setdefault("visible", True)
    why = cannot_share() if share is not None else ""
    if why:  # no warning, because sharing is the default and the user need not have asked for it
        guarded(log.warning, "training: readings are not shared with other processes: %s", why)
    run = TrainingRun(Monitor(interval, exporters, share=None if why else share, labels=labels, rules=rules, **options))
    if share is not None and not are_green():  # with green threads, a call into the job's store would block the whole program
        run.hear_other_nodes()
    return run


# Behind a framework's callback

F = TypeVar("F", bound=Callable[..., None])


def contained(event: F) -> F:
    """Decorate a method that a framework calls, so that an error in it is logged once and does not reach the framework."""

    @functools.wraps(event)
    def call(self: Any, /, *arguments: object, **options: object) -> None:
        self.run._contain(event.__name__, event, self, *arguments, **options)

    return cast("F", call)


class RunHook:
    """The training run behind a framework's callback, which calls it from the framework's events.

    Args:
        run: A run of the program, which also starts and ends it. By default, the hook makes a run and starts and ends it itself.
        prefix: The prefix of a row's names, as for :meth:`TrainingRun.row`.
        keys: The metrics of a row.
        stats: The statistics of a row.
        options: Options of the hook's run, as for :func:`accelmetrics.training`.

    Raises:
        TypeError: Options were given together with a run, which has its own options.
        InvalidOptionError: An option is invalid. Other errors are those of :func:`accelmetrics.training`.
    """

    def __init__(
        self,
        run: TrainingRun | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        keys: MetricChoice = BRIEF,
        stats: Iterable[str] = ("mean",),
        **options: Any,
    ) -> None:
        if run is not None and options:
            raise TypeError(f"{', '.join(options)}: a given run has its own options: pass them to accelmetrics.training()")
        self._provided, self._options = run, options
        self._row: tuple[str, MetricChoice, tuple[str, ...]] = (prefix, keys, tuple(stats))
        self._own = training(**options) if run is None else None  # made now, so that an invalid option raises here
        self._closing: weakref.finalize[..., object] | None = None

    # Frameworks copy and pickle callbacks. A running monitor has threads and cannot be copied, so a copy makes its own run.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_provided": None, "_own": None, "_closing": None}

    @property
    def run(self) -> TrainingRun:
        """The training run, started or not."""
        if self._provided is not None:
            return self._provided
        if self._own is None:  # in a copy, perhaps in another process
            made = guarded(training, **self._options)
            if made.failure is not None:
                warn_user(f"training: the options cannot be used in a copy of the callback, which has the defaults: {made.failure.detail}")
                self._options = {}
            self._own = made.value or training()
        return self._own

    def begin(self) -> None:
        """Start the run at the start of the framework's training."""
        # After an exception, a framework may not call the end event. Then the run closes when the callback is garbage-collected.
        run = self.run
        run.start()
        if self._provided is None and (self._closing is None or not self._closing.alive):
            self._closing = weakref.finalize(self, run.close)

    def place(self, rank: int) -> None:
        """Set the rank from the framework, if no launcher set one. This replaces a run that has not started."""
        if self._provided is None and self.run.rank is None and not self.run.monitor.running:
            self._options = {**self._options, "labels": {"rank": str(rank), **(self._options.get("labels") or {})}}
            self._own = training(**self._options)
            if self._closing is not None:  # of the previous run, which has ended
                self._closing.detach()

    def contain(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function for an event of the framework. An error is logged once and does not reach the framework."""
        self.run._contain(getattr(call, "__name__", "callback").strip("_"), call, *arguments)

    def note(self, step: Any, values: Mapping[str, Any]) -> None:
        """Log the numbers of a row that a framework hands to its trackers. Texts and mappings are left out."""
        # The type is checked instead of the value: isinstance() reads attributes of the value, which may raise.
        numbers = {name: value for name, value in values.items() if not issubclass(type(value), (str, Mapping))}
        numbers.pop("step", None)
        self.run.step(step, **numbers)

    def row(self) -> dict[str, float]:
        """Return a row with the prefix, keys and statistics of this hook."""
        return self.run.row(*self._row)

    def with_row(self, values: Mapping[str, Any], row: Mapping[str, float] | None = None) -> Mapping[str, Any]:
        """Return a copy of a framework's values with a row added, by default a row of this run.

        Values that are no mapping are returned unchanged.
        """
        row = self.row() if row is None else row
        return self.run._contain("row", lambda: {**values, **row}) or values

    def end(self) -> None:
        """End the run at the end of the framework's training."""
        if self._provided is None:
            self.run.close()


class WithRun:
    """A base for framework callbacks with a training run. List it before the framework's base class.

    Args:
        run: A run of the program, as for :class:`RunHook`.
        options: Other arguments of :class:`RunHook`: ``prefix``, ``keys``, ``stats``, and the options of :func:`accelmetrics.training`.
    """

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__()
        self._hook = RunHook(run, **options)

    @property
    def run(self) -> TrainingRun:
        """The training run, with its findings and its monitor.

        If Lightning starts the other processes itself, ``fit`` replaces the run.
        """
        return self._hook.run
