"""NVIDIA GPUs, through NVML (``libnvidia-ml.so.1``), the library behind nvidia-smi.

How it reads: ``pynvml`` (nvidia-ml-py) loads and initialises the library and says once what each device is. A reading
calls the library through ``ctypes`` partials bound once per device, whose answers land in one preallocated buffer that
is decoded at once.

How often: utilisation, memory, temperature, power, clocks and counters at every reading; processes, encoder, decoder and
fan every second; limits, error counters, links and BAR1 every ten seconds; what never changes once. An answer of "not
supported" is remembered until the driver is opened again, every other failure is asked again at the next reading.

Deliberately not done: no call that measures inside the driver (PCIe throughput takes 20 ms a direction), no sleeping
between two GPM samples (they are those of two consecutive readings), no reading of MIG instances.

Which file: ``detection`` and ``machine`` look without the driver; ``library`` and ``enumeration`` open it; ``calls`` lists
what is called; ``fast``, ``paced``, ``gpm``, ``processes``, ``family`` and ``memory`` read; ``device``, ``driver`` and
``reader`` put it together; ``errors`` says what NVML's return codes mean.
"""

from accelmetrics.backends.nvidia.backend import NvidiaBackend

__all__ = ["NvidiaBackend", "backend"]

backend = NvidiaBackend()
