"""Table of the built-in backends, with the facts by which their hardware is detected without importing them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from accelmetrics.schemas.identity import DeviceKind


class Registration(NamedTuple):
    """A built-in backend and the facts by which its hardware is recognised.

    Attributes:
        name: Name by which users select it.
        kind: First word of its devices' keys; None for the host.
        maker: Company that makes the devices, as the company writes its name.
        pci: PCI ids of the devices, in the form of :func:`~accelmetrics.backends.kit.system.find_hardware`. ``pci``, ``nodes`` and
            ``drivers`` are all empty for a backend with its own detection.
        nodes: Device nodes of the devices, in the form of the same function.
        python_module: Python module of the vendor. If it can be imported, the backend is worth opening.
        pass_nodes: How to pass the device nodes into a container, if ``--device`` is not enough.
        visible: Variable with the numbers of the visible devices, if its value is a plain list.
        imports: Further modules that opening and reading import. A leading dot means this package.
        library: Whether a library of the vendor may be loaded into this process.
        drivers: Kernel drivers of the devices, each after their class or bus, in the form of
            :func:`~accelmetrics.backends.kit.system.find_driven`.
        found_here: Whether the backend finds processes in ``/proc``, so that their ids are valid in the ``/proc`` that we read.
        held: Device nodes that a program keeps open, if they differ from ``nodes``; ``*`` matches a number or a range.
    """

    name: str
    kind: DeviceKind | None
    maker: str
    pci: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    python_module: str = ""
    pass_nodes: str = ""
    visible: str = ""
    imports: tuple[str, ...] = ()
    library: bool = False
    held: str = ""
    drivers: tuple[str, ...] = ()
    found_here: bool = False

    @property
    def target(self) -> str:
        """Value of its entry point: the module of this name in this package."""
        return f"{__package__}.{self.name}:backend"


CUDA = "CUDA_VISIBLE_DEVICES"
"""Visible-devices variable of NVIDIA's runtime, which some other vendors read too."""

