"""The trainer's `main` on a simulated GPU, as far as possible without a device; see `paper_gpu.py`.

One rank of each mesh, up to 512; the host waits only where it must, and nothing is created on the wrong device.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from trainer_fleet import finish, start

from trainer.parallel.tensor_parallel import WIDENED_NUMBERS

pytestmark = [
    pytest.mark.trainer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(dist, "all_gather_single"), reason="it replaces parts of torch 2.13"),
]

SUPPORT = Path(__file__).resolve().parents[1] / "support"
TORCH = Path(torch.__file__).parent
STEPS = 2
WIDE = "--pp 4 --dp 16 --cp 2 --tp 4 --model 8b --micro-batches 4"
PLACES = (
    # rank, world (/ GPUs), options
    "0 1 --dtype fp32 --model small --layers 2",
    "0 1 --dtype bf16 --recompute selective --accumulate 2 --layers 2",
    "0 1 --dtype fp8 --recompute full --layers 2",
    "0 1 --dtype bf16 --experts 4 --recompute full --layers 2",
    "0 1 --dtype fp32 --experts 4 --fault expert-imbalance --layers 2",
    "0 1 --dtype fp8 --fault slow-rank --fault blocking-sync --fault unequal-lengths --layers 2",
    "1 2 --dp 2 --dtype bf16 --layers 2",
    "0 2 --dp 2 --dtype bf16 --zero 1 --accumulate 2 --fault unbucketed --layers 2",
    "1 2 --dp 2 --dtype bf16 --zero 2 --accumulate 2 --layers 2",
    "0 2 --dp 2 --dtype fp8 --zero 3 --layers 2",
    "0 2 --dp 2 --dtype bf16 --zero 1 --offload optimizer --layers 2",
    "1 2 --dp 2 --dtype bf16 --zero 3 --offload optimizer --layers 2",
    "0 1 --dtype fp8 --offload optimizer --layers 2",
    "3 4 --dp 4 --dp-replicate 2 --zero 3 --experts 4 --ep 2 --layers 2",
    "1 4 --dp 4 --ep 2 --experts 4 --capacity 1.5 --dtype bf16 --layers 2",
    "1 2 --tp 2 --dtype fp8 --layers 2",
    "1 2/1 --tp 2 --dtype bf16 --layers 2",
    "2 4 --tp 4 --tp-async --dtype bf16 --model small --layers 2",
    "1 2 --cp 2 --dtype bf16 --layers 2",
    "0 2 --cp 2 --dtype fp8 --cp-layout contiguous --layers 2",
    "1 2 --cp 2 --cp-method allgather --dtype bf16 --model small --layers 2",
    "1 2 --cp 2 --cp-method ulysses --dtype bf16 --model small --layers 2 --recompute selective",
    "1 2 --pp 2 --schedule gpipe --dtype bf16",
    "2 4 --pp 4 --schedule 1f1b --dtype bf16 --accumulate 2",
    "1 2 --pp 2 --schedule interleaved",
    "1 2 --pp 2 --schedule interleaved-zb --dtype fp8",
    "1 4 --pp 2 --dp 2 --schedule zbv --zero 3 --dtype bf16",
    "0 2 --pp 2 --schedule dualpipev --dtype bf16",
    f"301 512 {WIDE} --ep 8 --experts 64 --schedule zbv --zero 2 --dtype bf16 --layers 8",
    f"77 512 {WIDE} --ep 8 --experts 64 --dp-replicate 2 --zero 3 --schedule interleaved --layers 8 --dtype fp8",
    f"511 512 {WIDE} --zero 1 --dtype bf16 --layers 4 --recompute full --cp-method allgather",
)
BUILT = {"build.build_attention", "layers.__init__", "weights._draw", "decoder.__init__", "injection.router_bias"}
"""What makes tensors on the host and brings them to the GPU, before the first step."""


@cache
def answers() -> dict[str, Any]:
    if not (compiler := shutil.which("g++")):
        pytest.skip("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        library, cases_file, answer = Path(folder, "gpu.so"), Path(folder, "cases.json"), Path(folder, "answers.json")
        flags = ["-std=c++20", "-shared", "-fPIC", f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}"]
        linked = ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{TORCH / 'lib'}"]
        source = str(SUPPORT / "paper_gpu.cpp")
        subprocess.run([compiler, *flags, source, "-o", str(library), *linked], check=True, capture_output=True)
        run = f"0 1 --dtype bf16 --profile --profile-skip 0 --profile-steps 1 --output {folder}/run"
        cases_file.write_text(json.dumps([f"{place} --steps {STEPS}" for place in (*PLACES, run)]))
        process = start([sys.executable, str(SUPPORT / "paper_gpu.py"), str(library), str(cases_file), str(answer)])
        _, err = finish(process, 500)
        assert answer.exists(), err
        missing = {"error": f"not reached:\n{err[-3000:]}"}
        answer_by_case = dict.fromkeys(json.loads(cases_file.read_text()), missing) | json.loads(answer.read_text())
        answer_by_case["profiled"] = answer_by_case.pop(f"{run} --steps {STEPS}")
        manifest = Path(folder, "run", "run.json")
        answer_by_case["manifest"] = json.loads(manifest.read_text()) if manifest.exists() else {}
        return answer_by_case


@pytest.mark.parametrize("place", PLACES)
def test_a_step_has_no_syncs_and_no_mixed_devices(place: str) -> None:
    result = answers()[f"{place} --steps {STEPS}"]
    assert "error" not in result, result["error"]
    assert result["status"] == 0
    assert result["backend"] == ["gloo" if "/" in place else "nccl"]
    waits = result["waits"]
    if (
        "--experts" in place and "--capacity" not in place
    ):  # lengths of an uneven exchange, once per layer and micro-batch
        assert waits.pop("expert_parallel.plan") > 0
    if "blocking-sync" in place:
        assert waits.pop("attachment.run_and_wait") == STEPS
    if "--offload optimizer" in place:  # copies each slice's gradient to the host, and its weights to the device
        slices = waits.pop("offload.step")
        assert slices >= STEPS
        assert result["crossings"].pop("offload._fetch_gradients cuda to cpu") == slices
        assert result["crossings"].pop("offload._send_weights cpu to cuda") == slices
    assert waits == ({"reporting.report": STEPS} if place.startswith("0 ") else {})
    crossings = {crossing.split()[0]: count for crossing, count in result["crossings"].items()}
    assert {crossing.partition(" ")[2] for crossing in result["crossings"]} == {"cpu to cuda"}
    assert crossings.pop("batches._passes") == STEPS
    assert set(crossings) <= BUILT
    assert result["masks"] == 0, "a mask keeps attention from the flash kernel"
    assert result["widened"] <= WIDENED_NUMBERS, "a copy of all logits in fp32"
    assert result["queues"] == ("1" if "--tp-async" in place else ""), "messages queue behind products"


def test_a_recording_requests_gpu_activity_and_names_the_gpu() -> None:
    results = answers()
    assert "error" not in results["profiled"], results["profiled"]["error"]
    assert results["profiled"]["recorded"] == ["CPU", "CUDA"]
    assert "H100" in results["manifest"]["device"]


def test_mistakes_that_a_cpu_tolerates_are_refused() -> None:
    refused = answers()["refusals"]
    assert set(refused) == {"devices", "value", "rows", "layout", "size", "groups"}
    assert "FakeTensorDeviceMismatchError" in refused["devices"]
    assert "DataDependentOutputException" in refused["value"]
    assert "DynamicOutputShapeException" in refused["rows"]
