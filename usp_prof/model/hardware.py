"""Devices: dense peaks by precision, memory and link bandwidth, each with its source.

Peaks are dense: vendors' figures "with sparsity" are twice as high, and no training reaches them. An unknown device is
`None`, never a default, because a guessed peak makes a wrong MFU that looks right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from usp_prof.model.errors import unknown_name


class Precision(StrEnum):
    """Arithmetic of a matrix product."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


_SPELLINGS = {
    "double": Precision.FP64, "float64": Precision.FP64,
    "float": Precision.FP32, "float32": Precision.FP32, "fp32": Precision.FP32,
    "tf32": Precision.TF32, "tensorfloat32": Precision.TF32,
    "half": Precision.FP16, "float16": Precision.FP16, "fp16": Precision.FP16,
    "bfloat16": Precision.BF16, "bf16": Precision.BF16,
}  # fmt: skip
ELEMENT_BYTES = {
    "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "bool": 1, "byte": 1, "unsigned char": 1, "char": 1,
    "signed char": 1, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "tf32": 4,
}  # fmt: skip
"""Bytes per element, by PyTorch's names without `c10::`, in lower case."""


def precision(dtype: str) -> Precision | None:
    """Return the precision for PyTorch's name (`c10::BFloat16`, `Float`, `float8_e4m3fn`, ...)."""
    word = _word(dtype)
    return Precision.FP8 if word.startswith("float8") or word == "fp8" else _SPELLINGS.get(word)


def element_bytes(dtype: str) -> int:
    """Return the bytes per element; 0 for unknown types."""
    word = _word(dtype)
    return 1 if word.startswith("float8") else ELEMENT_BYTES.get(word, 0)


def _word(dtype: str) -> str:
    return dtype.lower().rpartition("::")[2].removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are per second, 0 without a source; links count one direction."""

    name: str
    pattern: str
    """Pattern for the driver's name of the device, in lower case."""
    peaks: dict[Precision, float]
    """Dense FLOPs per second, for each precision with a source."""
    memory_rate: float
    memory_bytes: float
    link: str
    link_rate: float
    source: str
    note: str = ""

    def peak(self, kind: Precision) -> float:
        """Return the dense peak of a precision in FLOPs per second; 0 without a source."""
        return self.peaks.get(kind, 0.0)


_T, _G = 1e12, 1e9
_ML = "stas00/ml-engineering, accelerator and network tables (744d01e)"
_TITAN = "pytorch/torchtitan, tools/utils.py"
_HALF = "half of the figure with sparsity"
_GA102, _ADA = "NVIDIA GA102 whitepaper", "NVIDIA Ada whitepaper"
_NEURON = "AWS Neuron documentation, {} architecture"


def _device(
    name: str, pattern: str, *, memory: tuple[float, float], link: tuple[str, float], source: str, note: str = "",
    **peaks: float,
) -> Device:  # fmt: skip
    """Build a device from figures in the units of data sheets."""
    memory_rate, memory_size = memory
    link_name, link_rate = link
    return Device(
        name,
        pattern,
        peaks={Precision(kind): rate * _T for kind, rate in peaks.items()},
        memory_rate=memory_rate * _T,
        memory_bytes=memory_size * _G,
        link=link_name,
        link_rate=link_rate * _G,
        source=source,
        note=note,
    )


