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
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"), ("NVIDIA A100-PG509-200", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"), ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"), ("Tesla V100-PCIE-32GB", "V100 PCIe"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X", "MI250X (one die)"), ("TPU v5 lite", "TPU v5e"), ("TPU v5p", "TPU v5p"),
    ],
)  # fmt: skip
def test_devices_are_found_by_the_drivers_name(driver: str, name: str) -> None:
    device = hardware.find(driver)
    assert device is not None
    assert device.name == name


@pytest.mark.parametrize("driver", ["", "AMD Radeon Graphics", "NVIDIA L40", "AMD Instinct MI210", "Quadro P1000"])
def test_an_unknown_device_is_none(driver: str) -> None:
    assert hardware.find(driver) is None


def test_every_device_has_a_source_and_finds_itself() -> None:
    assert len({device.name for device in hardware.DEVICES}) == len(hardware.DEVICES)
    for device in hardware.DEVICES:
        assert device.source
        assert device.memory_rate > 0
        assert max(device.fp16, device.bf16) > 0


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


def test_a_peak_that_no_source_gives_is_nothing() -> None:
    device = hardware.find("Tesla V100-SXM2-16GB")
    assert device is not None
    assert (device.peak(Precision.FP16), device.peak(Precision.BF16), device.peak(Precision.FP64)) == (125e12, 0.0, 0.0)


@pytest.mark.real
def test_the_table_agrees_with_the_collected_figures() -> None:
    if not REFERENCE.exists():
        pytest.skip("the collected figures are not beside the project")
    own = {device.name: device for device in hardware.DEVICES}
    compared = 0
    for row in csv.DictReader(REFERENCE.read_text().splitlines()):
        device = own.get(row["device"])
        if device is None:
            continue
        compared += 1
        for column, value in (("bf16_dense_tflops", device.bf16), ("fp8_dense_tflops", device.fp8)):
            if row[column]:
                assert value == pytest.approx(float(row[column]) * 1e12), device.name
    assert compared >= 15
