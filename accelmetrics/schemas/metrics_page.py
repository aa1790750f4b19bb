"""Pages of metrics, as Prometheus' exporters serve them, read by Prometheus' own library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class MetricFamily(NamedTuple):
    """One metric of a page.

    Attributes:
        name: Its name; of a counter, without ``_total``.
        type: What it is: ``gauge``, ``counter``, ``histogram``, ``summary``, ``unknown`` ….
        meaning: Its help text.
        samples: Its lines: name, labels and value.
    """

    name: str
    type: str
    meaning: str
    samples: tuple[tuple[str, Mapping[str, str], float], ...]


def parse_page(text: str, openmetrics: bool = False) -> Iterator[MetricFamily]:
    """Read a page. Names stay as they are: a counter whose name lacks ``_total``, such as DCGM's, is of unknown type.

    Args:
        text: The page.
        openmetrics: Whether it is of that format; of the older one of Prometheus otherwise.

    Raises:
        ValueError: It is no such page.
        ImportError: ``prometheus-client`` is not installed.
    """
    parse: Callable[[str], Iterable[Any]]
    if openmetrics:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
    else:
        from prometheus_client.parser import text_string_to_metric_families as parse
    page = f"\n{text}"
    for found in parse(text):
        added = found.type == "counter" and not openmetrics and not any(f"\n{found.name}_total{end}" in page for end in "{ \t")
        cut = "_total" if added else ""
        samples = tuple((each.name.removesuffix(cut), each.labels, float(each.value)) for each in found.samples)
        yield MetricFamily(found.name, "unknown" if added else found.type, found.documentation, samples)