# The first matching pattern counts, so special models come before plain ones.
# Peaks in TFLOP/s (missing without a source), memory in TB/s and GB, the link in GB/s per direction.
DEVICES: tuple[Device, ...] = (
    _device("V100 SXM2 16GB", r"v100-sxm[23]-16gb",
            fp32=15.7, fp16=125, memory=(0.9, 16), link=("NVLink2", 150), source="NVIDIA V100 datasheet"),
    _device("V100 PCIe 16GB", r"v100-pcie-16gb",
            fp32=14.0, fp16=112, memory=(0.9, 16), link=("PCIe3", 16), source="NVIDIA V100 datasheet"),
    _device("V100 SXM2", r"v100-sxm[23]|^v100$",
            fp32=15.7, fp16=125, memory=(0.9, 32), link=("NVLink2", 150), source="NVIDIA V100 datasheet"),
    _device("V100 PCIe", r"v100-pcie|v100 pcie",
            fp32=14.0, fp16=112, memory=(0.9, 32), link=("PCIe3", 16), source="NVIDIA V100 datasheet"),
    _device("A100 PCIe 80GB", r"a100 80gb pcie|a100-pcie-80gb",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(1.94, 80), link=("PCIe4", 31), source=_ML),
    _device("A100 PCIe 40GB", r"a100-pcie-40gb",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(1.555, 40), link=("PCIe4", 31),
            source="NVIDIA A100 datasheet"),
    _device("A100 SXM 40GB", r"a100-sxm4-40gb|a100-pg509|^a100[ _-]40gb$",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(1.555, 40), link=("NVLink3", 300),
            source="NVIDIA A100 datasheet"),
    _device("A100 SXM 80GB", r"a100-sxm|^a100([ _-]80gb)?$",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(2.0, 80), link=("NVLink3", 300), source=_ML),
    _device("A800 PCIe 80GB", r"a800 80gb pcie|a800-pcie",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(1.94, 80), link=("PCIe4", 31),
            source="NVIDIA A800 datasheet"),
    _device("A800 SXM 80GB", r"a800",
            fp32=19.5, tf32=156, fp16=312, bf16=312, memory=(2.0, 80), link=("NVLink3", 200),
            source="NVIDIA A800 datasheet"),
    _device("A30", r"\ba30\b",
            fp32=10.3, tf32=82, fp16=165, bf16=165, memory=(0.933, 24), link=("PCIe4", 31),
            source="NVIDIA A30 datasheet"),
    _device("A40", r"\ba40\b",
            fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7, memory=(0.696, 48), link=("PCIe4", 31),
            source="NVIDIA A40 datasheet"),
    _device("A10", r"\ba10\b",
            fp32=31.2, tf32=62.5, fp16=125, bf16=125, memory=(0.6, 24), link=("PCIe4", 31),
            source="NVIDIA A10 datasheet"),
    _device("T4", r"\bt4\b",
            fp32=8.1, fp16=65, memory=(0.3, 16), link=("PCIe3", 16), source="NVIDIA T4 datasheet"),
    _device("H100 NVL", r"h100 nvl",
            fp32=60, tf32=417.5, fp16=835, bf16=835, fp8=1670.5, memory=(3.9, 94), link=("PCIe5", 63),
            source=f"{_TITAN}; H100 datasheet, {_HALF}"),
    _device("H100 PCIe", r"h100 pcie",
            fp32=51.2, tf32=378, fp16=756, bf16=756, fp8=1513, memory=(2.0, 80), link=("PCIe5", 63), source=_ML),
    _device("GH200 144GB", r"gh200 1[0-9]{2}g",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(4.8, 141), link=("NVLink4", 450), source=_ML),
    _device("GH200 96GB", r"gh200",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(4.0, 96), link=("NVLink4", 450), source=_ML),
    _device("H100 96GB HBM2e", r"h100[ _]96gb",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(2.4, 96), link=("NVLink4", 450),
            source=f"{_TITAN}; its benchmarks of December 2024 (memory, 500 W)"),
    _device("H100 SXM", r"h100",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(3.35, 80), link=("NVLink4", 450),
            source=_ML, note="the driver calls SXM boards 'H100 80GB HBM3'"),
    _device("H800 PCIe", r"h800 pcie",
            fp32=51, tf32=378, fp16=756, bf16=756, fp8=1513, memory=(2.0, 80), link=("PCIe5", 63),
            source=f"NVIDIA H800 datasheet, {_HALF}"),
    _device("H800 SXM", r"h800",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(3.35, 80), link=("NVLink4", 200),
            source="DeepSeek-V3 report (links halved)"),
    _device("H200 SXM", r"h200",
            fp32=67, tf32=494.7, fp16=989, bf16=989, fp8=1979, memory=(4.8, 141), link=("NVLink4", 450), source=_ML),
    _device("H20 141GB", r"h20-3e",
            fp32=44, tf32=74, fp16=148, bf16=148, fp8=296, memory=(4.8, 141), link=("NVLink4", 450),
            source=f"{_TITAN}; NVIDIA H20 datasheet"),
    _device("H20", r"h20(?![0-9])",
            fp32=44, tf32=74, fp16=148, bf16=148, fp8=296, memory=(4.0, 96), link=("NVLink4", 450),
            source=f"{_TITAN}; NVIDIA H20 datasheet"),
    _device("GB300", r"gb300",
            fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, fp4=15000, memory=(8.0, 288), link=("NVLink5", 900),
            source=_ML),
    _device("GB200", r"gb200",
            fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, fp4=10000, memory=(8.0, 186), link=("NVLink5", 900),
            source=_ML, note="NVIDIA's own MFU tables imply 2450 and 4900"),
    _device("B300 SXM", r"b300",
            fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=13500, memory=(8.0, 288), link=("NVLink5", 900),
            source=_ML),
    _device("B200 SXM", r"b200",
            fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=9000, memory=(8.0, 180), link=("NVLink5", 900),
            source=_ML),
    _device("L40S", r"l40s",
            fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733, memory=(0.86, 48), link=("PCIe4", 31), source=_ML),
    _device("L40", r"\bl40\b",
            fp32=90.5, tf32=90.5, fp16=181, bf16=181, fp8=362, memory=(0.864, 48), link=("PCIe4", 31),
            source="NVIDIA L40 datasheet"),
    _device("L20", r"\bl20\b",
            fp32=59.8, tf32=59.8, fp16=119.5, bf16=119.5, fp8=239, memory=(0.864, 48), link=("PCIe4", 31),
            source="NVIDIA L20 datasheet"),
    _device("L4", r"\bl4\b",
            fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242, memory=(0.3, 24), link=("PCIe4", 31),
            source=f"NVIDIA L4 datasheet, {_HALF}"),
    _device("RTX A6000", r"rtx a6000",
            fp32=38.7, tf32=77.4, fp16=154.85, bf16=154.85, memory=(0.768, 48), link=("PCIe4", 31),
            source=f"{_TITAN}; {_GA102}"),
    _device("RTX 6000 Ada", r"rtx 6000 ada",
            fp32=91.1, tf32=182.1, fp16=364.2, bf16=364.2, fp8=728.5, memory=(0.96, 48), link=("PCIe4", 31),
            source=f"{_ADA}, {_HALF}"),
    _device("RTX 3090", r"rtx 3090(?! ti)",
            fp32=35.6, tf32=35.6, fp16=71, bf16=71, memory=(0.936, 24), link=("PCIe4", 31),
            source=f"{_GA102}, single-precision sums"),
    _device("RTX 4090", r"rtx 4090(?! (d|laptop))",
            fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, memory=(1.008, 24), link=("PCIe4", 31),
            source=f"{_ADA}, single-precision sums"),
    _device("RTX 5090", r"rtx 5090(?! (d|laptop))",
            fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, memory=(1.792, 32), link=("PCIe5", 63),
            source="NVIDIA RTX Blackwell whitepaper, single-precision sums"),
    _device("MI100", r"mi100",
            fp32=46.1, fp16=184.6, bf16=92.3, memory=(1.23, 32), link=("xGMI", 138), source="AMD MI100 datasheet"),
    _device("MI210", r"mi210",
            fp32=45.3, fp16=181, bf16=181, memory=(1.6, 64), link=("xGMI", 150), source="AMD MI210 datasheet"),
    _device("MI250X (one die)", r"mi250x",
            fp32=47.9, fp16=191.5, bf16=191.5, memory=(1.64, 64), link=("xGMI", 350),
            source=_TITAN, note="each of the two dies is a device of its own"),
    _device("MI250 (one die)", r"mi250",
            fp32=45.3, fp16=181, bf16=181, memory=(1.64, 64), link=("xGMI", 350),
            source="AMD MI250 datasheet, halved", note="each of the two dies is a device of its own"),
    _device("MI300A", r"mi300a",
            fp32=122.6, tf32=490.3, fp16=980.6, bf16=980.6, fp8=1961.2, memory=(5.3, 128), link=("xGMI", 384),
            source="AMD MI300A datasheet"),
    _device("MI300X", r"mi300x",
            fp32=163.4, tf32=653.7, fp16=1300, bf16=1300, fp8=2610, memory=(5.3, 192), link=("xGMI", 448),
            source=_ML),
    _device("MI325X", r"mi325x",
            fp32=163.4, tf32=653.7, fp16=1300, bf16=1300, fp8=2610, memory=(6.0, 256), link=("xGMI", 448),
            source=_ML),
    _device("MI350X", r"mi350x",
            fp32=144.2, fp16=2300, bf16=2300, fp8=4600, fp4=9200, memory=(8.0, 288), link=("xGMI", 535.5),
            source="AMD MI350X datasheet"),
    _device("MI355X", r"mi355x",
            fp32=157.3, fp16=2500, bf16=2500, fp8=5000, fp4=10000, memory=(8.0, 288), link=("xGMI", 535.5), source=_ML),
    _device("Gaudi2", r"gaudi ?2|hl-225",
            bf16=432, fp8=865, memory=(2.46, 96), link=("Ethernet", 300), source=_ML),
    _device("Gaudi3", r"gaudi ?3|hl-325",
            fp16=459, bf16=1677, fp8=1677, memory=(3.7, 128), link=("Ethernet", 600), source=_ML),
    _device("Trainium3", r"trainium3|trn3",
            fp32=183, tf32=671, fp16=671, bf16=671, fp8=2517, memory=(4.9, 144), link=("NeuronLink4", 1280),
            source=_NEURON.format("Trainium3")),
    _device("Trainium2", r"trainium2|trn2",
            fp32=181, tf32=667, fp16=667, bf16=667, fp8=1299, memory=(2.9, 96), link=("NeuronLink3", 640),
            source=_ML),
    _device("Trainium", r"trainium|trn1",
            fp32=47.5, tf32=190, fp16=190, bf16=190, fp8=190, memory=(0.82, 32), link=("NeuronLink2", 0),
            source=_NEURON.format("Trainium")),
    _device("TPU v4", r"tpu v4",
            bf16=275, memory=(1.2, 32), link=("ICI", 0), source=_ML),
    _device("TPU v5e", r"tpu v5 ?(e|lite)",
            bf16=197, memory=(0.82, 16), link=("ICI", 0), source=_ML),
    _device("TPU v5p", r"tpu v5p?",
            bf16=459, memory=(2.76, 95), link=("ICI", 0), source=_ML),
    _device("TPU v6e", r"tpu v6",
            fp16=918, bf16=918, fp8=918, memory=(1.64, 32), link=("ICI", 0), source=_ML),
    _device("TPU v7x", r"tpu ?v?7x?",
            fp16=2307, bf16=2307, fp8=4614, memory=(7.37, 192), link=("ICI", 600), source=_ML),
)  # fmt: skip


