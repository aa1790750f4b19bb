"""One sentence for each Prometheus metric that several rows of the catalogue share.

A metric has one help text, whichever of its series are there: what tells the series apart is in their labels.
"""

from collections.abc import Mapping

SHARED: Mapping[str, str] = {
    "accel_utilization_ratio": "Share of the time during which the engine was busy.",
    "accel_memory_bandwidth_ratio": "Share of the time during which the memory was read or written.",
    "accel_memory_used_bytes": "Memory of the device that is allocated.",
    "accel_memory_total_bytes": "Memory that the device has for programs.",
    "accel_temperature_celsius": "Temperature at the sensor.",
    "accel_temperature_limit_celsius": "Temperature of the core at which the device slows itself down or shuts down.",
    "accel_clock_hertz": "Clock of the domain.",
    "accel_clock_max_hertz": "Highest clock that the domain can run at.",
    "accel_throttle_active": "1 while the clocks are held down for the reason, else 0.",
    "accel_ecc_errors_total": "Memory errors since the driver was loaded (volatile) or over the life of the device (aggregate).",
    "accel_remapped_rows_total": "Memory rows that were replaced by spare ones after errors of the severity.",
    "accel_pcie_bytes_total": "Bytes moved over PCIe since the driver was loaded.",
    "accel_pcie_bytes_per_second": "Bytes per second moved over PCIe.",
    "accel_link_bytes_total": "Bytes moved over all links of the type to other devices since the driver was loaded.",
    "accel_link_bytes_per_second": "Bytes per second moved over all links of the type to other devices.",
    "accel_link_errors_total": "Errors on all links of the type to other devices.",
    "accel_link_port_bytes_total": "Bytes moved over the one link since the driver was loaded.",
    "accel_pipe_active_ratio": "Share of the time during which the pipe was active.",
    "accel_operation_latency_seconds": "How long the operation takes, as the TPU runtime sums it up.",
    "accel_network_round_trip_seconds": "Shortest round trip over TCP between slices, as the TPU runtime sums it up.",
    "accel_network_delivery_bytes_per_second": "Rate at which TCP delivers between slices, as the TPU runtime sums it up.",
    "accel_program_execution_seconds": "How long executing a compiled program on a core takes, as the TPU runtime sums it up.",
    "accel_neuroncore_memory_used_bytes": "Device memory that programs use on the core for the category.",
    "accel_neuron_host_memory_used_bytes": "Host memory that programs with NeuronCores use for the category.",
    "accel_neuron_ecc_errors_total": "Errors of the Neuron device's memories, by severity.",
    "accel_neuron_recent_executions": "Executions with this outcome in the tool's last period.",
    "accel_neuron_recent_errors": "Errors of this kind in the tool's last period.",
    "accel_neuron_latency_seconds": "How long an execution took in the tool's last period.",
    "accel_host_disks_bytes_total": "Bytes read from or written to all disks since the first reading.",
    "accel_host_disk_bytes_total": "Bytes read from or written to the disk since the first reading.",
    "accel_host_network_bytes_total": "Bytes moved over all interfaces but loopback since the first reading.",
    "accel_soc_cpu_ratio": "Share of the cores' capacity that was used: the time they were active, weighted by their clock.",
    "accel_soc_cpu_clock_hertz": "Clock of the cores of the cluster, averaged over them.",
}
"""By name. A test holds it to the catalogue: each shared metric has its sentence, and no other."""
