"""Messages per step: number and bytes as the planner counts, compared with recorded runs and PyTorch's own FSDP2."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from planned import cases
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.testing._internal.distributed import fake_pg
from torch.utils._python_dispatch import TorchDispatchMode

from usp_prof.contract import model_entry
from usp_prof.extras.planner import data_parallel, messages
from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.stages import Stages, stages_of
from usp_prof.extras.planner.step import step
from usp_prof.model.configuration import Configuration

# One row per layout: options, model, configuration, and calls and bytes per step by pipeline rank and operation.
# Written by benchmarks/planner_messages.py from runs of our trainer.
RECORDED = json.loads((Path(__file__).parent / "recorded_messages.json").read_text())
OURS = PROFILES["usp-prof"]


def cases_of_row(row: dict[str, Any]) -> Cases:
    """Put a recorded layout into columns."""
    return cases(Configuration(**row["configuration"]), model=model_entry(row["model"]), profile=OURS)


def weights_of_rank(c: Cases, stages: Stages, rank: int, ranks: int) -> messages.Weights:
    """Count the weights of a pipeline rank; `stages` has the first, a middle and the last one."""
    place = 0 if rank == 0 else 2 if rank == ranks - 1 else 1
    return messages.weights_of_rank(c, stages.layers[place], stages.embedding[place], stages.head[place])


def total(sent: dict[str, dict[str, int]], collective: str, operation: str) -> int:
    """Return the calls or bytes of an operation; 0 if it was not sent."""
    return sent[operation][collective] if operation in sent else 0


@pytest.mark.parametrize("row", RECORDED, ids=[row["options"] for row in RECORDED])
def test_a_recorded_step_sent_the_bytes_that_the_planner_counts(row: dict[str, Any]) -> None:
    c = cases_of_row(row)
    stages = stages_of(c)
    # Norms are complete on each tp rank, which the planner ignores.
    room = 0.005 if row["configuration"]["tp"] > 1 else 0.0
    for rank, sent in enumerate(row["messages"]):
        weights = weights_of_rank(c, stages, rank, len(row["messages"]))
        gathered, summed = (float(count(c, weights)[0]) for count in (messages.gathered_bytes, messages.summed_bytes))
        # Full gradients are all-reduced; with hybrid sharding, each shard is reduced over its replicas.
        reduced = summed if row["configuration"]["zero"] == 0 else 0.0
        reduced += summed / float(c.shards[0]) if row["configuration"]["replicas"] > 1 else 0.0
        scattered = 0.0 if row["configuration"]["zero"] == 0 else summed
        expected = {"all_gather": gathered, "reduce_scatter": scattered, "all_reduce": reduced}
        for operation, size in expected.items():
            assert total(sent, "bytes", operation) == pytest.approx(size, rel=room)


@pytest.mark.parametrize("row", RECORDED, ids=[row["options"] for row in RECORDED])
def test_a_recorded_step_sent_each_layer_as_often_as_the_planner_counts(row: dict[str, Any]) -> None:
    c = cases_of_row(row)
    if not messages.goes_by_layer(c)[0]:
        pytest.skip("buckets, whose number is a matter of their size")
    often = messages.messages_per_step(c)
    # Experts, and with tensor parallelism norms, are separate units within a layer; they are not ends.
    is_mixture, has_slices = row["model"]["experts"] > 0, row["configuration"]["tp"] > 1
    units_of_layer, units_of_ends = 1 + is_mixture + has_slices, 1 + has_slices
    layers = stages_of(c).layers[:, 0]
    stages_per_rank = float(c.stages_of_rank[0])
    for rank, sent in enumerate(row["messages"]):
        held = layers[0 if rank == 0 else 2]
        # Ranks between the ends have none; with chunks, only one of a rank's stages has them.
        of_ends = units_of_ends if stages_per_rank == 1 or rank in (0, len(row["messages"]) - 1) else 0
        gathers = float(often.forward_gathers[0] + often.backward_gathers[0])
        assert sent["all_gather"]["calls"] == held * gathers * units_of_layer + often.end_gathers[0] * of_ends
        assert sent["reduce_scatter"]["calls"] == often.sums[0] * (held * units_of_layer + of_ends)


def test_nanotron_reduces_gradients_in_float32() -> None:
    assert messages.gradient_width(cases(Configuration(dp=2), profile=PROFILES["nanotron"]))[0] == 4


ONCE, EACH, TWICE, EACH_AND_ONCE = (1, 0), (0, 1), (0, 2), (1, 1)
"""Number per step: a constant, plus a number per micro-batch."""
# By trainer and ZeRO stage: gathers of a layer, gathers of the ends, sums.
TABLE = {
    ("usp-prof", 1): (ONCE, ONCE, ONCE),
    ("usp-prof", 2): (ONCE, ONCE, ONCE),
    ("usp-prof", 3): (TWICE, ONCE, ONCE),
    ("megatron", 1): (ONCE, ONCE, ONCE),
    ("megatron", 2): (ONCE, ONCE, EACH),
    ("megatron", 3): (TWICE, ONCE, EACH),
    ("fsdp", 2): (EACH, EACH, EACH),
    ("fsdp", 3): (TWICE, EACH, EACH),
    ("torchtitan", 2): (EACH, EACH, EACH),
    ("torchtitan", 3): (TWICE, TWICE, EACH),
}
IN_PIPELINE = {
    ("fsdp", 2): (ONCE, ONCE, ONCE),
    ("fsdp", 3): (EACH_AND_ONCE, ONCE, ONCE),
    ("torchtitan", 2): (ONCE, ONCE, ONCE),
    ("torchtitan", 3): (EACH_AND_ONCE, EACH_AND_ONCE, ONCE),
}


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 4, 8])
@pytest.mark.parametrize(("trainer", "zero"), TABLE)
def test_messages_per_step_depend_on_trainer_stage_accumulation_and_pipeline(
    trainer: str, zero: int, micro_batches: int, pp: int
) -> None:
    configuration = Configuration(dp=4, pp=pp, zero=zero, micro_batches=micro_batches)
    often = messages.messages_per_step(cases(configuration, profile=PROFILES[trainer]))
    table = TABLE | IN_PIPELINE if pp > 1 else TABLE
    counts = (often.forward_gathers + often.backward_gathers, often.end_gathers, often.sums)
    for times, (fixed, per_micro_batch) in zip(counts, table[trainer, zero], strict=True):
        assert float(times[0]) == fixed + per_micro_batch * micro_batches


class Counted(TorchDispatchMode):
    """Counts the calls of c10d."""

    def __init__(self) -> None:
        super().__init__()
        self.gathers = self.sums = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.gathers += "allgather" in func.name()
            self.sums += "reduce_scatter" in func.name()
        return func(*args, **(kwargs or {}))


class Block(nn.Linear):
    """A layer whose output is no view, as FSDP2 wants it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return torch.relu(super().forward(x))


