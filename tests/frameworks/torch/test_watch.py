"""``run.watch(model)`` beside PyTorch as it is released: what is logged is what the model has, and the model is left as it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import accelmetrics
from accelmetrics.integrations import torch_watch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.out = nn.Linear(16, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.self_attn(inputs, inputs, inputs)
        found: torch.Tensor = self.out(self.mlp(mixed))
        return found


def model(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def hooks_of(module: nn.Module) -> int:
    return sum(len(each._forward_hooks) for each in module.modules())


@pytest.fixture
def run() -> Iterator[accelmetrics.TrainingRun]:
    with accelmetrics.training(interval=0.05, backends=["host"], metrics="cpu,load.1m", share=None) as made:
        yield made


def logged(run: accelmetrics.TrainingRun) -> list[dict[str, float]]:
    """What was logged, without what follows from it."""
    run.close()
    return [{name: value for name, value in step.values.items() if name.startswith(("watch", "loss"))} for step in run.monitor.steps]


def norm(tensors: Any) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor.detach()) for tensor in tensors])))


def train(net: nn.Module, run: accelmetrics.TrainingRun, steps: int, micro: int = 1) -> Iterator[list[torch.Tensor]]:
    """Train, and give the gradients of each step before it is logged."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            loss = net(torch.randn(3, 4, 8)).square().mean() / micro
            loss.backward()
        gradients = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        optimizer.step()
        yield gradients
        run.step(step, loss=loss)


def test_norms_and_activations_of_attention_every_so_many_steps(run: accelmetrics.TrainingRun) -> None:
    """Of the first step and every third from there, before the optimizer changes the weights; between them the model has no hook."""
    net = model()
    before = norm(net.parameters())
    outputs: list[torch.Tensor] = []
    net[1].self_attn.register_forward_hook(lambda module, args, output: outputs.append(output[0].detach()))
    run.watch(net, every=3)
    own, hooks, gradients = hooks_of(net), [], []
    for each in train(net, run, 5, micro=2):
        gradients.append(each)
        hooks.append(hooks_of(net))
    assert (own, hooks) == (3, [1, 1, 3, 1, 1]), "one hook is the test's"
    steps = logged(run)
    names = {f"watch/{kind}/{place}.self_attn" for kind in ("grad_norm", "weight_norm") for place in "01"}
    names |= {f"watch/activation_{kind}/{place}.self_attn" for kind in ("mean", "std", "zeros") for place in "01"}
    assert [step.keys() - {"loss"} for step in steps] == [
        {*names, "watch/grad_norm", "watch/weight_norm"} if number in (0, 3) else set() for number in range(5)
    ]
    assert steps[0]["watch/weight_norm"] == pytest.approx(before)
    for number in (0, 3):
        assert steps[number]["watch/grad_norm"] == pytest.approx(norm(gradients[number]), rel=1e-5)
        output = outputs[2 * number]  # of the first of two micro-batches
        assert steps[number]["watch/activation_mean/1.self_attn"] == pytest.approx(float(output.mean()), abs=1e-6)
        assert steps[number]["watch/activation_std/1.self_attn"] == pytest.approx(float(output.std()), rel=1e-5)
        assert steps[number]["watch/activation_zeros/1.self_attn"] == 0.0


def test_modules_of_the_programs_choice(run: accelmetrics.TrainingRun) -> None:
    """The outer one of those within each other; the share of zeros is that of a ReLU; an evaluation is not measured."""
    net = model(1)
    run.watch(net, every=1, modules="*mlp*", prefix="model")
    net.eval()
    net(torch.zeros(1, 4, 8))
    net.train()
    with torch.no_grad():
        net(torch.zeros(1, 4, 8))
    for _ in train(net, run, 1):
        pass
    run.close()
    (step,) = run.monitor.steps
    assert {name for name in step.values if name.startswith("model/activation_")} == {
        f"model/activation_{kind}/0.mlp" for kind in ("mean", "std", "zeros")
    }
    assert 0.2 < step.values["model/activation_zeros/0.mlp"] < 0.8
    assert step.values["model/activation_std/0.mlp"] > 0, "inputs of the evaluation were zeros"


