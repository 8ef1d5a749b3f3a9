"""Messages of one layer and step under each technique, as the docstrings of `trainer/parallel` state them.

One rank in a world of two simulated ranks. A model of three layers sends more than one of two: the cost of a layer.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel import ulysses
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh
from trainer.parallel.pipeline_parallel import Pipeline
from trainer.rules import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.step import Update
    from usp_prof.schedule_orders import Action

pytestmark = pytest.mark.trainer

KINDS = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
    "c10d::send": "send",
}
WEIGHTS = 9
"""Weights of a layer, each in a bucket of its own if buckets are as small as possible."""
EXPERTS = "--dp 2 --ep 2 --experts 2 --top-k 1 --zero 2"
COSTS: dict[str, dict[str, int]] = {
    "--dp 2 --fault unbucketed": {"all-reduce": WEIGHTS},
    "--dp 2 --fault unbucketed --accumulate 2": {"all-reduce": WEIGHTS},
    "--dp 2 --zero 1 --fault unbucketed": {"reduce-scatter": WEIGHTS, "all-gather": WEIGHTS},
    "--dp 2 --zero 2": {"all-gather": 1, "reduce-scatter": 1},
    "--dp 2 --zero 2 --accumulate 2": {"all-gather": 1, "reduce-scatter": 1},
    "--dp 2 --zero 3": {"all-gather": 2, "reduce-scatter": 1},
    "--dp 2 --zero 3 --accumulate 2": {"all-gather": 4, "reduce-scatter": 1},
    "--tp 2 --no-sequence-parallel": {"all-reduce": 4},
    "--tp 2": {"all-gather": 6, "reduce-scatter": 4},
    "--tp 2 --tp-async": {"send": 8},
    # Forward runs again without the last reduce-scatter, which no gradient needs.
    "--tp 2 --recompute full": {"all-gather": 8, "reduce-scatter": 5},
    "--cp 2": {"send": 4},
    "--cp 2 --recompute selective": {"send": 5},
    "--cp 2 --cp-method allgather": {"all-gather": 1, "reduce-scatter": 1},
    "--cp 2 --cp-method ulysses": {"all-to-all": 4},
    EXPERTS: {"all-to-all": 5, "all-gather": 1, "reduce-scatter": 1},
    f"{EXPERTS} --capacity 1.5": {"all-to-all": 4, "all-gather": 1, "reduce-scatter": 1},
}


@contextmanager
def rank_of_two(options: str) -> Iterator[tuple[Update, Batches]]:
    """Build the first of two ranks with a simulated peer."""
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        config = resolve(parse(["--device", "cpu", *options.split()]), 2)
        mesh = Mesh.build(config.layout, 0, wanted_groups(config))
        update = build(config, mesh, torch.device("cpu"), Faults(config, 0))
        yield update, Batches(config, mesh.place, torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def messages(options: str, layers: int) -> Counter[str]:
    """Count the messages of a step."""
    with rank_of_two(f"--layers {layers} {options}") as (update, batches):
        update(0, batches.update(0))  # ZeRO-1 gathers at the start of the second step
        with torch.profiler.profile(acc_events=True) as profile:
            update(1, batches.update(1))
    return Counter(KINDS[event.name] for event in profile.events() if event.name in KINDS)


@pytest.mark.parametrize("options", COSTS)
def test_a_layer_sends_the_messages_that_its_file_states(options: str) -> None:
    two_layers, three_layers = messages(options, 2), messages(options, 3)
    assert three_layers - two_layers == COSTS[options]
    assert not two_layers - three_layers


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kv_heads_sent"), [(8, 8, 8), (8, 4, 4), (8, 2, 4), (8, 1, 4), (12, 6, 12)]
)
def test_ulysses_repeats_keys_and_values_only_until_each_rank_has_a_head(
    heads: int, kv_heads: int, kv_heads_sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def exchanged(x: torch.Tensor, _: Group) -> torch.Tensor:
        sent.append(x.numel())
        return x

    monkeypatch.setattr(ulysses, "all_to_all", exchanged)
    group = Group("cp", ("cp",), tuple(range(4)), 0, None)
    queries, keys = torch.randn(1, heads, 2, 3), torch.randn(1, kv_heads, 2, 3)
    ulysses.UlyssesAttention(group, torch.arange(8))(queries, keys, keys)
    assert sent == [(heads + 2 * kv_heads_sent) * 2 * 3, heads * 2 * 3]


@pytest.mark.parametrize(("schedule", "most"), [("gpipe", 8), ("1f1b", 2)])
def test_a_pipeline_keeps_sent_activations_until_their_gradient_arrives(
    schedule: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_sent: list[int] = []
    forward = Pipeline._forward

    def observed(pipeline: Pipeline, action: Action) -> None:
        forward(pipeline, action)
        n_sent.append(len(pipeline.sending) + len(pipeline.leaving))

    monkeypatch.setattr(Pipeline, "_forward", observed)
    with rank_of_two(f"--pp 2 --micro-batches 8 --schedule {schedule}") as (update, batches):
        update(0, batches.update(0))
    assert max(n_sent) == most
    assert len(n_sent) == 8
