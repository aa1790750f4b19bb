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
"""Modules that libraries of models name so."""
BRIEF = "brief"
"""Of each device utilisation, share of memory, power, temperature and energy; of the job its throughput and work per joule."""
BRIEF_NAMES = (UTILIZATION, MEMORY_PERCENT, POWER, TEMPERATURE)
BRIEF_SELECTION = MetricSelection([*chain(*BRIEF_NAMES), COUNTER])
READINGS = "readings"
"""The name in a row that says how many readings it is made of."""
STATISTICS = ("mean", "min", "max", "last", "p50", "p95", "p99")
DEFAULT_PREFIX = "system/"
MOST_ASKED = 1000
"""Keys and statistics that are looked at: what a program hands over may have no end."""
MOST_TOLD = 10
"""Names of unknown arguments in a message."""

_REFUSED = re.compile(r"[^/\w.\- :]", re.ASCII)
"""What trackers do not take in a name."""


RowChoice = Callable[[MetricChoice, Iterable[str]], tuple[MetricSelection, Sequence[str]]]


def row_choice(tell: Callable[[object, str], object]) -> RowChoice:
    """Return what reads what a row is asked for. What cannot be used is told, and replaced by the default.

    Args:
        tell: Called with a mark of what is wrong and with words for it, each time.
    """
    selections: dict[object, MetricSelection] = {BRIEF: BRIEF_SELECTION}

    def selected(keys: MetricChoice) -> MetricSelection:
        choice = tuple(islice(keys, MOST_ASKED)) if isinstance(keys, Iterable) and not isinstance(keys, str) else keys
        if choice not in selections:
            outcome = guarded(MetricSelection, choice)
            if outcome.failure is not None:
                tell(("keys", choice), f"row: {outcome.failure.detail}: it has the brief keys instead")
            selections[choice] = outcome.value or BRIEF_SELECTION
        return selections[choice]

    def statistics(stats: Iterable[str]) -> list[str]:
        asked = [stats] if isinstance(stats, str) else list(islice(stats, MOST_ASKED))
        wrong = [stat for stat in asked if stat not in STATISTICS]
        if wrong:
            tell(f"stats {shown(wrong)}", f"row: there is no statistic {shown(wrong[0])}: there are {', '.join(STATISTICS)}")
        return [stat for stat in asked if stat in STATISTICS] or ["mean"]

    def read(keys: MetricChoice, stats: Iterable[str]) -> tuple[MetricSelection, Sequence[str]]:
        selection, chosen = guarded(selected, keys), guarded(statistics, stats)
        if selection.failure is not None:
            tell("keys", f"row: its keys cannot be read: {selection.failure.detail}: it has the brief keys instead")
        if chosen.failure is not None:
            tell("stats", f"row: its statistics cannot be read: {chosen.failure.detail}: it has means instead")
        return selection.value or BRIEF_SELECTION, chosen.value or ["mean"]

    return read


