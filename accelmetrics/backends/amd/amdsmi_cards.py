"""The cards behind the module ``amdsmi``, or in words why there are none.

Whatever is wrong with the module, the library or the driver below them costs nobody else's values: it is opened behind the
guard, and left alone while a card sleeps, which opening would wake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accelmetrics.backends.amd import amdsmi_library, sysfs
from accelmetrics.backends.amd.amdsmi_source import AmdsmiCard
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.reasons import Reason

DRIVER_NOT_LOADED = 34
"""The library's status code."""

Found = Mapping[str, AmdsmiCard]


class AmdsmiCards(NamedTuple):
    """What opening the module came to.

    Attributes:
        found: The cards by PCI address.
        failure: Why there are none; None when there are.
    """

    found: Found
    failure: SourceError | None

    @property
    def waiting(self) -> bool:
        """Whether it was not opened for a reason that passes."""
        return self.failure is not None and self.failure.reason == Reason.SUSPENDED


NOT_ASKED = AmdsmiCards({}, None)


def open_cards(addresses: Sequence[str]) -> AmdsmiCards:
    """Open the module, unless a card sleeps."""
    asleep = [address for address in addresses if sysfs.is_suspended(address)]
    if asleep:
        words = f"opening amdsmi would wake {', '.join(asleep)}, which is suspended"
        return AmdsmiCards({}, SourceError(Reason.SUSPENDED, words, backend="amd"))
    outcome = guarded(_open)
    return AmdsmiCards(outcome.value, None) if outcome.value else AmdsmiCards({}, _failure(outcome))


def _open() -> Found:
    module = amdsmi_library.load()
    try:
        module.amdsmi_init()
        handles = module.amdsmi_get_processor_handles()
        return {module.amdsmi_get_gpu_device_bdf(handle).lower(): AmdsmiCard(module, handle) for handle in handles}
    except module.AmdSmiException as error:
        words = " ".join(str(error).split())
        kind = DriverGoneError if getattr(error, "err_code", 0) == DRIVER_NOT_LOADED else SourceError
        raise kind(Reason.DRIVER_UNAVAILABLE, f"amdsmi does not start: {words}", backend="amd") from error


def _failure(outcome: Outcome[Found]) -> SourceError:
    if isinstance(outcome.error, SourceError):
        return outcome.error
    words = "amdsmi lists no card" if outcome.failure is None else f"amdsmi cannot be used: {outcome.failure.detail}"
    return SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="amd", advice=amdsmi_library.INSTALL)
