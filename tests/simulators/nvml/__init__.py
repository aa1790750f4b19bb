"""A stand-in for NVIDIA's `libnvidia-ml.so.1`: simulated GPUs whose values and faults a test sets while programs run.

with NvmlSimulator(gpus=8, profile="h100") as simulator:
    simulator.load()                                    # pynvml in this process now sees eight H100s
    simulator.gpu[3].set(power_mw=431_000, temperature=Ret.NO_PERMISSION)
    simulator.rule("nvmlDeviceGetUtilizationRates", gpu=2, hang=True)
    simulator.lose(5)
    simulator.partition(6, ["3g.40gb", "1g.10gb"])      # MIG devices
    simulator.xid(7, 79)
    subprocess.run(["nvitop", "-1"], env=os.environ | simulator.environment())
    simulator.calls()[("nvmlDeviceGetPowerUsage", 3)]
"""

from ._build import SimulatorUnavailable, build, compiler
from ._mig import Instance
from ._names import ALL_LINKS, NOT_AVAILABLE, Crash, Location, Ret, Threshold, ValueType
from ._profiles import BLACKWELL, PRODUCTS, Ramp
from ._simulator import Gpu, LogEntry, NvmlSimulator, Process, attached

__all__ = [
    "ALL_LINKS",
    "BLACKWELL",
    "NOT_AVAILABLE",
    "PRODUCTS",
    "Crash",
    "Gpu",
    "Instance",
    "Location",
    "LogEntry",
    "NvmlSimulator",
    "Process",
    "Ramp",
    "Ret",
    "SimulatorUnavailable",
    "Threshold",
    "ValueType",
    "attached",
    "build",
    "compiler",
]