# Device numbers are assigned in the order of these rows. Third-party backends follow by name, the host comes last.
# The table repeats the entry points, so that looking up a built-in backend needs no scan of all installed packages. A test
# compares the two.
_ROWS = (
    Registration("nvidia", "gpu", "NVIDIA", imports=(".nvidia.gpu",), library=True),
    Registration("amd", "gpu", "AMD", imports=(".amd.in_process",), library=True),
    # Drivers alone, no PCI ids: Intel also makes processors. A large server has hundreds of Intel functions on its PCI
    # bus, and the class of each is one more file to read.
    Registration("intel", "gpu", "Intel", drivers=("drm/i915", "drm/xe"), found_here=True),
    Registration("apple", "gpu", "Apple", imports=(".apple.sources",)),
    Registration("tpu", "tpu", "Google", imports=(".tpu.driver", "grpc", "google.protobuf.message_factory")),
    Registration("neuron", "trn", "AWS", imports=(".neuron.monitor", ".neuron.sysfs")),
    # The Python module is enough: IPU-Machines are connected by network and show neither PCI devices nor nodes.
    Registration(
        "graphcore", "ipu", "Graphcore", ("1d95:*",), ("/dev/ipu*",), "gcipuinfo", "gc-docker, which passes the IPUs in", library=True
    ),
    # ":12" (accelerator) and ":03" (display) limit an id to a PCI class. Several vendors make NICs, SSDs or bridges under the
    # same vendor id.
    Registration("rebellions", "npu", "Rebellions", ("1eff:*:12",), ("/dev/rbln*",)),
    Registration("tenstorrent", "npu", "Tenstorrent", ("1e52:*",), ("/dev/tenstorrent/*",)),
    Registration(
        "furiosa",
        "npu",
        "FuriosaAI",
        # Without 1ed2:0000: Warboy, the older chip, has other files.
        ("1ed2:0001", "1ed2:0002", "1ed2:2222"),
        ("/dev/rngd/npu*mgmt",),
        held="/dev/rngd/npu*pe*",
    ),
    Registration("intel_npu", "npu", "Intel", drivers=("accel/intel_vpu",)),
    Registration("iluvatar", "gpu", "Iluvatar", ("1e3e:*:03", "1e3e:*:12"), ("/dev/iluvatar*",), visible=CUDA, library=True),
    # T-Head's vendor id is Alibaba's, which NICs and bridges have too: one device id, and two classes.
    Registration("thead", "gpu", "T-Head", ("1ded:6001", "1ded:*:12", "1ded:*:03"), ("/dev/alixpu_ppu*",), visible=CUDA, library=True),
    Registration("enflame", "npu", "Enflame", ("1e36:*:12",), ("/dev/gcu*",), visible="TOPS_VISIBLE_DEVICES", library=True),
    # 9999 is a weak vendor id, so a class is required too.
    Registration("metax", "gpu", "MetaX", ("9999:*:03", "9999:*:12"), ("/dev/mxcd",), library=True),
    Registration("moorethreads", "gpu", "Moore Threads", ("1ed5:*:03", "1ed5:*:12"), ("/dev/mtgpu.*",), visible="MUSA_VISIBLE_DEVICES"),
    Registration("gaudi", "hpu", "Habana", ("1da3:*:12",), drivers=("accel/habanalabs", "habanalabs/habanalabs"), held="/dev/accel/accel*"),
    Registration(
        "cambricon",
        "npu",
        "Cambricon",
        ("cabc:*:12", "cabc:0270", "cabc:0370"),
        ("/dev/cambricon_dev*",),
        visible="MLU_VISIBLE_DEVICES",
        library=True,
    ),
    # CPU bridges have Hygon's vendor id too, so the class decides.
    Registration("hygon", "gpu", "Hygon", ("1d94:*:03", "1d94:*:0b40", "1d94:*:12"), imports=(".amd.in_process",), found_here=True),
    Registration(
        "qualcomm",
        "npu",
        "Qualcomm",
        # By device: cards report class ff00 or 12.
        ("17cb:a080", "17cb:a100", "17cb:a110"),
        drivers=("accel/qaic",),
        visible="QAIC_VISIBLE_DEVICES",
        held="/dev/accel/accel*",
    ),
    Registration("deepx", "npu", "DEEPX", ("1ff4:*:12", "1ff4:0100"), ("/dev/dxrt*",)),
    Registration("vastai", "npu", "Vastai", ("1ec6:*:03", "1ec6:*:12"), ("/dev/kchar:*",), visible="VASTAI_VISIBLE_DEVICES"),
    # Biren's devices are not in the database of PCI ids.
    Registration("biren", "gpu", "Biren", nodes=("/dev/biren/card_*",), visible="SUPA_VISIBLE_DEVICES"),
    Registration(
        "jetson",
        "gpu",
        "NVIDIA",
        # Thor is recognised by the clock domain of its GPU, all other modules by the driver.
        nodes=("/sys/class/devfreq/gpu-gpc-0",),
        drivers=("devfreq/gk20a",),
        imports=(".nvidia.gpu",),
        library=True,
    ),
    Registration(
        "ascend",
        "npu",
        "Huawei",
        # Huawei's NICs and SSDs have the same vendor id.
        ("19e5:*:12",),
        ("/dev/davinci*",),
        pass_nodes="the Ascend container runtime, or with the devices /dev/davinci0, davinci_manager, devmm_svm and hisi_hdc",
        library=True,
    ),
    # By device, not by class: cards report class 07 or 12, and 1d22:1380 is a storage device.
    Registration("kunlunxin", "npu", "Kunlunxin", ("1d22:3684", "1d22:3685", "1d22:3688", "2057:3686"), ("/dev/xpu*",)),
    Registration("v3d", "gpu", "Broadcom", drivers=("drm/v3d",), held="/dev/dri/renderD*", found_here=True),
    Registration("mali", "gpu", "Arm", drivers=("drm/panfrost", "drm/panthor"), held="/dev/dri/renderD*", found_here=True),
    Registration(
        "adreno", "gpu", "Qualcomm", nodes=("/dev/kgsl-3d0",), drivers=("platform/adreno",), held="/dev/dri/renderD*", found_here=True
    ),
    Registration("rockchip", "npu", "Rockchip", drivers=("devfreq/RKNPU",)),
    Registration("xdna", "npu", "AMD", ("1022:1502", "1022:17f0"), drivers=("accel/amdxdna",), held="/dev/accel/accel*", found_here=True),
    Registration("sophgo", "npu", "Sophgo", ("1e30:1682", "1e30:1684", "1f1c:1686"), ("/dev/bm-sophon*",)),
    Registration("host", None, "", imports=(".host.drivers",) if sys.platform == "linux" else (".host.drivers", "psutil")),
)
BUILT_IN: Mapping[str, Registration] = {row.name: row for row in _ROWS}
