"""Hardware: dense peaks of devices by precision, memory and link bandwidth, each with where it was read.

Peaks are dense: vendors' figures "with sparsity" are twice these and no training reaches them. An unknown device is
`None` and never a default, since a guessed peak makes a wrong MFU that looks right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """What arithmetic a matrix product runs in."""

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
"""Bytes of one element, by PyTorch's spellings without their `c10::`, in lower case."""


def precision(dtype: str) -> Precision | None:
    """Give the precision that PyTorch calls by this name (`c10::BFloat16`, `Float`, `float8_e4m3fn`, ...)."""
    word = _word(dtype)
    return Precision.FP8 if word.startswith("float8") or word == "fp8" else _SPELLINGS.get(word)


def element_bytes(dtype: str) -> int:
    """Give the bytes of one element; 0 when the type is not known."""
    word = _word(dtype)
    return 1 if word.startswith("float8") else ELEMENT_BYTES.get(word, 0)


def _word(dtype: str) -> str:
    return dtype.lower().rpartition("::")[2].removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are per second, 0 where no source gives one; links count one direction."""

    name: str
    pattern: str
    fp16: float
    bf16: float
    fp8: float
    memory_rate: float
    memory_bytes: float
    link: str
    link_rate: float
    source: str
    fp32: float = 0.0
    tf32: float = 0.0
    note: str = ""
    fp4: float = 0.0

    def peak(self, kind: Precision) -> float:
        """Give the dense peak of a precision in FLOP per second; 0 when no source gives one."""
        rates = {
            Precision.FP32: self.fp32, Precision.TF32: self.tf32, Precision.FP16: self.fp16,
            Precision.BF16: self.bf16, Precision.FP8: self.fp8, Precision.FP4: self.fp4,
        }  # fmt: skip
        return rates.get(kind, 0.0)


_T, _G = 1e12, 1e9
_ML = "stas00/ml-engineering, accelerator and network tables (744d01e)"
_TITAN = "pytorch/torchtitan, tools/utils.py"
_HALF = "half of the figure with sparsity"
_GA102, _ADA = "NVIDIA GA102 whitepaper", "NVIDIA Ada whitepaper"
_NEURON = "AWS Neuron documentation, {} architecture"


def _row(  # noqa: PLR0913, PLR0917 - one row of the table below, in the order of its columns
    name: str, pattern: str, fp16: float, bf16: float, fp8: float, memory: float, size: float, link: str, rate: float,
    source: str, *, fp32: float = 0.0, tf32: float = 0.0, note: str = "", fp4: float = 0.0,
) -> Device:  # fmt: skip
    return Device(
        name, pattern, fp16 * _T, bf16 * _T, fp8 * _T, memory * _T, size * _G, link, rate * _G, source,
        fp32 * _T, tf32 * _T, note, fp4 * _T,
    )  # fmt: skip


# Name, pattern of the name that the driver gives, TFLOP/s of fp16, bf16, fp8, memory TB/s and GB, link and its GB/s.
# The first pattern that fits counts, so that special models stand before plain ones.
DEVICES: tuple[Device, ...] = (
    _row("V100 SXM2", r"v100-sxm[23]|^v100$", 125, 0, 0, 0.9, 32, "NVLink2", 150, "NVIDIA V100 datasheet", fp32=15.7),
    _row("V100 PCIe", r"v100-pcie|v100 pcie", 112, 0, 0, 0.9, 32, "PCIe3", 16, "NVIDIA V100 datasheet", fp32=14.0),
    _row("A100 PCIe 80GB", r"a100 80gb pcie|a100-pcie-80gb", 312, 312, 0, 1.94, 80, "PCIe4", 31, _ML, fp32=19.5,
         tf32=156),
    _row("A100 PCIe 40GB", r"a100-pcie-40gb", 312, 312, 0, 1.555, 40, "PCIe4", 31, "NVIDIA A100 datasheet", fp32=19.5,
         tf32=156),
    _row("A100 SXM 40GB", r"a100-sxm4-40gb|a100-pg509|^a100[ _-]40gb$", 312, 312, 0, 1.555, 40, "NVLink3", 300,
         "NVIDIA A100 datasheet", fp32=19.5, tf32=156),
    _row("A100 SXM 80GB", r"a100-sxm|^a100([ _-]80gb)?$", 312, 312, 0, 2.0, 80, "NVLink3", 300, _ML,
         fp32=19.5, tf32=156),
    _row("A800 PCIe 80GB", r"a800 80gb pcie|a800-pcie", 312, 312, 0, 1.94, 80, "PCIe4", 31, "NVIDIA A800 datasheet",
         fp32=19.5, tf32=156),
    _row("A800 SXM 80GB", r"a800", 312, 312, 0, 2.0, 80, "NVLink3", 200, "NVIDIA A800 datasheet", fp32=19.5, tf32=156),
    _row("A30", r"\ba30\b", 165, 165, 0, 0.933, 24, "PCIe4", 31, "NVIDIA A30 datasheet", fp32=10.3, tf32=82),
    _row("A40", r"\ba40\b", 149.7, 149.7, 0, 0.696, 48, "PCIe4", 31, "NVIDIA A40 datasheet", fp32=37.4, tf32=74.8),
    _row("A10", r"\ba10\b", 125, 125, 0, 0.6, 24, "PCIe4", 31, "NVIDIA A10 datasheet", fp32=31.2, tf32=62.5),
    _row("T4", r"\bt4\b", 65, 0, 0, 0.3, 16, "PCIe3", 16, "NVIDIA T4 datasheet", fp32=8.1),
    _row("H100 NVL", r"h100 nvl", 835, 835, 1670.5, 3.9, 94, "PCIe5", 63, f"{_TITAN}; H100 datasheet, {_HALF}", fp32=60,
         tf32=417.5),
    _row("H100 PCIe", r"h100 pcie", 756, 756, 1513, 2.0, 80, "PCIe5", 63, _ML, fp32=51.2, tf32=378),
    _row("GH200 144GB", r"gh200 1[0-9]{2}g", 989, 989, 1979, 4.8, 141, "NVLink4", 450, _ML, fp32=67, tf32=494.7),
    _row("GH200 96GB", r"gh200", 989, 989, 1979, 4.0, 96, "NVLink4", 450, _ML, fp32=67, tf32=494.7),
    _row("H100 96GB HBM2e", r"h100[ _]96gb", 989, 989, 1979, 2.4, 96, "NVLink4", 450,
         f"{_TITAN}; its benchmarks of December 2024 (memory, 500 W)", fp32=67, tf32=494.7),
    _row("H100 SXM", r"h100", 989, 989, 1979, 3.35, 80, "NVLink4", 450, _ML, fp32=67, tf32=494.7,
         note="the driver calls SXM boards 'H100 80GB HBM3'"),
    _row("H800 PCIe", r"h800 pcie", 756, 756, 1513, 2.0, 80, "PCIe5", 63, f"NVIDIA H800 datasheet, {_HALF}", fp32=51,
         tf32=378),
    _row("H800 SXM", r"h800", 989, 989, 1979, 3.35, 80, "NVLink4", 200, "DeepSeek-V3 report (links halved)", fp32=67,
         tf32=494.7),
    _row("H200 SXM", r"h200", 989, 989, 1979, 4.8, 141, "NVLink4", 450, _ML, fp32=67, tf32=494.7),
    _row("H20 141GB", r"h20-3e", 148, 148, 296, 4.8, 141, "NVLink4", 450, f"{_TITAN}; NVIDIA H20 datasheet", fp32=44,
         tf32=74),
    _row("H20", r"h20(?![0-9])", 148, 148, 296, 4.0, 96, "NVLink4", 450, f"{_TITAN}; NVIDIA H20 datasheet", fp32=44,
         tf32=74),
    _row("GB300", r"gb300", 2500, 2500, 5000, 8.0, 288, "NVLink5", 900, _ML, fp32=80, tf32=1250, fp4=15000),
    _row("GB200", r"gb200", 2500, 2500, 5000, 8.0, 186, "NVLink5", 900, _ML, fp32=80, tf32=1250,
         fp4=10000, note="NVIDIA's own MFU tables imply 2450 and 4900"),
    _row("B300 SXM", r"b300", 2250, 2250, 4500, 8.0, 288, "NVLink5", 900, _ML, fp32=75, tf32=1125, fp4=13500),
    _row("B200 SXM", r"b200", 2250, 2250, 4500, 8.0, 180, "NVLink5", 900, _ML, fp32=75, tf32=1125, fp4=9000),
    _row("L40S", r"l40s", 362, 362, 733, 0.86, 48, "PCIe4", 31, _ML, fp32=91.6, tf32=183),
    _row("L40", r"\bl40\b", 181, 181, 362, 0.864, 48, "PCIe4", 31, "NVIDIA L40 datasheet", fp32=90.5, tf32=90.5),
    _row("L20", r"\bl20\b", 119.5, 119.5, 239, 0.864, 48, "PCIe4", 31, "NVIDIA L20 datasheet", fp32=59.8, tf32=59.8),
    _row("L4", r"\bl4\b", 121, 121, 242, 0.3, 24, "PCIe4", 31, f"NVIDIA L4 datasheet, {_HALF}", fp32=30.3, tf32=60),
    _row("RTX A6000", r"rtx a6000", 154.85, 154.85, 0, 0.768, 48, "PCIe4", 31, f"{_TITAN}; {_GA102}", fp32=38.7,
         tf32=77.4),
    _row("RTX 6000 Ada", r"rtx 6000 ada", 364.2, 364.2, 728.5, 0.96, 48, "PCIe4", 31, f"{_ADA}, {_HALF}", fp32=91.1,
         tf32=182.1),
    _row("RTX 3090", r"rtx 3090(?! ti)", 71, 71, 0, 0.936, 24, "PCIe4", 31, f"{_GA102}, single-precision sums",
         fp32=35.6, tf32=35.6),
    _row("RTX 4090", r"rtx 4090(?! (d|laptop))", 165.2, 165.2, 330.3, 1.008, 24, "PCIe4", 31,
         f"{_ADA}, single-precision sums", fp32=82.6, tf32=82.6),
    _row("RTX 5090", r"rtx 5090(?! (d|laptop))", 209.5, 209.5, 419, 1.792, 32, "PCIe5", 63,
         "NVIDIA RTX Blackwell whitepaper, single-precision sums", fp32=104.8, tf32=104.8),
    _row("MI100", r"mi100", 184.6, 92.3, 0, 1.23, 32, "xGMI", 138, "AMD MI100 datasheet", fp32=46.1),
    _row("MI210", r"mi210", 181, 181, 0, 1.6, 64, "xGMI", 150, "AMD MI210 datasheet", fp32=45.3),
    _row("MI250X (one die)", r"mi250x", 191.5, 191.5, 0, 1.64, 64, "xGMI", 350, _TITAN, fp32=47.9,
         note="each of the two dies is a device of its own"),
    _row("MI250 (one die)", r"mi250", 181, 181, 0, 1.64, 64, "xGMI", 350, "AMD MI250 datasheet, halved", fp32=45.3,
         note="each of the two dies is a device of its own"),
    _row("MI300A", r"mi300a", 980.6, 980.6, 1961.2, 5.3, 128, "xGMI", 384, "AMD MI300A datasheet", fp32=122.6,
         tf32=490.3),
    _row("MI300X", r"mi300x", 1300, 1300, 2610, 5.3, 192, "xGMI", 448, _ML, fp32=163.4, tf32=653.7),
    _row("MI325X", r"mi325x", 1300, 1300, 2610, 6.0, 256, "xGMI", 448, _ML, fp32=163.4, tf32=653.7),
    _row("MI350X", r"mi350x", 2300, 2300, 4600, 8.0, 288, "xGMI", 535.5, "AMD MI350X datasheet", fp32=144.2),
    _row("MI355X", r"mi355x", 2500, 2500, 5000, 8.0, 288, "xGMI", 535.5, _ML, fp32=157.3),
    _row("Gaudi2", r"gaudi ?2|hl-225", 0, 432, 865, 2.46, 96, "Ethernet", 300, _ML),
    _row("Gaudi3", r"gaudi ?3|hl-325", 459, 1677, 1677, 3.7, 128, "Ethernet", 600, _ML),
    _row("Trainium3", r"trainium3|trn3", 671, 671, 2517, 4.9, 144, "NeuronLink4", 1280, _NEURON.format("Trainium3"),
         fp32=183, tf32=671),
    _row("Trainium2", r"trainium2|trn2", 667, 667, 1299, 2.9, 96, "NeuronLink3", 640, _ML, fp32=181, tf32=667),
    _row("Trainium", r"trainium|trn1", 190, 190, 190, 0.82, 32, "NeuronLink2", 0, _NEURON.format("Trainium"), fp32=47.5,
         tf32=190),
    _row("TPU v4", r"tpu v4", 0, 275, 0, 1.2, 32, "ICI", 0, _ML),
    _row("TPU v5e", r"tpu v5 ?(e|lite)", 0, 197, 0, 0.82, 16, "ICI", 0, _ML),
    _row("TPU v5p", r"tpu v5p?", 0, 459, 0, 2.76, 95, "ICI", 0, _ML),
    _row("TPU v6e", r"tpu v6", 918, 918, 918, 1.64, 32, "ICI", 0, _ML),
    _row("TPU v7x", r"tpu ?v?7x?", 2307, 2307, 4614, 7.37, 192, "ICI", 600, _ML),
)  # fmt: skip


def find(name: str) -> Device | None:
    """Give the device that a driver calls by this name; `None` when the table does not know it."""
    lowered = name.lower()
    exact = next((device for device in DEVICES if device.name.lower() == lowered), None)
    return exact or next((device for device in DEVICES if re.search(device.pattern, lowered)), None)
