"""CSV for spreadsheets: a header, then a row a reading and a column a key, so that a column is a line of a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelmetrics.cli.files import first_line
from accelmetrics.cli.output import WriteError, say
from accelmetrics.exporters.csv import columns_in, columns_of, csv_text
from accelmetrics.schemas.catalogue import coverage_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

HEAD = ("timestamp", "hostname")


class Csv:
    """Rows under the columns of the first reading, or of the file that they are added to.

    Args:
        repeated: Whether more readings follow: then what a process on a device would give has its columns from the start.
        path: The file that is added to; empty for none.

    Raises:
        WriteError: The file begins with something else.
    """

    def __init__(self, repeated: bool, path: str) -> None:
        self._repeated = repeated
        self._columns: tuple[str, ...] = ()
        self._left_out: set[str] = set()
        header = first_line(path) if repeated and path else ""
        if header:
            self._columns = columns_in(header.encode())
            if self._columns[:2] != HEAD:
                raise WriteError(path, f"it does not begin with the columns {', '.join(HEAD)}")

    def render(self, snapshot: Snapshot) -> str:
        """A row, below the header if it is the first."""
        rows: list[Iterable[object]] = []
        if not self._columns:
            self._columns = (*HEAD, *columns(snapshot, self._repeated))
            rows.append(self._columns)
        self._report(snapshot)
        values = snapshot.metrics
        rows.append((snapshot.timestamp, snapshot.hostname, *(values.get(key, "") for key in self._columns[2:])))
        return csv_text(rows).decode()

    def _report(self, snapshot: Snapshot) -> None:
        """Say once of every key that it has no column."""
        late = snapshot.metrics.keys() - set(self._columns) - self._left_out
        if late:
            self._left_out |= late
            say(f"left out, for want of a column that the header does not have: {', '.join(sorted(late))}")


def columns(snapshot: Snapshot, repeated: bool) -> list[str]:
    """Every key that has a value or may get one."""
    keys = dict.fromkeys(columns_of(snapshot))
    if repeated:
        keys.update((key, None) for place in snapshot.identities for key in _process_keys(place))
    return list(keys)


def _process_keys(place: DeviceSlot) -> list[str]:
    """What a process on a whole device would have."""
    names = () if place.identity.parent else coverage_of(place.backend).get("processes", ())
    return [f"{place.identity.kind}.process.{place.index}.{name}" for name in names]
