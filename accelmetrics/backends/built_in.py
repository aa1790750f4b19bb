"""The built-in backends: a row each, with what detection needs to know without importing them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from accelmetrics.schemas.identity import DeviceKind


class Registration(NamedTuple):
    """One built-in backend, and how its hardware is recognised without importing it.

    Attributes:
        name: The name users select it by.
        kind: The first word of its devices' keys; None for the host.
        module: The module in this package whose ``backend`` it is.
        pci: PCI ids of its devices, as :func:`~accelmetrics.backends.kit.system.find_hardware` takes them; empty, with ``nodes``, for
            a backend with a detection of its own.
        nodes: Their device nodes, likewise.
        python_module: A Python module of the vendor that is reason enough to open it.
        pass_nodes: How a container is given the device nodes, where ``--device`` does not say it.
        visible: The variable that lists the numbers of the devices a program sees, where it is a plain list.
        imports: What opening and reading it imports besides, as names of modules; with a dot in front they are in this package.
        library: Whether a library of the vendor's may be loaded into this process.
    """

    name: str
    kind: DeviceKind | None
    module: str
    pci: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    python_module: str = ""
    pass_nodes: str = ""
    visible: str = ""
    imports: tuple[str, ...] = ()
    library: bool = False

    @property
    def target(self) -> str:
        """What its entry point names."""
        return f"{__package__}.{self.module}:backend"


# One line per vendor, in the order in which device numbers are given out; third-party backends follow by name, the host comes last.
# Kept here so that naming a built-in backend does not pay for a scan of every installed package; a test holds it equal to the entry points.
_ROWS = (
    Registration("nvidia", "gpu", "nvidia", imports=(".nvidia.gpu",), library=True),
    Registration("amd", "gpu", "amd", imports=(".amd.in_process",), library=True),
    Registration("apple", "gpu", "apple", imports=(".apple.sources",)),
    Registration("tpu", "tpu", "tpu", imports=(".tpu.driver", "grpc", "google.protobuf.message_factory")),
    Registration("neuron", "trn", "neuron", imports=(".neuron.monitor", ".neuron.sysfs")),
    Registration(
        "graphcore", "ipu", "graphcore", ("1d95:*",), ("/dev/ipu*",), "gcipuinfo", "gc-docker, which passes the IPUs in", library=True
    ),
    Registration("rebellions", "npu", "rebellions", ("1eff:*:12",), ("/dev/rbln*",), visible="RBLN_DEVICES"),
    Registration("host", None, "host", imports=(".host.linux",) if sys.platform == "linux" else (".host.portable", "psutil")),
)
BUILT_IN: Mapping[str, Registration] = {row.name: row for row in _ROWS}
