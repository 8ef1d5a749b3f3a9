"""Overhead of the recorder outside of its window. Bars: 1% of a 4 ms step with 19 marks, and 1 us per mark.

Bare and recorded steps alternate in one process, so both see the same machine. The result is the median of (recorded /
bare) over pairs, in CPU time of the process, with quartiles. A recorded step is inside a session whose window has not
started, with three phases and sixteen pipeline marks. Pairs of bare steps show the noise: bare / bare. The recorder's
own work per step is also timed separately, which is independent of other load on the machine.

    python benchmarks/record_overhead.py [--pairs 400] [--gloo]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from usp_prof import record

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_BAR = 0.01 * 4e-3
"""Maximum CPU seconds of the recorder per step: 1% of a 4 ms step."""
MARK_BAR = 1e-6
"""Maximum CPU seconds of one mark while nothing is recorded."""
_MARKS = 16


def make_step(width: int, *, communicate: bool) -> tuple[Callable[[], None], Callable[[record.Session], None]]:
    """Return the same optimizer step twice: bare, and as in a recorded loop."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, width)

    def work(*, marked: bool) -> None:
        with record.phase("forward") if marked else nullcontext():
            loss = mse_loss(model(batch), batch)
        with record.phase("backward") if marked else nullcontext():
            loss.backward()
            if communicate:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
        with record.phase("optimizer") if marked else nullcontext():
            optimizer.step()
            optimizer.zero_grad()

    def recorded(session: record.Session) -> None:
        with session.step():
            mark_actions()
            work(marked=True)

    return lambda: work(marked=False), recorded


def mark_actions() -> None:
    """Make the pipeline marks of a step."""
    for micro_batch in range(_MARKS):
        with record.pipeline_action("F", stage=0, micro_batch=micro_batch):
            pass


def alone(steps: int = 10_000) -> float:
    """Return the CPU seconds of a recorded step without training work."""
    with tempfile.TemporaryDirectory() as folder, record.session(folder, skip=1 << 40, peak_flops=1.0) as session:
        start = time.process_time()
        for _ in range(steps):
            with session.step():
                mark_actions()
                for name in ("forward", "backward", "optimizer"):
                    with record.phase(name):
                        pass
        return (time.process_time() - start) / steps


def marks(count: int = 50_000, repeats: int = 7) -> dict[str, float]:
    """Return the CPU seconds of one mark of each kind while nothing is recorded: the minimum of several series."""
    kinds: dict[str, Callable[[], record.Mark]] = {
        "phase": lambda: record.phase("forward"),
        "pipeline_action": lambda: record.pipeline_action("F", stage=0, micro_batch=1),
        "ring_step": lambda: record.ring_step(1),
        "mark": lambda: record.mark("dp", "bucket_all_reduce", bytes=1024),
    }
    return {name: min(stretch(make, count) for _ in range(repeats)) for name, make in kinds.items()}


def stretch(make: Callable[[], record.Mark], count: int) -> float:
    """Return the CPU seconds of one mark, averaged over a series."""
    start = time.process_time()
    for _ in range(count):
        with make():
            pass
    return (time.process_time() - start) / count


def cost(step: Callable[[], None]) -> float:
    """Return the CPU seconds of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(pairs: int, width: int, *, communicate: bool) -> tuple[list[float], list[float], float]:
    """Return the ratios recorded / bare and bare / bare, and the median bare step in seconds."""
    bare, recorded = make_step(width, communicate=communicate)
    with tempfile.TemporaryDirectory() as folder, record.session(folder, skip=1 << 40, peak_flops=1.0) as session:
        for _ in range(20):
            bare()
            recorded(session)
        triples = [(cost(bare), cost(lambda: recorded(session)), cost(bare)) for _ in range(pairs)]
    ratios = [2 * with_it / (before + after) for before, with_it, after in triples]
    noise = [before / after for before, _, after in triples]
    return ratios, noise, statistics.median(before for before, _, _ in triples)


def main() -> int:
    """Print the results; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--gloo", action="store_true", help="all-reduce each gradient over a gloo group of one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.gloo:
        record.prepare()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ratios, noise, bare = measure(options.pairs, options.width, communicate=options.gloo)
    if options.gloo:
        dist.destroy_process_group()
    for name, values in (("recorded / bare", ratios), ("bare / bare", noise)):
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:16} median {middle:.4f}  quartiles {low:.4f} to {high:.4f}")
    print(f"bare step        median {bare * 1e3:.2f} ms of CPU, {options.pairs} pairs, torch {torch.__version__}")
    own = alone()
    print(f"recording alone  {own * 1e6:.1f} us of CPU a step, {own / bare:.2%} of a bare one")
    by_kind = marks()
    for name, seconds in by_kind.items():
        print(f"{name:16} {seconds * 1e6:.2f} us of CPU")
    return int(own > STEP_BAR or max(by_kind.values()) > MARK_BAR)


if __name__ == "__main__":
    raise SystemExit(main())