def tell_unused(tell: Callable[[object, str], object], unused: Sequence[object], unknown: Mapping[str, object]) -> None:
    """Tell that a row was asked for with arguments that it does not take."""
    if unused or unknown:
        names = ", ".join(islice(unknown, MOST_TOLD))
        tell("arguments", f"row takes prefix, keys and stats: {len(unused) + len(unknown)} more are left out{names and f': {names}'}")


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
        self._watched: list[ModelWatch] = []

    def start(self) -> TrainingRun:
        """Begin to read, in the background. Starting twice changes nothing; a run that was closed goes on."""
        self._contain("start", self._start)
        return self

    def close(self) -> None:
        """Take one last reading, deliver what was logged, and end: seconds at most. Closing twice changes nothing."""
        until = time.monotonic() + CLOSING
        for watched in self._watched:
            self._contain("close", watched.remove)
        self._watched.clear()
        if self._other_nodes is not None:
            self._contain("close", self._other_nodes.end)
        self._contain("close", self.monitor.stop)
        if self._other_nodes is not None:  # it has ended beside the stop, unless a call into the store hangs
            self._contain("close", self._other_nodes.join, until)

    def __enter__(self) -> TrainingRun:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(self, step: Any = None, /, *unused: object, **values: Any) -> None:
        """Log numbers of a step, from any rank. Never waits, and never synchronises a device.

        Args:
            step: The trainer's own step.
            unused: Nothing; told once where there is something.
            values: Numbers by name: ``loss``, ``grad_norm``, ``lr``, ``epoch``, any others. ``tokens`` and ``samples`` are those of this
                step in this process: throughput and work per joule follow from them. None is left out.
        """
        for watched in self._watched:
            values = {**values, **watched.take()}
        self._contain("step", self.monitor.log, step, **values)
        if unused:
            self._tell("step", f"step takes one number and names (`step(7, loss=loss)`): {len(unused)} more were left out")

    def watch(self, model: Any, every: int = 100, modules: str | Iterable[str] = ATTENTION, prefix: str = "watch") -> None:
        """Measure a model of PyTorch every so many steps of its optimizer, until the run is closed. Never synchronises a device.

        The next :meth:`step` logs it: ``watch/grad_norm`` and ``watch/weight_norm`` of the model, and of each module
        ``watch/grad_norm/<module>``, ``watch/weight_norm/<module>``, ``watch/activation_mean/<module>``, ``watch/activation_std/<module>``,
        ``watch/activation_zeros/<module>`` (the share of zeros of its output, 0 to 1).

        Args:
            model: The module; after it was wrapped for several devices, if it is.
            every: Steps of the optimizer from one that is measured to the next; the first is measured.
            modules: Patterns of names of modules, attention when left out: ``"*mlp*"``. Of modules within each other the outer one.
            prefix: What names begin with.
        """
        self._contain("watch", self._watch, model, every, modules, prefix)

    def _watch(self, model: Any, every: int, modules: str | Iterable[str], prefix: str) -> None:
        from accelmetrics.integrations.torch_watch import ModelWatch

        self._watched.append(ModelWatch(model, every, modules, prefix, self._tell))

    def row(
        self, prefix: str = DEFAULT_PREFIX, keys: MetricChoice = BRIEF, stats: Iterable[str] = ("mean",), *unused: object, **unknown: object
    ) -> dict[str, float]:
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
            unused: Nothing; told once where there is something, like the next.
            unknown: Nothing.

        Returns:
            Finite numbers by name. Names have letters, digits and ``/ _ . - :`` and spaces alone; anything else becomes ``_``.
        """
        tell_unused(self._tell, unused, unknown)
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
        head = headed(prefix)
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
        return named(found, head)

    def _contain(self, what: str, call: Callable[..., T], /, *arguments: object, **options: object) -> T | None:
        """Call our own code in the program's stead: whatever goes wrong there is told once and stays there."""
        outcome = guarded(call, *arguments, **options)
        if outcome.failure is not None:
            self._tell((what, kind_of(outcome.error)), f"{what} failed: {outcome.failure.detail}")
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
    why = cannot_share() if share is not None else ""
    if why:  # the default cannot act: no warning for what the user did not ask for
        guarded(log.warning, "training: readings are not shared with other processes: %s", why)
    run = TrainingRun(Monitor(interval, exporters, share=None if why else share, labels=labels, rules=rules, **options))
    if share is not None and not are_green():  # a call into the job's store would hold up the program
        run.hear_other_nodes()
    return run


# Behind a framework's callback

F = TypeVar("F", bound=Callable[..., None])


def contained(event: F) -> F:
    """Decorate a callback's method that a framework calls: what goes wrong there is told once, and is not the framework's."""

    @functools.wraps(event)
    def call(self: Any, /, *arguments: object, **options: object) -> None:
        self.run._contain(event.__name__, event, self, *arguments, **options)

    return cast("F", call)


