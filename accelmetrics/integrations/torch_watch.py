"""Measurements of a PyTorch model for :meth:`TrainingRun.watch`: norms of gradients and weights, and statistics of module outputs.

PyTorch computes all numbers on the device of the tensors, in the program's stream. The program never waits for the device: the monitor
converts each number on another thread once the device has computed it. Between two measured steps the model has no hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import InvalidOptionError

MOST_MODULES = 256
"""Modules that are measured at most. Each adds several numbers to a measured step."""


class ModelWatch:
    """A measurement every few steps of the model's optimizer, until it is removed or the model is deleted.

    A step is measured right before the optimizer's step. Then gradients are complete, across ranks and micro-batches, and clipped if the
    program clips them. Activations are from the first micro-batch of the step.

    Args:
        model: The trained module.
        every: Optimizer steps between two measurements. The first step is measured.
        modules: Patterns for names of modules. Of nested modules, the outer one is measured.
        prefix: The prefix of the names.
        report: Called for each problem, with an identifier of the problem and a message.

    Raises:
        InvalidOptionError: ``model`` is no module, or ``every`` is no whole number of steps.
    """

    def __init__(self, model: Any, every: int, modules: Iterable[str], prefix: str, report: Callable[[object, str], object]) -> None:
        if not isinstance(model, torch.nn.Module):
            raise InvalidOptionError("watch takes a torch.nn.Module")
        if type(every) is not int or every < 1:
            raise InvalidOptionError(f"every is {every!r}: it must be a whole number of steps above 0")
        patterns = [modules] if isinstance(modules, str) else list(modules)
        self._report, self._every, self._prefix = report, every, f"{prefix.rstrip('/')}/"
        self._model = weakref.ref(model)
        self._parameters = {id(parameter) for parameter in model.parameters()}
        chosen = list(islice(_outermost(model, patterns), MOST_MODULES + 1))
        if len(chosen) > MOST_MODULES:
            report("modules", f"watch: too many modules match: only the first {MOST_MODULES} are measured")
        self._modules = chosen[:MOST_MODULES]
        self._optimizer: Callable[[], Any] | None = None
        self._steps = 0
        self._activations: dict[str, Any] = {}
        self._ready: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._add_output_hooks()
        self._step_hook = register_optimizer_step_pre_hook(self._before_step)

    def take(self) -> dict[str, Any]:
        """Return the numbers measured since the last call as tensors of one element, by name. Empty after most steps."""
        found, self._ready = self._ready, {}
        return found

    def remove(self) -> None:
        """Remove every hook."""
        self._step_hook.remove()
        self._remove_output_hooks()

    def _before_step(self, optimizer: Any, arguments: object, options: object) -> None:
        outcome = guarded(self._step, optimizer)
        if outcome.failure is not None:
            self._report(("watch", str(type(outcome.error))), f"watch: {outcome.failure.detail}")

    def _step(self, optimizer: Any) -> None:
        model = self._model()
        if model is None:
            self.remove()
            return
        if self._optimizer is None:
            if not any(id(parameter) in self._parameters for group in optimizer.param_groups for parameter in group["params"]):
                return
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer or _captured():
            return
        measured, self._steps = self._steps % self._every == 0, self._steps + 1
        if measured:
            self._remove_output_hooks()
            found, self._activations = self._activations, {}
            # A fused optimizer divides by the factor of a GradScaler itself, so gradients are still scaled here.
            scale = getattr(optimizer, "grad_scale", None)
            with torch.no_grad():
                self._ready = {**self._norms(model, scale), **found}
        if self._steps % self._every == 0:
            self._add_output_hooks()

    def _norms(self, model: Any, scale: Any) -> dict[str, Any]:
        """Return norms of the gradients and weights of the model and of its modules."""
        # The norm of a module is the norm of its parameters' norms, so each parameter is read once.
        norms: dict[int, tuple[Any, Any]] = {}
        for parameter in model.parameters():
            weight, gradient = _norm(parameter), None if parameter.grad is None else _norm(parameter.grad)
            if weight is None:
                self._report("parts", "watch: norms exclude parameters that are sharded over ranks or have no values in this process")
            if gradient is not None and scale is not None:
                gradient = gradient / scale.to(gradient.device)
            norms[id(parameter)] = gradient, weight
        found = {}
        for name, module in [("", model), *self._named_modules()]:
            own = [norms[id(parameter)] for parameter in module.parameters() if id(parameter) in norms]
            for kind, parts in (("grad_norm", [one for one, _ in own]), ("weight_norm", [one for _, one in own])):
                present = [part for part in parts if part is not None]
                if present:
                    together = torch.stack([part.to(present[0].device, torch.float32) for part in present])
                    found[self._name(kind, name)] = torch.linalg.vector_norm(together)
        return found

    def _add_output_hooks(self) -> None:
        for name, module in self._named_modules():
            self._hooks.append(module.register_forward_hook(self._output_hook(name)))

    def _remove_output_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _named_modules(self) -> Iterator[tuple[str, Any]]:
        for name, reference in self._modules:
            module = reference()
            if module is not None:
                yield name, module

    def _output_hook(self, name: str) -> Callable[[Any, object, object], None]:
        first, kinds = self._name("activation_mean", name), ("mean", "std", "zeros")

        def look(output: object) -> None:
            values = _first_tensor(output)
            if values is None or not values.numel():
                return
            deviation, mean = torch.std_mean(values)
            zeros = 1 - torch.count_nonzero(values) / values.numel()
            measured = (mean, deviation, zeros)
            self._activations.update({self._name(f"activation_{kind}", name): one for kind, one in zip(kinds, measured, strict=True)})

        def hook(module: Any, arguments: object, output: object) -> None:
            # Only the first training pass counts: no evaluation, and no pass repeated by activation checkpointing.
            if first in self._activations or not module.training or not torch.is_grad_enabled() or _captured():
                return
            with torch.no_grad():
                outcome = guarded(look, output)
            if outcome.failure is not None:
                self._report(("watch", name), f"watch: the output of {name} cannot be measured: {outcome.failure.detail}")

        return hook

    def _name(self, kind: str, module: str) -> str:
        return f"{self._prefix}{kind}{module and f'/{module}'}"


def _outermost(model: Any, patterns: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names of matching modules, with weak references. A module inside another matching one is left out."""
    last = None
    for name, module in model.named_modules():  # an outer module comes before its inner ones
        if last is not None and name.startswith(f"{last}."):
            continue
        if name and any(fnmatchcase(name, pattern) for pattern in patterns):
            last = name
            yield name, weakref.ref(module)


def _norm(tensor: Any) -> Any:
    """Return the norm of a tensor as a tensor. None if this process does not hold all of its values."""
    tensor = tensor.detach()
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor. For a sharded one, the norm would need a collective call of all ranks.
        if not all(placement.is_replicate() for placement in placements):
            return None
        tensor = tensor.to_local()
    if tensor.device.type == "meta" or not tensor.is_floating_point():
        return None
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _first_tensor(output: Any) -> Any:
    """Return the first floating-point tensor in a module's output, or None."""
    # An attention module, for example, returns its output and then its weights.
    if isinstance(output, torch.Tensor):
        values = output.detach()
        return values if values.is_floating_point() and values.device.type != "meta" else None
    parts = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return next((values for part in parts if (values := _first_tensor(part)) is not None), None)


def _captured() -> bool:
    """Return whether a CUDA graph is being captured."""
    # A measurement during the capture would become part of the graph and run at each replay.
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
