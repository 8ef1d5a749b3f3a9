"""Sharded weights with ZeRO-2 and -3: what each rank stores at which time, and the messages of FSDP2.

One rank alone, in a world of simulated ranks (torch's `fake` backend). `test_parity.py` has the curves.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer.step import Update

pytestmark = pytest.mark.trainer
LAYERS = 4
CPU = torch.device("cpu")


@contextmanager
def rank_of_two() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained(options: str) -> tuple[Update, Callable[[], object]]:
    config = resolve(parse(["--device", "cpu", "--dp", "2", "--layers", str(LAYERS), *options.split()]), 2)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config))
    update = build(config, mesh, CPU, Faults(config, 0))
    batches = Batches(config, mesh.place, CPU)
    return update, lambda: update(0, batches.update(0))


def messages(train: Callable[[], object]) -> Counter[str]:
    """Count gathers and reductions of a step in the trace."""
    with torch.profiler.profile(acc_events=True) as profile:
        train()
    names = [event.name for event in profile.events()]
    kinds = {"zero_all_gather": "gather", "FSDP::all_gather ": "gather"}  # not `FSDP::all_gather_copy_in`
    kinds |= {"zero_reduce_scatter": "sum", "FSDP::post_backward_reduce": "sum"}
    kinds_of_messages = [next((kind for part, kind in kinds.items() if part in f"{name} "), "") for name in names]
    return Counter(kind for kind in kinds_of_messages if kind)


def whole_layers(update: Update) -> list[int]:
    """Return the layers whose weights are complete on this rank."""
    layers = update.chunks[0].layers
    return [int(name) for name, layer in layers.items() if layer.ffn.up.weight.untyped_storage().nbytes()]


@pytest.mark.parametrize(("stage", "gathers"), [(2, LAYERS + 1), (3, 2 * LAYERS + 1)])
def test_layers_are_gathered_as_often_as_in_torch(stage: int, gathers: int) -> None:
    with rank_of_two():
        ours = messages(trained(f"--zero {stage}")[1])
        layers = [torch.nn.Linear(8, 8) for _ in range(LAYERS)]
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sequential(*layers))
        mesh = init_device_mesh("cpu", (2,))
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
        fully_shard(model, mesh=mesh)
        x = torch.ones(2, 8)
        theirs = messages(lambda: model(x).sum().backward())
    assert ours == {"gather": gathers, "sum": LAYERS + 1}
    assert theirs == ours


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ("--zero 3 --no-prefetch", [[0], [1], [2], [3]]),
        ("--zero 3", [[0, 1], [1, 2], [2, 3], [3]]),
        ("--zero 2", [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
)
def test_only_the_current_and_prefetched_layers_are_gathered(options: str, seen: list[list[int]]) -> None:
    with rank_of_two():
        update, train = trained(options)
        assert whole_layers(update) == []
        layer_counts = []
        for layer in update.chunks[0].layers.values():
            layer.ffn.register_forward_hook(lambda *_: layer_counts.append(whole_layers(update)))
        train()
        assert layer_counts == seen
        assert whole_layers(update) == []  # the weights have changed


def test_only_one_layer_has_full_gradients() -> None:
    with rank_of_two():
        update, train = trained("--zero 3")
        full_gradients: list[int] = []
        units = list(update.data)
        for layer in update.chunks[0].layers.values():
            layer.register_full_backward_hook(
                lambda *_: full_gradients.append(sum(unit.grad is not None for unit in units))
            )
        train()
    # The previous layer's are in transit, and those of the head and last norm wait for the embedding's.
    assert max(full_gradients) <= 3


def test_zero_1_gathers_overlap_with_the_next_forward() -> None:
    with rank_of_two():
        update, train = trained("--zero 1 --bucket-mb 0.1")
        train()
        assert not any(bucket.is_whole for bucket in update.data), "nothing travels after the last update"
        on_their_way: list[int] = []
        for layer in update.chunks[0].layers.values():
            layer.ffn.register_forward_hook(
                lambda *_: on_their_way.append(sum(bucket.gathering is not None for bucket in update.data))
            )
        train()
    assert on_their_way == sorted(on_their_way, reverse=True)
    assert on_their_way[0] >= 2, "the first layer waits for its own weights alone"
    assert on_their_way[-1] <= 1, "the head's"


def test_sequence_parallelism_stores_the_slice_for_backward() -> None:
    with rank_of_two():
        config = resolve(parse(["--device", "cpu", "--tp", "2", "--layers", "1"]), 2)
        mesh = Mesh.build(config.layout, 0, wanted_groups(config))
        (stage,) = build(config, mesh, CPU, Faults(config, 0)).chunks.values()
        block = stage.layers["0"].ffn
        x = torch.randn(config.shape.sequence // 2, 1, config.shape.hidden, requires_grad=True)
        saved: list[int] = []

        def save(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            block.edges.project(x, (block.gate, block.up))
        assert sorted(saved) == sorted([x.numel(), block.gate.weight.numel(), block.up.weight.numel()])


def test_an_offloaded_update_reads_each_bucket_once() -> None:
    seen: list[int] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: seen.extend(len(group["params"]) for group in optimizer.param_groups)
    )
    try:
        with rank_of_two():
            update, train = trained("--zero 2 --offload optimizer")
            train()
    finally:
        hook.remove()
    assert len(list(update.data)) > LAYERS
    assert sum(seen) == len(list(update.data))
