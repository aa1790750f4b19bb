"""The driver's sysfs tree, the device node and the PCI bus, below a root of the test's."""

from pathlib import Path

DEVICE_MEMORY = (
    "collectives",
    "constants",
    "dma_rings",
    "driver_memory",
    "model_code",
    "model_shared_scratchpad",
    "runtime_memory",
    "tensors",
)
HOST_MEMORY = ("application_memory", "constants", "dma_buffers", "dma_rings", "driver_memory", "tensors")


class SysfsTree:
    """Nothing at first; every file that is made holds a number of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.neuron = root / "sys/devices/virtual/neuron_device"

    def write(self, path: str, text: object) -> Path:
        """One file below the driver's directory."""
        file = self.neuron / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "utf-8")
        return file

    def add_chip(self, chip: int, cores: int = 2) -> None:
        """A chip with its cores."""
        base = f"neuron{chip}"
        self.write(f"{base}/core_count", cores)
        self.write(f"{base}/reset", "")
        self.write(f"{base}/info/serial_number", f"0x{0xABC0 + chip:x}")
        self.write(f"{base}/info/architecture/device_name", "Trainium1")
        for place, name in enumerate(("mem_ecc_uncorrected", "sram_ecc_uncorrected", "mem_ecc_repairable_uncorrected")):
            self.write(f"{base}/stats/hardware/{name}", 100 * chip + place)
        self._counter(f"{base}/stats/memory_usage/host_mem", 10_000 * (chip + 1))
        for place, name in enumerate(HOST_MEMORY):
            self._counter(f"{base}/stats/memory_usage/host_mem/{name}", 1000 * (chip + 1) + place)
        for core in range(cores):
            self._add_core(f"{base}/neuron_core{core}", chip * cores + core)

    def _add_core(self, base: str, number: int) -> None:
        self.write(f"{base}/info/architecture/arch_type", "NCv2")
        self._counter(f"{base}/stats/memory_usage/device_mem", 500_000 * (number + 1))
        for place, name in enumerate(DEVICE_MEMORY):
            self._counter(f"{base}/stats/memory_usage/device_mem/{name}", 5000 * (number + 1) + place)
        self._counter(f"{base}/stats/other_info/nc_time_in_use", 0)
        self._counter(f"{base}/stats/other_info/flop_count", 0)

    def _counter(self, path: str, total: int) -> None:
        self.write(f"{path}/total", total)
        self.write(f"{path}/present", 7)

    def count(self, chip: int, core: int, *, microseconds: int, flops: int) -> None:
        """Set the counters of time and operations."""
        base = f"neuron{chip}/neuron_core{core}/stats/other_info"
        self.write(f"{base}/nc_time_in_use/total", microseconds)
        self.write(f"{base}/flop_count/total", flops)

    def power(self, chip: int, *percent: float, status: str = "POWER_STATUS_VALID") -> None:
        """The chip's power in the last minute: least, greatest, mean."""
        numbers = ",".join(f"{share:.2f}" for share in percent or (0, 0, 0))
        self.write(f"neuron{chip}/stats/power/utilization", f"{status},1795962825,{numbers}")

    def add_node(self, chip: int = 0) -> None:
        """The device node of a chip."""
        node = self._root / f"dev/neuron{chip}"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()

    def add_pci(self, address: str, device: str, kind: str = "0x088000", vendor: str = "0x1d0f") -> None:
        """Something on the PCI bus."""
        base = self._root / "sys/bus/pci/devices" / address
        base.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            (base / name).write_text(f"{text}\n", "utf-8")