class RunHook:
    """Begins a training run with the framework's, or uses the one that it was given, and gives its rows.

    A callback has one and calls it from the framework's events. Frameworks copy and pickle callbacks: what is running stays behind.

    Args:
        run: A run that the program made, which begins and ends it; one of its own when left out.
        prefix: What names of a row begin with, as for :meth:`TrainingRun.row`, like the next two.
        keys: The metrics of a row.
        stats: Their statistics.
        options: Of its own run, as for :func:`accelmetrics.training`.

    Raises:
        TypeError: Options beside a run, which has its own.
        InvalidOptionError: An option that cannot be used; so do the others that :func:`accelmetrics.training` raises.
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
            raise TypeError(f"{', '.join(options)}: options belong to accelmetrics.training(), which made this run")
        self._given, self._options = run, options
        self._row: tuple[str, MetricChoice, tuple[str, ...]] = (prefix, keys, tuple(stats))
        self._own = training(**options) if run is None else None  # what cannot be used is told here
        self._closing: weakref.finalize[..., object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_given": None, "_own": None, "_closing": None}

    @property
    def run(self) -> TrainingRun:
        """The run, whether it has begun or not."""
        if self._given is not None:
            return self._given
        if self._own is None:  # in a copy, which another process may have
            made = guarded(training, **self._options)
            if made.failure is not None:
                words = "its options cannot be used where the callback was copied to, and defaults are used"
                warn_user(f"training: {words}: {made.failure.detail}")
                self._options = {}
            self._own = made.value or training()
        return self._own

    def begin(self) -> None:
        """Begin with the framework's training, which an exception may leave without its end: then it ends with the callback."""
        run = self.run
        run.start()
        if self._given is None and (self._closing is None or not self._closing.alive):
            self._closing = weakref.finalize(self, run.close)

    def place(self, rank: int) -> None:
        """Take the rank that the framework gives this process, where its launcher said none: the run is made anew, before it begins."""
        if self._given is None and self.run.rank is None and not self.run.monitor.running:
            self._options = {**self._options, "labels": {"rank": str(rank), **(self._options.get("labels") or {})}}
            self._own = training(**self._options)
            if self._closing is not None:  # that of the run before, which has ended
                self._closing.detach()

    def contain(self, call: Callable[..., object], *arguments: object) -> None:
        """Call what an event of the framework comes to: whatever goes wrong there is told once, and is not the framework's."""
        self.run._contain(getattr(call, "__name__", "callback").strip("_"), call, *arguments)

    def note(self, step: Any, values: Mapping[str, Any]) -> None:
        """Log the numbers of a row that a framework hands to its trackers; its texts are left out."""
        # Of a type, which is asked for nothing: a value's own attributes may raise.
        numbers = {name: value for name, value in values.items() if not issubclass(type(value), (str, Mapping))}
        numbers.pop("step", None)
        self.run.step(step, **numbers)

    def row(self) -> dict[str, float]:
        """Return a row, as it was asked for."""
        return self.run.row(*self._row)

    def beside(self, values: Mapping[str, Any], row: Mapping[str, float] | None = None) -> Mapping[str, Any]:
        """Return a framework's values with a row beside them, this run's where none is given; what is no mapping as it is."""
        row = self.row() if row is None else row
        return self.run._contain("row", lambda: {**values, **row}) or values

    def end(self) -> None:
        """End with the framework's training."""
        if self._given is None:
            self.run.close()


class WithRun:
    """A framework's callback with a training run behind it. It stands before the framework's own class.

    Args:
        run: A run that the program made, as for :class:`RunHook`.
        options: The other arguments of :class:`RunHook`: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.
    """

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__()
        self._hook = RunHook(run, **options)

    @property
    def run(self) -> TrainingRun:
        """The training run: its findings, its monitor. Where Lightning starts the other processes itself, it is made anew in ``fit``."""
        return self._hook.run