def test_gradients_that_are_scaled_are_told_without_the_scale(run: accelmetrics.TrainingRun) -> None:
    """A fused optimizer unscales by itself, after the hook."""
    net = nn.Linear(4, 1)
    run.watch(net, every=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = net(torch.ones(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    run.step(0)
    run.close()
    assert run.monitor.steps[0].values["watch/grad_norm"] == pytest.approx((4 * 2**2 + 2**2) ** 0.5)


def test_values_that_are_not_finite_are_kept(run: accelmetrics.TrainingRun) -> None:
    """And counted, as any that is logged."""
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(float("inf"))
    run.watch(net, every=1)
    for _ in train_linear(net, run):
        pass
    run.close()
    assert run.monitor.steps[0].values["watch/weight_norm"] == float("inf")
    assert run.monitor.steps[0].values["nonFinite"] >= 1


def train_linear(net: nn.Module, run: accelmetrics.TrainingRun) -> Iterator[None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    yield
    run.step(0)


def test_other_optimizers_are_left_alone(run: accelmetrics.TrainingRun) -> None:
    """Of a model that is not watched, and a second one of the same model: its steps do not count."""
    net, other = model(1), nn.Linear(2, 1)
    run.watch(net, every=2)
    for _ in train_linear(other, run):
        pass
    for _ in train(net, run, 2):
        torch.optim.SGD(net[0].out.parameters(), lr=0.0).step()
    assert ["watch/grad_norm" in step for step in logged(run)] == [False, True, False]


def test_nothing_is_raised_or_left_behind(run: accelmetrics.TrainingRun, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What fails is told once; after the run's end no hook is there, and the model is not kept."""
    global_hooks = dict(_global_optimizer_pre_hooks)

    def fail(*unused: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    net = model(1)
    run.watch(net, every=1)
    monkeypatch.setattr(torch_watch, "_norm", fail)
    monkeypatch.setattr(torch_watch, "_first_tensor", fail)
    for _ in train(net, run, 3):
        pass
    assert [step.keys() for step in logged(run)] == [{"loss"}] * 3
    assert sum("out of memory" in record.getMessage() for record in caplog.records) == 2
    assert hooks_of(net) == 0
    assert dict(_global_optimizer_pre_hooks) == global_hooks
    kept = weakref.ref(net)
    del net
    gc.collect()
    assert kept() is None


def test_a_model_that_has_gone_takes_its_hook_along(run: accelmetrics.TrainingRun) -> None:
    """At the next step of any optimizer."""
    before = len(_global_optimizer_pre_hooks)
    net = model(1)
    run.watch(net)
    del net
    gc.collect()
    for _ in train_linear(nn.Linear(2, 1), run):
        pass
    assert len(_global_optimizer_pre_hooks) == before


@pytest.mark.parametrize(
    ("model", "every", "words"),
    [("model", 1, "watch takes a torch.nn.Module"), (nn.Linear(1, 1), 0, "every is 0: it must be a whole number of steps above 0")],
)
def test_what_cannot_be_watched_is_told(model: Any, every: int, words: str, run: accelmetrics.TrainingRun, caplog: Any) -> None:
    """And raises nothing."""
    run.watch(model, every=every)
    assert any(words in record.getMessage() for record in caplog.records)


def test_parameters_without_values_here_are_left_out(run: accelmetrics.TrainingRun, caplog: Any) -> None:
    """A norm of what is spread over ranks would be a collective."""
    net = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1, device="meta")])
    run.watch(net, every=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    net[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    run.step(0)
    run.close()
    assert run.monitor.steps[0].values["watch/weight_norm"] == pytest.approx(norm(net[0].parameters()))
    assert any("norms exclude parameters" in record.getMessage() for record in caplog.records)
