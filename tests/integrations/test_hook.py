"""The training run behind callbacks of frameworks."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest

import accelmetrics
from accelmetrics.exporters import registry
from accelmetrics.integrations.training import RunHook, WithRun
from tests.monitor.watching import gpus


def test_a_callback_that_is_used_again_and_again_is_ended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for each training; one that an exception left is ended with the callback."""
    finalizers: list[weakref.finalize[..., Any]] = []

    class Counted(weakref.finalize):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            finalizers.append(self)

    monkeypatch.setattr(weakref, "finalize", Counted)
    hook = RunHook(backends=[gpus(1)], share=None)
    for _ in range(5):
        hook.begin()
        hook.end()
    hook.place(3)
    assert hook.run.rank == 3
    hook.begin()
    of_hook = [each for each in finalizers if (each.peek() or [None])[0] is hook]
    assert len(of_hook) == 1
    monitor = hook.run.monitor
    assert monitor.running
    del hook, of_hook
    gc.collect()
    assert not monitor.running


def test_wrong_options_are_told_where_a_callback_is_made() -> None:
    """And not in the middle of the training."""
    with pytest.raises(accelmetrics.InvalidOptionError):
        WithRun(interval=-1)


def test_copies_of_a_callback_have_runs_of_their_own() -> None:
    """Frameworks make them for other processes: what runs stays behind."""
    callback = WithRun(interval=2.0)
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert other.run is not callback.run
        assert other.run.monitor.interval == 2.0


def test_a_copy_whose_options_cannot_be_used_goes_on_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may lack what the first one had: the user is warned once, and nothing is raised into the framework."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setitem(registry.BUILT_IN, "of-this-process", "accelmetrics.exporters.files:JsonlExporter")
        callback = RunHook(exporters=["of-this-process:run.jsonl"], backends=["host"], interval=2.0)
    copied = pickle.loads(pickle.dumps(callback))
    with pytest.warns(RuntimeWarning, match="options cannot be used .*of-this-process") as warned:
        copied.contain(copied.begin)
        assert copied.run.monitor.running
        copied.contain(copied.end)
    assert len(warned) == 1
    assert not copied.run.monitor.running
