"""Qualcomm Adreno GPUs, through the files of the kernel: with the driver of Linux (msm), and with Qualcomm's own (kgsl).

msm counts by program what programs use: root alone sees all of them, and so the use of the GPU and its memory; others see their own
processes. It shows one device for display and GPU, that of the display; where it was told to make two (``separate_gpu_kms``), what
programs use of the GPU is not found. kgsl tells the GPU's use and no programs; its ``temp``, whose unit differs by release, is not read.
Clock and temperature (the hottest of the GPU's sensors) any user may read.

Names are those of the drivers' sources (Linux 6.14, Android's kernels). Never yet read on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, PolledBackend, Source, directories
from accelmetrics.backends.kit.sysfs import OnChip, clocks

GPU = "/sys/bus/platform/drivers/adreno/*.gpu"
KEYS = DrmKeys({"either": ("gpu",), "busy": ("gpu",)}, (("memory",),), wakes=False)
TEMPERATURE = Field("temp", "max:/sys/class/thermal/thermal_zone[type=gpu*]/temp", "mC")
KGSL = Source(
    "kgsl",
    directories("/sys/class/kgsl/kgsl-3d0", record=OnChip),
    (Field("gpu", "gpu_busy_percentage", "%"), *clocks("devfreq/"), TEMPERATURE),
    identity={"vendor_index": "@number", "name": "gpu_model", "unified": "@unified"},
)


class Display(OnChip):
    """The display's directory, with the GPU's name."""

    def get(self, place: str) -> object:
        """Return what stands at a place: text, a number, a reason, or None where there is nothing."""
        return str(super().get(f"{GPU}/of_node/compatible") or "").partition("\0")[0] if place == "@compatible" else super().get(place)


backend = PolledBackend(
    "adreno",
    kind="gpu",
    source="sysfs",
    connect=directories("/sys/class/drm/card*", drivers=("msm_dpu", "msm_mdp", "msm-mdss"), clients=KEYS, record=Display),
    fields=(
        Field("gpu", "@clients.busy", "%"),
        *clocks(f"{GPU}/devfreq/*/"),
        TEMPERATURE,
        Field("memoryAllocatedBytes", "@clients.memory", "B"),
    ),
    identity={"vendor_index": "@number", "name": "@compatible", "unified": "@unified"},
    also=(KGSL,),
    processes={"gpu": "fdinfo drm-engine-gpu", "memoryAllocatedBytes": "fdinfo drm-resident-memory or drm-total-memory"},
    advice="load the kernel driver: sudo modprobe msm",
)
