"""Pipelines: steps of 1F1B with batched or separate messages, and of the interleaved schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulated_jobs.devices import Program
from simulated_jobs.hosts import Host
from simulated_jobs.layers import LAYER, backward, fault_at, forward, is_logged, load_batch, log, loss, optimize
from simulated_jobs.messages import Message, awaited_collective, exchange

GRADIENTS = 4.0
"""Length of the all-reduce of gradients, as a multiple of a message."""
NORM_US = 15.0


class Action(NamedTuple):
    """Forward or backward of one micro-batch in one chunk of a rank."""

    is_backward: bool
    chunk: int
    micro_batch: int


def pipeline_step(host: Host) -> Program[None]:
    """Run one step of a pipeline."""
    options = host.options
    yield from load_batch(host)
    if options.is_batched:
        yield from _batched(host)
    else:
        yield from _separate(host)
    if "dp" in host.groups:
        yield from awaited_collective(host, host.groups["dp"], "allreduce", options.message_us * GRADIENTS)
    yield from optimize(host, kernels=6)
    if is_logged(host):
        yield from awaited_collective(host, host.groups["all"], "allreduce", NORM_US)
    yield from log(host)


def stage_of(host: Host) -> int:
    """Return the place of a rank in its pipeline."""
    return host.groups["pp"].ranks.index(host.rank)


def _compute(host: Host, action: Action) -> Program[None]:
    options = host.options
    fault = host.active_fault("stage")
    scale = options.scale * (fault.size if fault else 1.0)
    first, layers = action.micro_batch * options.layers, options.micro_batches * options.layers
    if action.is_backward:
        host.spend(15)
        with host.autograd():
            for layer in reversed(range(options.layers)):
                yield from fault_at(host, "backward", first + layer, layers)
                yield from backward(host, LAYER, scale)
        return
    for layer in range(options.layers):
        yield from fault_at(host, "forward", first + layer, layers)
        yield from forward(host, LAYER, scale)
    if stage_of(host) == options.pp - 1 and action.chunk == options.chunks - 1:
        yield from loss(host)


def _separate(host: Host) -> Program[None]:
    """Run all actions; receive the input before an action, and send its output after it."""
    options, ranks = host.options, host.groups["pp"].ranks
    stage, last_stage, last_chunk = stage_of(host), options.pp - 1, options.chunks - 1
    for action in _order(stage, options.pp, options.micro_batches, options.chunks):
        is_backward, chunk, micro_batch = action
        forward_step = -1 if is_backward else 1
        is_first = (stage, chunk) == ((last_stage, last_chunk) if is_backward else (0, 0))
        is_last = (stage, chunk) == ((0, 0) if is_backward else (last_stage, last_chunk))
        if not is_first:
            sender = ranks[(stage - forward_step) % options.pp]
            yield from exchange(host, [Message(False, sender, is_backward, chunk, micro_batch)])
        yield from _compute(host, action)
        if not is_last:
            wraps = stage == (0 if is_backward else last_stage)
            receiver, to_chunk = ranks[(stage + forward_step) % options.pp], chunk + forward_step * wraps
            yield from exchange(host, [Message(True, receiver, is_backward, to_chunk, micro_batch)])


def _order(stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Action]:
    """Yield the actions of a rank: warm-up, then one forward and one backward in turn, then the rest."""
    total = micro_batches * chunks
    ahead = (stages - stage - 1) * 2 + (chunks - 1) * stages if chunks > 1 else stages - stage - 1
    warmup = min(ahead, total)
    for number in range(total + warmup):
        if number < total:
            yield _action(number, stages, chunks, is_backward=False)
        if number >= warmup:
            yield _action(number - warmup, stages, chunks, is_backward=True)


def _action(number: int, stages: int, chunks: int, *, is_backward: bool) -> Action:
    """Return the action with this number: interleaved chunks take turns after as many micro-batches as stages."""
    if chunks == 1:
        return Action(is_backward, 0, number)
    chunk = number % (stages * chunks) // stages
    micro_batch = number // (stages * chunks) * stages + number % stages
    return Action(is_backward, chunks - 1 - chunk if is_backward else chunk, micro_batch)


def _batched(host: Host) -> Program[None]:
    """Run 1F1B as Megatron-LM does: what a rank sends and receives between two actions is one batch."""
    options, ranks, stage = host.options, host.groups["pp"].ranks, stage_of(host)
    before = ranks[stage - 1] if stage else None
    after = ranks[stage + 1] if stage + 1 < options.pp else None
    warmup = min(options.pp - stage - 1, options.micro_batches)

    def messages(*wanted: tuple[bool, int | None, bool, int]) -> list[Message]:
        return [
            Message(is_send, peer, is_backward, 0, number)
            for is_send, peer, is_backward, number in wanted
            if peer is not None
        ]

    for number in range(warmup):
        yield from exchange(host, messages((False, before, False, number)))
        yield from _compute(host, Action(False, 0, number))
        yield from exchange(host, messages((True, after, False, number)))
    steady = options.micro_batches - warmup
    if steady:
        yield from exchange(host, messages((False, before, False, warmup)))
    for number in range(steady):
        yield from _compute(host, Action(False, 0, warmup + number))
        yield from exchange(host, messages((True, after, False, warmup + number), (False, after, True, number)))
        yield from _compute(host, Action(True, 0, number))
        following = [(False, before, False, warmup + number + 1)] if number + 1 < steady else []
        yield from exchange(host, messages((True, before, True, number), *following))
    for number in range(steady, options.micro_batches):
        yield from exchange(host, messages((False, after, True, number)))
        yield from _compute(host, Action(True, 0, number))
        yield from exchange(host, messages((True, before, True, number)))
