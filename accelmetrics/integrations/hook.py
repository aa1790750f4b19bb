"""The training run behind a framework's callback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accelmetrics.integrations.training import BRIEF, DEFAULT_PREFIX, TrainingRun, training
from accelmetrics.schemas.selection import MetricChoice


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
        if self._own is None:
            self._own = training(**self._options)
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
        self.run._contain(call.__name__.strip("_"), call, *arguments)

    def note(self, step: Any, values: Mapping[str, Any]) -> None:
        """Log the numbers of a row that a framework hands to its trackers; its texts are left out."""
        self.run.step(step, **{name: value for name, value in values.items() if name != "step" and not isinstance(value, (str, Mapping))})

    def row(self) -> dict[str, float]:
        """Return a row, as it was asked for."""
        return self.run.row(*self._row)

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