_PART_OF_A_DEVICE = re.compile(r"\bmig\b")
_NAMED_MEMORY = re.compile(r"(?<!\d)(\d+) ?gb\b")


def find(name: str) -> Device | None:
    """Return the device with this driver name, or `None` if unknown.

    Parts of a device ("NVIDIA A100-SXM4-80GB MIG 3g.40gb") and boards with less memory than in the table ("NVIDIA
    A100-SXM-64GB") are unknown, because their peaks differ.
    """
    lowered = name.lower()
    exact = next((device for device in DEVICES if device.name.lower() == lowered), None)
    if exact is not None or _PART_OF_A_DEVICE.search(lowered):
        return exact
    device = next((device for device in DEVICES if re.search(device.pattern, lowered)), None)
    memory_in_name = _NAMED_MEMORY.search(lowered)
    has_less = (
        device is not None and memory_in_name is not None and float(memory_in_name[1]) * _G < 0.95 * device.memory_bytes
    )
    return None if has_less else device


def device_by_name(name: str) -> Device:
    """Return the device with this name, or raise an error with similar names."""
    device = find(name)
    if device is None:
        names = [known_device.name for known_device in DEVICES]
        raise unknown_name("device", name, names, list_command="usp-prof plan --devices-known")
    return device


def check_device(name: str) -> str:
    """Return the name that a user gave to a device, after checking it; empty if none was given."""
    if name:
        device_by_name(name)
    return name
