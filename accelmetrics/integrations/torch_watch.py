"""A model of PyTorch in numbers, for :meth:`TrainingRun.watch`: norms of its gradients and weights, and what its modules put out.

PyTorch computes everything where the tensors are, on the stream that the program uses. No device is waited for: the monitor converts each
number on a thread of its own once the device has computed it. Between two steps that are measured the model has no hook.
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


class ModelWatch:
    """Measures every so many steps of the model's optimizer, until it is removed or the model has gone.

    A step is measured right before the optimizer takes it: gradients are complete then, across ranks and micro-batches, and clipped where
    the program clips them. Activations are those of the step's first micro-batch.

    Args:
        model: The module whose parameters are trained.
        every: Steps of the optimizer from one that is measured to the next; the first is measured.
        modules: Patterns of names of modules; of modules within each other the outer one is taken.
        prefix: What names begin with.
        tell: Called with a mark of what went wrong and words for it, each time.

    Raises:
        InvalidOptionError: What is given is no module, or no whole number of steps.
    """

    def __init__(self, model: Any, every: int, modules: Iterable[str], prefix: str, tell: Callable[[object, str], object]) -> None:
        if not isinstance(model, torch.nn.Module):
            raise InvalidOptionError("watch takes a torch.nn.Module")
        if type(every) is not int or every < 1:
            raise InvalidOptionError(f"every is {every!r}: it must be a whole number of steps above 0")
        patterns = [modules] if isinstance(modules, str) else list(modules)
        self._tell, self._every, self._prefix = tell, every, f"{prefix.rstrip('/')}/"
        self._model = weakref.ref(model)
        self._parameters = {id(parameter) for parameter in model.parameters()}
        chosen = list(islice(_outermost(model, patterns), MOST_MODULES + 1))
        if len(chosen) > MOST_MODULES:
            tell("modules", f"watch: the first {MOST_MODULES} of the modules that match are watched")
        self._modules = chosen[:MOST_MODULES]
        self._optimizer: Callable[[], Any] | None = None
        self._steps = 0
        self._activations: dict[str, Any] = {}
        self._ready: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._look_at_outputs()
        self._step_hook = register_optimizer_step_pre_hook(self._before_step)

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last call, mostly nothing: tensors of one element, by the names that are logged."""
        found, self._ready = self._ready, {}
        return found

    def remove(self) -> None:
        """Remove every hook."""
        self._step_hook.remove()
        self._look_no_more()

    def _before_step(self, optimizer: Any, arguments: object, options: object) -> None:
        outcome = guarded(self._step, optimizer)
        if outcome.failure is not None:
            self._tell(("watch", str(type(outcome.error))), f"watch: {outcome.failure.detail}")

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
            self._look_no_more()
            found, self._activations = self._activations, {}
            scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer removes that of a GradScaler itself
            with torch.no_grad():
                self._ready = {**self._norms(model, scale), **found}
        if self._steps % self._every == 0:
            self._look_at_outputs()

    def _norms(self, model: Any, scale: Any) -> dict[str, Any]:
        """Return norms of the gradients and weights of the model and of its modules."""
        norms: dict[int, tuple[Any, Any]] = {}
        for parameter in model.parameters():
            weight, gradient = _norm(parameter), None if parameter.grad is None else _norm(parameter.grad)
            if weight is None:
                self._tell("parts", "watch: parameters that are spread over ranks, or have no values here, are left out of norms")
            if gradient is not None and scale is not None:
                gradient = gradient / scale.to(gradient.device)
            norms[id(parameter)] = gradient, weight
        found = {}
        for name, module in [("", model), *self._named_modules()]:
            own = [norms[id(parameter)] for parameter in module.parameters() if id(parameter) in norms]
            for kind, parts in (("grad_norm", [one for one, _ in own]), ("weight_norm", [one for _, one in own])):
                there = [part for part in parts if part is not None]
                if there:
                    together = torch.stack([part.to(there[0].device, torch.float32) for part in there])
                    found[self._name(kind, name)] = torch.linalg.vector_norm(together)
        return found

    def _look_at_outputs(self) -> None:
        for name, module in self._named_modules():
            self._hooks.append(module.register_forward_hook(self._output_hook(name)))

    def _look_no_more(self) -> None:
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
            # The first that is trained on: not an evaluation, nor a pass that is repeated to save memory.
            if first in self._activations or not module.training or not torch.is_grad_enabled() or _captured():
                return
            with torch.no_grad():
                outcome = guarded(look, output)
            if outcome.failure is not None:
                self._tell(("watch", name), f"watch: what {name} puts out: {outcome.failure.detail}")

        return hook

    def _name(self, kind: str, module: str) -> str:
        return f"{self._prefix}{kind}{module and f'/{module}'}"


def _outermost(model: Any, patterns: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the modules whose names match, with weak references; none that is within another one of them."""
    last = None
    for name, module in model.named_modules():  # a module before those within it
        if last is not None and name.startswith(f"{last}."):
            continue
        if name and any(fnmatchcase(name, pattern) for pattern in patterns):
            last = name
            yield name, weakref.ref(module)


def _norm(tensor: Any) -> Any:
    """Return the norm of a tensor as a tensor; None where this process does not have all of it."""
    tensor = tensor.detach()
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor: the norm of one that is spread over ranks is a collective
        if not all(placement.is_replicate() for placement in placements):
            return None
        tensor = tensor.to_local()
    if tensor.device.type == "meta" or not tensor.is_floating_point():
        return None
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _first_tensor(output: Any) -> Any:
    """Return the first floating tensor of what a module puts out: attention gives its weights beside its output."""
    if isinstance(output, torch.Tensor):
        values = output.detach()
        return values if values.is_floating_point() and values.device.type != "meta" else None
    parts = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return next((values for part in parts if (values := _first_tensor(part)) is not None), None)


def _captured() -> bool:
    """Return whether a CUDA graph is being captured: what is computed now would be computed at each replay."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
