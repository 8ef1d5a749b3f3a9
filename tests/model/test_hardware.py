from __future__ import annotations

import csv
from pathlib import Path

import pytest

from usp_prof.model import hardware
from usp_prof.model.hardware import Precision

REFERENCE = Path(__file__).parents[2] / "../shared/reference/hardware.csv"


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"), ("NVIDIA H20", "H20"), ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"), ("NVIDIA B200", "B200 SXM"), ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"), ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("A100", "A100 SXM 80GB"), ("a100_40gb", "A100 SXM 40GB"), ("h100_80gb", "H100 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"), ("NVIDIA A100-PG509-200", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"), ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"), ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"), ("Tesla V100-PCIE-32GB", "V100 PCIe"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X", "MI250X (one die)"), ("TPU v5 lite", "TPU v5e"), ("TPU v5p", "TPU v5p"),
        ("NVIDIA H800", "H800 SXM"), ("NVIDIA H800 PCIe", "H800 PCIe"), ("NVIDIA H20-3e", "H20 141GB"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM 80GB"), ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB"),
        ("NVIDIA L40", "L40"), ("NVIDIA L20", "L20"), ("NVIDIA A10", "A10"), ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"), ("Tesla T4", "T4"), ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"), ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"), ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI250", "MI250 (one die)"), ("AMD Instinct MI300A", "MI300A"),
        ("AMD Instinct MI350X", "MI350X"), ("AMD Instinct MI100", "MI100"), ("Trainium3", "Trainium3"),
        ("Trainium2", "Trainium2"), ("trn1.32xlarge", "Trainium"), ("TPU7x", "TPU v7x"),
    ],
)  # fmt: skip
def test_devices_are_found_by_the_drivers_name(driver: str, name: str) -> None:
    device = hardware.find(driver)
    assert device is not None
    assert device.name == name


@pytest.mark.parametrize(
    "driver",
    [
        "", "cpu", "AMD Radeon Graphics", "NVIDIA A10G", "Quadro P1000", "AMD Instinct MI308X", "NVIDIA RTX A4000",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM-64GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    ],
)  # fmt: skip
def test_an_unknown_device_is_none(driver: str) -> None:
    assert hardware.find(driver) is None


def test_every_device_has_a_source_and_is_found_by_its_name() -> None:
    assert len({device.name for device in hardware.DEVICES}) == len(hardware.DEVICES)
    for device in hardware.DEVICES:
        assert device.source
        assert device.memory_rate > 0
        assert max(device.peak(Precision.FP16), device.peak(Precision.BF16)) > 0


@pytest.mark.parametrize(
    ("dtype", "kind", "size"),
    [
        ("c10::BFloat16", Precision.BF16, 2), ("Float", Precision.FP32, 4), ("c10::Half", Precision.FP16, 2),
        ("c10::Float8_e4m3fn", Precision.FP8, 1), ("double", Precision.FP64, 8), ("torch.bfloat16", Precision.BF16, 2),
        ("long int", None, 8), ("Scalar", None, 0), ("", None, 0),
    ],
)  # fmt: skip
def test_pytorchs_spellings_are_understood(dtype: str, kind: Precision | None, size: int) -> None:
    assert hardware.precision(dtype) is kind
    assert hardware.element_bytes(dtype) == size


def test_a_peak_without_a_source_is_zero() -> None:
    device = hardware.find("Tesla V100-SXM2-16GB")
    assert device is not None
    assert (device.peak(Precision.FP16), device.peak(Precision.BF16), device.peak(Precision.FP64)) == (125e12, 0.0, 0.0)


@pytest.mark.real
def test_the_table_agrees_with_the_collected_figures() -> None:
    if not REFERENCE.exists():
        pytest.skip("the collected figures are not available next to the project")
    own = {device.name: device for device in hardware.DEVICES}
    compared = 0
    for row in csv.DictReader(REFERENCE.read_text().splitlines()):
        device = own.get(row["device"])
        if device is None:
            continue
        compared += 1
        for column, kind in (("bf16_dense_tflops", Precision.BF16), ("fp8_dense_tflops", Precision.FP8)):
            if row[column]:
                assert device.peak(kind) == pytest.approx(float(row[column]) * 1e12), device.name
    assert compared >= 15
