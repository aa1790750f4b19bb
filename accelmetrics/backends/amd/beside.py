"""The module ``amdsmi`` beside the kernel's files: asked on a thread of its own, so that a call that hangs costs no file's value.

A reading waits for the module as long as its calls return, and for one that stands still less than half a second; from then on
what it used to give is ``timed_out`` until the call has returned, and nobody waits. A stuck call is never repeated: there is one
thread for a card, which serves one reading at a time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection
from queue import SimpleQueue
from typing import Any

from accelmetrics.backends.amd.amdsmi_source import NEEDED, AmdsmiCard
from accelmetrics.backends.amd.table import Values
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.schemas.reasons import Reason, Unavailable

OVERDUE = Unavailable(Reason.TIMED_OUT, "a call into amdsmi has not returned")
FIRST_PATIENCE, LATER_PATIENCE = 0.4, 0.05
"""Seconds for which a call may stand still: as a rule, and after one did, until the module has answered again."""
SLICE = 0.05
"""Seconds between two looks at a call's progress. More than that never counts: a busy interpreter is no hung driver."""


class Trust:
    """Whether the module answers; shared by a driver's cards, since a library that hangs often hangs for all of them."""

    patience = FIRST_PATIENCE


class _Question:
    """What one reading asks of the module."""

    def __init__(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> None:
        self.wanted = wanted
        self.unified = unified
        self.progress = progress
        self.late = False
        self.answered = threading.Event()
        self.outcome: Outcome[Values] | None = None


class BesideCard:
    """One card behind the module, for a driver that has its files too. Never read by two threads at once.

    Args:
        card: The card.
        trust: The driver's.
    """

    def __init__(self, card: AmdsmiCard, trust: Trust) -> None:
        self._card = card
        self._trust = trust
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self._latest: _Question | None = None
        self._gave: Collection[str] = NEEDED.keys()
        # The thread knows the queue and the card alone, and so ends with this object.
        self._end = weakref.finalize(self, self._questions.put, None)
        self._end.atexit = False
        self._started = False

    @property
    def hangs(self) -> bool:
        """Whether a call that was given up has not returned yet."""
        return self._latest is not None and self._latest.late and not self._latest.answered.is_set()

    def close(self) -> None:
        """End the thread, once the call that it may be in has returned."""
        self._end()

    def read(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> Values:
        """As :meth:`AmdsmiCard.read`; what the module used to give is ``timed_out`` while a call of it hangs."""
        if self.hangs:
            return self._overdue(wanted)
        question = self._latest = _Question(wanted, unified, progress)
        self._ask(question)
        if not self._returns(question):
            question.late, self._trust.patience = True, LATER_PATIENCE
            return self._overdue(wanted)
        self._trust.patience = FIRST_PATIENCE
        outcome = question.outcome
        if outcome is None or outcome.value is None:
            raise (outcome and outcome.error) or RuntimeError("amdsmi was not asked")
        self._gave = {name for name, value in outcome.value.items() if not isinstance(value, Unavailable)}
        return outcome.value

    def _ask(self, question: _Question) -> None:
        if not self._started:
            threading.Thread(target=_answer, args=(self._card, self._questions), name="accelmetrics-amdsmi", daemon=True).start()
            self._started = True
        self._questions.put(question)

    def _returns(self, question: _Question) -> bool:
        """Wait for the answer while calls return."""
        seen, idle = len(question.progress), 0.0
        while not question.answered.wait(min(SLICE, self._trust.patience)):
            idle = idle + SLICE if len(question.progress) == seen else 0.0
            seen = len(question.progress)
            if idle >= self._trust.patience:
                return False
        return True

    def _overdue(self, wanted: Collection[str]) -> Values:
        return {name: OVERDUE for name in wanted if name in self._gave}


def _answer(card: AmdsmiCard, questions: SimpleQueue[_Question | None]) -> None:
    """The thread: one question after the other."""
    while (question := questions.get()) is not None:
        question.outcome = guarded(card.read, question.wanted, question.unified, question.progress)
        question.answered.set()
        del question
