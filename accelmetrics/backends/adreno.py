"""Qualcomm Adreno GPUs, through the files of two kernel drivers: Linux's (msm) and Qualcomm's own (kgsl).

msm counts per process. Only root can read the counters of all processes, and so the GPU's utilisation and memory; other users see their own
processes. msm has one device for display and GPU, named after the display. If it is configured to have two (``separate_gpu_kms``), the use
by processes is not found. kgsl reports the GPU's utilisation, but no processes. Any user may read the clock and the temperature, which is
that of the hottest GPU sensor.

Names are those of the drivers' sources (Linux 6.14, Android's kernels). Never tested on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, OnChip, PolledBackend, Source, clocks, directories

GPU = "/sys/bus/platform/drivers/adreno/*.gpu"
KEYS = DrmKeys({"either": ("gpu",), "busy": ("gpu",)}, (("memory",),), wakes=False)
TEMPERATURE = Field("temp", "max:/sys/class/thermal/thermal_zone[type=gpu*]/temp", "mC")
KGSL = Source(
    "kgsl",
    directories("/sys/class/kgsl/kgsl-3d0", record=OnChip),
    # kgsl's own file `temp` is not read, because its unit differs between releases.
    (Field("gpu", "gpu_busy_percentage", "%"), *clocks("devfreq/"), TEMPERATURE),
    identity={"vendor_index": "@number", "name": "gpu_model", "unified": "@unified"},
)


class Display(OnChip):
    """Directory of the display device, with the GPU's name."""

    def get(self, place: str) -> object:
        """Return the value at a place: text, a number, a reason, or None if there is nothing."""
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
