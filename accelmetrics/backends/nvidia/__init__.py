"""NVIDIA GPUs, through NVML (``libnvidia-ml.so.1``), the library behind nvidia-smi.

How it reads: ``pynvml`` (nvidia-ml-py) loads and initialises the library and says once what each device is. A reading
calls the library through ``ctypes`` partials bound once per device, whose answers land in one preallocated buffer that
is decoded at once.

How often: utilisation, memory, temperature, power, clocks and counters at every reading; processes, encoder, decoder and
fan every second; limits, error counters, links, fabric and BAR1 every ten seconds; what never changes once. An answer of "not
supported" is remembered until the driver is opened again, every other failure is asked again at the next reading.

What can hang costs one device: opening the driver asks only what devices are listed by, on a thread that is replaced when a call
does not return; everything else about a device is asked at its own first reading.

MIG: each instance is a device of its own below its GPU, with what an instance has (memory, processes, GPM shares). What the
board has stays with the GPU. Instances that turn up while the driver is open are listed within ten seconds; one that is
destroyed is lost and keeps its place.

Deliberately not done: no call that measures inside the driver (PCIe throughput takes 20 ms a direction), no sleeping
between two GPM samples (they are those of two consecutive readings), no question about the fabric on drivers that it crashes.

Which file: ``detection`` and ``machine`` look without the driver; ``library``, ``opening`` and ``enumeration`` open it;
``places``, ``mig``, ``instance`` and ``roster`` know who is listed; ``calls`` lists what is called; ``fast``, ``paced``,
``gpm``, ``links``, ``fabric``, ``xid``, ``processes`` and ``memory`` read; ``device``, ``view``, ``driver`` and ``reader``
put it together; ``errors`` says what NVML's return codes mean.
"""

from accelmetrics.backends.nvidia.backend import NvidiaBackend

__all__ = ["NvidiaBackend", "backend"]

backend = NvidiaBackend()
