"""A file for node_exporter's textfile collector, written whole at every record and gone when the exporter is closed."""

from __future__ import annotations

import os
from contextlib import suppress

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.files import absolute, replace_file
from accelmetrics.exporters.scrape_cache import MAX_SERIES, ScrapeCache
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import DeviceLabels, ProcessLabels, Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection

ENDING = ".prom"


class TextfileExporter:
    """Writes the latest record as Prometheus text.

    The collector reads whatever ends in ``.prom`` in its folder at whatever moment: each record is written beside the file
    under another name, then takes its place at once. There are no timestamps, which the collector refuses. When the exporter
    is closed the file that it wrote is removed, so that its last numbers are not taken for fresh ones; a program that is killed leaves it,
    and ``node_textfile_mtime_seconds`` says so.

    Args:
        path: The file; its name must end in ``.prom``.
        dialect: Whose names the metrics have: a name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        max_series: At most so many series are written.
        per_link: Writes each link between devices beside the sum over all of them.
        device_labels: As of the exporter ``prometheus``.
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.
        processes: Writes the processes that hold most of the devices' memory, at most so many.
        process_labels: As of the exporter ``prometheus``.

    Raises:
        InvalidOptionError: The name does not end in ``.prom``, or a number is not positive.
        UnknownNameError: There is no such dialect.
        MissingDependencyError: ``prometheus-client`` is not installed.
    """

    name = "textfile"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dialect: str | Dialect = "prometheus",
        max_series: int = MAX_SERIES,
        per_link: bool = False,
        device_labels: DeviceLabels | None = None,
        metrics: MetricChoice = ALL,
        processes: int = 0,
        process_labels: ProcessLabels | None = None,
    ) -> None:
        self.path = absolute(path)
        if self.path.suffix != ENDING:
            raise InvalidOptionError(f"the file {str(self.path)!r} must end in {ENDING}: node_exporter reads no other")
        self._cache = ScrapeCache(
            dialect, max_series, per_link=per_link, device_labels=device_labels, processes=processes, process_labels=process_labels
        )
        self.metrics = MetricSelection(metrics)
        self.processes = processes
        self._written: os.stat_result | None = None

    def open(self) -> None:
        """Make sure of the folder.

        Raises:
            OSError: It is not there and cannot be made.
        """
        self._cache.forget()
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def export(self, record: Record) -> None:
        """Put the record in the file's place.

        Raises:
            OSError: It cannot be written; the file stays as it was.
        """
        try:
            self._cache.take(record)
        finally:
            self._written = replace_file(self.path, self._cache.metrics())

    def flush(self) -> None:
        """Return at once: each record is written at once."""

    def close(self) -> None:
        """Remove the file, if it is still the one that this wrote.

        Raises:
            OSError: It cannot be removed.
        """
        written, self._written = self._written, None
        with suppress(FileNotFoundError):
            if written is not None and os.path.samestat(written, self.path.stat()):
                self.path.unlink()
