from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from usp_prof.record import peak

if TYPE_CHECKING:
    from pathlib import Path


def test_the_peak_is_measured_once_and_read_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_SIZES", (64, 128))
    monkeypatch.setattr(peak, "_SECONDS_PER_SIZE", 0.01)
    threads = torch.get_num_threads()
    first = peak.cpu_peak(torch.float64, folder=tmp_path)
    assert 1e7 < first.flops < 1e15
    assert first.source.startswith("measured: largest float64 matrix product on ")
    assert torch.get_num_threads() == threads
    (stored,) = tmp_path.glob("*.json")
    stored.write_text(json.dumps({"flops": 42.0, "undisturbed": True}))
    assert peak.cpu_peak(torch.float64, folder=tmp_path).flops == 42.0


@pytest.mark.parametrize(("expected", "is_higher"), [(1e30, False), (1.0, True)])
def test_a_peak_measured_on_a_busy_machine_is_repeated_and_the_higher_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: float, is_higher: bool
) -> None:
    monkeypatch.setattr(peak, "_SIZES", (32,))
    monkeypatch.setattr(peak, "_SECONDS_PER_SIZE", 0.0)
    monkeypatch.setattr(peak, "_UNDISTURBED_SHARE", 2.0)  # no thread gets twice a core
    peak.cpu_peak(folder=tmp_path)
    (stored,) = tmp_path.glob("*.json")
    assert json.loads(stored.read_text())["undisturbed"] is False
    stored.write_text(json.dumps({"flops": expected, "undisturbed": False}))
    assert (peak.cpu_peak(folder=tmp_path).flops > expected) == is_higher
    monkeypatch.setattr(peak, "_UNDISTURBED_SHARE", -1.0)
    peak.cpu_peak(folder=tmp_path)
    assert json.loads(stored.read_text())["undisturbed"] is True


@pytest.mark.parametrize(
    "text", ["{", "[1]", "{}", '{"flops": null}', '{"flops": 0}', '{"flops": NaN}', '{"flops": 1e999}']
)
def test_a_damaged_peak_file_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(peak, "_SIZES", (32,))
    monkeypatch.setattr(peak, "_SECONDS_PER_SIZE", 0.0)
    peak.cpu_peak(folder=tmp_path)
    (stored,) = tmp_path.glob("*.json")
    stored.write_text(text)
    assert peak.cpu_peak(folder=tmp_path).flops > 0
    assert json.loads(stored.read_text())["flops"] > 0


def test_environment_variables_set_the_folder_of_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path))
    assert peak._cache_folder() == tmp_path
    monkeypatch.delenv("USP_PROF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert peak._cache_folder() == tmp_path / "xdg" / "usp-prof"
