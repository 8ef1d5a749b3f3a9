"""Named waits: CUDA's synchronization events are recorded on request, on GPUs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from usp_prof import open_run, record
from usp_prof.record import _torch_private, windows
from usp_prof.record.options import Content

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("waits", "on_gpu"), [(True, True), (True, False), (False, True)])
def test_the_profiler_is_configured_for_them(waits: bool, on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}

    class Profile:
        def __init__(self, **given: Any) -> None:
            options.update(given)

        def preset_metadata_json(self, *_: str) -> None: ...

        def prepare_trace(self) -> None: ...

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(windows, "uses_cuda", lambda: on_gpu)
    windows.WindowProfiler(Content(waits=waits), ("key", "{}"))
    assert (options["experimental_config"] is not None) is (waits and on_gpu)


def test_a_torch_without_them_records_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._C._profiler._ExperimentalConfig")
    assert _torch_private.naming_waits() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_wait_between_two_streams_is_in_the_table(tmp_path: Path) -> None:
    side, values = torch.cuda.Stream(), torch.ones(1_000, 1_000, device="cuda")
    with record.session(tmp_path / "run", waits=True, wait=0, peak_flops=1.0) as session:
        for _ in range(3):
            with session.step():
                product = values @ values
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    product.sum()
                torch.cuda.current_stream().wait_stream(side)
    waits = open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables.columns("device_waits", 0)
    of_streams = waits.matches("kind", "stream_wait")
    assert of_streams.sum() >= 4
    assert (waits["record_event"][of_streams] >= 0).all()
