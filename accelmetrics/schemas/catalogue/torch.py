"""PyTorch's allocator, as the watched program itself sees it. Only a monitor in that program gives these."""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric

MEMORY = (
    Metric(
        "torch.{i}.memoryAllocatedBytes",
        "By",
        "gauge",
        "Memory that the program's tensors use on gpu.{i}, as PyTorch's allocator counts it.",
        integer=True,
        conditional=True,
        prometheus='accel_torch_memory_allocated_bytes{gpu="{i}"}',
        otel='accel.torch.memory.allocated{accel.gpu="{i}"}',
    ),
    Metric(
        "torch.{i}.memoryReservedBytes",
        "By",
        "gauge",
        "Memory that PyTorch's allocator holds on gpu.{i}, used by tensors or kept for later ones.",
        integer=True,
        conditional=True,
        prometheus='accel_torch_memory_reserved_bytes{gpu="{i}"}',
        otel='accel.torch.memory.reserved{accel.gpu="{i}"}',
    ),
)

SOURCES = {
    "torch.{i}.memoryAllocatedBytes": "torch.cuda.memory_allocated, of a monitor in the program itself",
    "torch.{i}.memoryReservedBytes": "torch.cuda.memory_reserved, of a monitor in the program itself",
}