class Small(nn.Module):
    """Embedding, three layers and a head, sharded as FSDP2 or torchtitan does it."""

    def __init__(self, *, frees: bool, ends_are_units: bool) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (4,))
        self.embedding, self.head = nn.Embedding(16, 8), Block(8, 16)
        self.layers = nn.ModuleList(Block(8, 8) for _ in range(3))
        units = [*self.layers, *([self.embedding, self.head] if ends_are_units else [])]
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=frees)
        fully_shard(self, mesh=mesh)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each of 16 words."""
        x = torch.relu(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        return torch.relu(self.head(x))


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[None]:
    """Simulate one of four ranks without its peers."""
    dist.init_process_group("fake", rank=0, world_size=4, store=fake_pg.FakeStore())
    yield
    dist.destroy_process_group()


SHARDED = [("fsdp", 2, 1), ("fsdp", 3, 1), ("torchtitan", 2, 2), ("torchtitan", 3, 2)]
"""Trainer, ZeRO stage, and how many units it makes of the embedding and the head."""


def assert_sent(counted: Counted, trainer: str, units_of_ends: int, configuration: Configuration) -> None:
    """Compare the messages of a three-layer model with the planner's counts."""
    often = messages.messages_per_step(cases(configuration, profile=PROFILES[trainer]))
    of_layers = 3 * (often.forward_gathers + often.backward_gathers)
    assert counted.gathers == of_layers[0] + units_of_ends * often.end_gathers[0]
    assert counted.sums == often.sums[0] * (3 + units_of_ends)


@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize(("trainer", "zero", "units_of_ends"), SHARDED)
def test_fsdp2_sends_as_many_messages(trainer: str, zero: int, units_of_ends: int) -> None:
    model = Small(frees=zero == 3, ends_are_units=trainer == "torchtitan")
    with Counted() as counted:
        for _ in range(3):
            model(torch.zeros(2, 4, dtype=torch.long)).sum().backward()
    assert_sent(counted, trainer, units_of_ends, Configuration(dp=4, zero=zero, micro_batches=3))


@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize("schedule", [Schedule1F1B, ScheduleGPipe])
@pytest.mark.parametrize(("trainer", "zero", "units_of_ends"), SHARDED)
def test_fsdp2_in_a_pytorch_pipeline_sends_as_many_messages(
    trainer: str, zero: int, units_of_ends: int, schedule: type[PipelineScheduleSingle]
) -> None:
    """A pipeline of one stage treats weights and gradients like each stage of a longer one."""
    model = Small(frees=zero == 3, ends_are_units=trainer == "torchtitan")
    stage = PipelineStage(model, 0, 1, torch.device("cpu"), group=dist.new_group([0]))
    pipeline = schedule(stage, 4, loss_fn=lambda output, _: output.sum())
    tokens = torch.zeros(4, 4, dtype=torch.long)
    pipeline.step(tokens, target=tokens)  # the first step determines shapes
    with Counted() as counted:
        pipeline.step(tokens, target=tokens)
    assert_sent(counted, trainer, units_of_ends, Configuration(dp=4, pp=2, zero=zero, micro_batches=4))


@pytest.mark.parametrize("trainer", ["fsdp", "torchtitan"])
def test_fsdp2_exposes_the_ends_in_every_micro_batch(trainer: str) -> None:
    """Gather and reduction of the embedding do not overlap with its forward and backward pass."""
    few, many = (
        cases(Configuration(dp=8, zero=3, micro_batches=number), profile=PROFILES[trainer]) for number in (2, 6)
    )
    once, thrice = (
        data_parallel.exposed_per_step(c, stages_of(c), np.array([0.0]), np.array([0.0])) for c in (few, many)
    )
    assert thrice[0] == pytest.approx(3 * once[0])


def test_gradients_summed_once_are_exposed_less_than_those_of_every_micro_batch() -> None:
    configuration = Configuration(dp=8, zero=3, micro_batches=8)
    shown = [step(cases(configuration, profile=replace(OURS, sums_once=once))).exposed["dp"][0] for once in (1, 0)]
    assert shown[0] < shown[1]
