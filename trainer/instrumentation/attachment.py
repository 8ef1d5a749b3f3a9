"""Attachment: timers, faults and marks, wrapped around the methods of a finished stage.

The code of the model and its parallelism contains none of them. A wrapper replaces one method of one object.
Recomputation runs it too, because it calls the same method again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from trainer.instrumentation.pacing import LayerTimer, Pace
from trainer.model.decoder import Decoder
from trainer.model.experts import Experts
from trainer.parallel.collectives import Group, all_reduce
from trainer.parallel.expert_parallel import Route
from trainer.parallel.ring_attention import RingAttention
from trainer.step import Update
from usp_prof import record


def wrap(owner: object, method: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method of one object by a wrapper, which gets the method as its first argument."""
    setattr(owner, method, partial(wrapper, getattr(owner, method)))


def attach(decoder: Decoder, timer: LayerTimer | None, router_bias: torch.Tensor | None, local_sequence: int) -> None:
    """Attach a timer, a router fault and the experts' marks to a stage.

    `local_sequence` is the number of tokens of this context-parallel rank.
    """
    for layer in decoder.layers.values():
        if timer is not None:
            wrap(layer, "run", partial(_time_layer, timer))
        if isinstance(timer, Pace):
            wrap(layer.attention, "attend", partial(_pace_documents, timer))
        if isinstance(layer.ffn, Experts):
            if isinstance(timer, Pace) and timer.experts:
                wrap(layer.ffn.weights, "forward", partial(_pace_experts, timer, layer.ffn.pairs))
            wrap(layer.ffn.weights, "forward", _mark_experts)
            if router_bias is not None:
                wrap(layer.ffn, "preferences", partial(_prefer, router_bias))
    if isinstance(timer, Pace):
        # torch stops a recomputation once it has every tensor, before the wait at the layer's end.
        decoder.forward = set_checkpoint_early_stop(False)(decoder.forward)
        attention = next(iter(decoder.layers.values())).attention.core  # one for all layers
        if timer.attention and isinstance(attention, RingAttention):
            # Pairs of a query and a key, if all ranks have equal work.
            pairs = attention.group.size * local_sequence**2 / 2
            wrap(attention, "attend", partial(_pace_tile, timer, pairs, "fwd"))
            wrap(attention, "attend_backward", partial(_pace_tile, timer, pairs, "dgrad"))


def _time_layer(timer: LayerTimer, run: Callable[..., Any], x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, Any]:  # noqa: ANN401
    out, load = run(timer.enter(x), *rest)
    return timer.leave(out), load


def _pace_documents(pace: Pace, attend: Callable[..., Any], *tensors: torch.Tensor, lengths: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Wait for attention within documents, each of which costs its length squared."""
    q, k, v = tensors
    if lengths:
        q = pace.work(q, pace.attention * sum(length**2 for length in lengths) / sum(lengths) ** 2)
    return attend(q, k, v, lengths=lengths)


def _pace_experts(
    pace: Pace, pairs: int, forward: Callable[..., torch.Tensor], x: torch.Tensor, route: Route | None
) -> torch.Tensor:
    """Wait for this rank's share of the experts' work."""
    return pace.work(forward(x, route), pace.experts * x.shape[:-1].numel() / pairs)


def _pace_tile(pace: Pace, pairs: float, phase: str, attend: Callable[..., Any], *tensors: Any, causal: bool) -> Any:  # noqa: ANN401
    """Wait for one tile's share of attention; backward takes twice as long, and its second argument has the keys."""
    result = attend(*tensors, causal=causal)
    queries, keys = tensors[0], tensors[1] if phase == "fwd" else tensors[1][1]
    area = queries.shape[2] * keys.shape[2] / (2 if causal else 1)
    pace.wait(phase, pace.attention * (1 if phase == "fwd" else 2) * area / pairs)
    return result


def _mark_experts(forward: Callable[..., torch.Tensor], x: torch.Tensor, route: Route | None) -> torch.Tensor:
    """Mark the experts' computation with its tokens; with a capacity, the host knows only the number of slots."""
    rows = x.shape[:-1].numel()
    with record.expert_load(rows, route.experts) if route is not None else record.mark("moe", "slots", slots=rows):
        return forward(x, route)


def _prefer(bias: torch.Tensor, preferences: Callable[..., torch.Tensor], scores: torch.Tensor) -> torch.Tensor:
    """Send more tokens to some experts."""
    return preferences(scores) + bias


def attach_blocking_sync(update: Update, group: Group) -> None:
    """Make the host wait for the loss of all ranks after each pass, as some loops do to print it."""

    def run_and_wait(run_pass: Callable[..., torch.Tensor], *arguments: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
        loss = run_pass(*arguments, **options)
        with record.mark("fault", "blocking_sync"):
            all_reduce(loss.clone(), group).item()
        return loss

    wrap(update, "run_pass", run_and_wait)
