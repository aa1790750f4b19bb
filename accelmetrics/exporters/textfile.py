"""A file for node_exporter's textfile collector, replaced at every record and removed when the exporter is closed."""

from __future__ import annotations

import os
from contextlib import suppress

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.files import absolute, replace_file
from accelmetrics.exporters.scrape_cache import MAX_SERIES, ScrapeCache
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import DeviceLabels, ProcessLabels, Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection


class TextfileExporter:
    """Writes the latest record as Prometheus text for node_exporter's textfile collector.

    The collector may read a ``.prom`` file at any moment, so each record is written under another name and then renamed. The text has no
    timestamps, because the collector rejects them. Closing the exporter removes the file, so that its last numbers are not taken for fresh
    ones. A killed program leaves the file; ``node_textfile_mtime_seconds`` shows its age.

    Args:
        path: The file; its name must end in ``.prom``.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        max_series: Maximum number of series.
        per_link: Also write the series of each link between devices, not only their sum.
        device_labels: As for the exporter ``prometheus``.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.
        processes: Number of processes to write: the ones with the most device memory.
        process_labels: As for the exporter ``prometheus``.

    Raises:
        InvalidOptionError: The name does not end in ``.prom``, or a number is not positive.
        UnknownNameError: There is no dialect with this name.
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
        if self.path.suffix != ".prom":
            raise InvalidOptionError(f"the file {str(self.path)!r} must end in .prom: node_exporter reads only such files")
        self._cache = ScrapeCache(
            dialect, max_series, per_link=per_link, device_labels=device_labels, processes=processes, process_labels=process_labels
        )
        self.metrics = MetricSelection(metrics)
        self.processes = processes
        self._written: os.stat_result | None = None

    def open(self) -> None:
        """Create the directory if it is missing.

        Raises:
            OSError: It cannot be created.
        """
        self._cache.forget()
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def export(self, record: Record) -> None:
        """Replace the file with this record.

        Raises:
            OSError: It cannot be written; the old file is unchanged.
        """
        try:
            self._cache.take(record)
        finally:  # if a label function raises, the record is still written, without these labels
            self._written = replace_file(self.path, self._cache.metrics())

    def flush(self) -> None:
        """Do nothing: each record is written when it is exported."""

    def close(self) -> None:
        """Remove the file if this exporter wrote it.

        Raises:
            OSError: It cannot be removed.
        """
        written, self._written = self._written, None
        with suppress(FileNotFoundError):
            if written is not None and os.path.samestat(written, self.path.stat()):
                self.path.unlink()
