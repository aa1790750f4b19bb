"""Stand-ins for AWS Neuron: the tool ``neuron-monitor``, what it reports, and the driver's sysfs tree."""

from tests.simulators.neuron.reports import chip_errors, hardware, report, runtime
from tests.simulators.neuron.tool import NeuronMonitorStandIn
from tests.simulators.neuron.tree import SysfsTree

__all__ = ["NeuronMonitorStandIn", "SysfsTree", "chip_errors", "hardware", "report", "runtime"]
