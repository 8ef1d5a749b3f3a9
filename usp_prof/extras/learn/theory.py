"""Theory of lessons: expected figures, from the pace, the links and the mesh that the manifest declares.

Each function takes a run's manifest and measured figures, and returns the figure in its metric's unit, or NaN if the
theory does not apply. Compute times are the paced ones: F, I and W milliseconds per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm, nan

from usp_prof.contract import Manifest, ModelEntry
from usp_prof.schedule import Schedule, Shape

_MS = 1e6
_FP32 = 4
_BUCKETS = 4
"""Minimum number of gradient buckets in the trainer; the small models of the lessons have exactly this number."""
_TENSORS_OF_LAYER, _TENSORS_BESIDE = 9, 3
"""Weights per layer (four projections, three of the feed-forward block, two norms); embedding, last norm, head."""


def pace(manifest: Manifest) -> tuple[float, ...]:
    """Return the paced waits per layer in ns: forward, input gradient, weight gradient, ring attention, experts."""
    times = [float(part) * _MS for part in str(manifest.options["pace"]).split(",")]
    return (*times, *[0.0] * (5 - len(times)))


def layers_time(manifest: Manifest) -> float:
    """Return the paced compute per step: forward and backward of every layer, per accumulation pass."""
    return _model(manifest).layers * sum(pace(manifest)[:3]) * max(1, manifest.gradient_accumulation)


def gradients_time(manifest: Manifest) -> float:
    """Return the time of a ring all-reduce of all gradients: each rank sends 2(n-1)/n of them over its link."""
    link = next((fault for fault in manifest.faults if fault["kind"] == "slow_link"), None)
    if link is None or not link["mbps"]:
        return nan
    ranks = manifest.mesh["dp"]
    sent_bits: float = 8 * 2 * (ranks - 1) / ranks * _FP32 * _model(manifest).parameters
    return sent_bits / (float(link["mbps"]) * 1e6) * 1e9


def exposed_gradients(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the time of the gradients' all-reduces that is not hidden by backward.

    Without overlap, all of it is exposed. With overlap, bucket k of b is ready when k/b of the last backward is done,
    and the link transfers one bucket after another.
    """
    all_reduce_ns = gradients_time(manifest)
    if any(fault["kind"] == "unoverlapped" for fault in manifest.faults):
        return all_reduce_ns
    backward = _model(manifest).layers * sum(pace(manifest)[1:3])
    end = 0.0
    for bucket in range(1, _BUCKETS + 1):
        end = max(end, bucket / _BUCKETS * backward) + all_reduce_ns / _BUCKETS
    return end - backward


def data_parallel_step(manifest: Manifest, measured: Mapping[str, float]) -> float:
    """Return the paced compute plus the exposed gradient time."""
    return layers_time(manifest) + exposed_gradients(manifest, measured)


def gradient_messages(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the messages per step if each gradient is one message; NaN with buckets, which are cut by bytes."""
    if not any(fault["kind"] == "unbucketed" for fault in manifest.faults):
        return nan
    return _TENSORS_OF_LAYER * _model(manifest).layers + _TENSORS_BESIDE


def model_states(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the bytes per rank of weights (4 per parameter), gradients (4) and Adam's moments (8).

    Weights in bf16 (2 per parameter) have fp32 master copies, which count as optimizer state. ZeRO divides by dp. tp
    and pp divide everything, evenly except for norms and the first and last stage.
    """
    is_mixed = manifest.dtype == "bf16"
    weights = 2.0 if is_mixed else 4.0
    gradients, optimizer = 4.0, 12.0 if is_mixed else 8.0
    mesh = manifest.mesh
    ranks, stage = mesh.get("dp", 1), manifest.zero_stage
    held = weights / (ranks if stage >= 3 else 1)
    held += gradients / (ranks if stage >= 2 else 1)
    held += optimizer / (ranks if stage >= 1 else 1)
    return held * _model(manifest).parameters / (mesh.get("tp", 1) * mesh.get("pp", 1))


def sent_gradients(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the bytes sent per rank for N gradients or weights: 2N(n-1)/n for an all-reduce or its two halves.

    ZeRO-3 gathers the layers' weights once more for backward, except those of the embedding and the head.
    """
    ranks, model = manifest.mesh["dp"], _model(manifest)
    sent = 2 * model.parameters
    if manifest.zero_stage == 3:
        sent += model.parameters - model.embedding_parameters * (1 if model.tied_embeddings else 2)
    return (ranks - 1) / ranks * _FP32 * sent


def sent_activations(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the activation bytes sent per rank for tensor parallelism: 8(n-1)/n or 10(n-1)/n of a tensor per layer.

    A layer has two blocks. Each starts with a gather and ends with a scatter, in forward and backward. An all-reduce in
    place of such a pair sends the same bytes. Leaving the embedding and entering the head adds 4(n-1)/n. With sequence
    parallelism, backward gathers the input of each block again, unless products run chunk by chunk.
    """
    ranks, model = manifest.mesh["tp"], _model(manifest)
    tensor = manifest.micro_batch_tokens * model.hidden * _width(manifest)
    gathers_again = manifest.options.get("sequence_parallel", True) and not manifest.options.get("tp_async", False)
    return ((10 if gathers_again else 8) * model.layers + 4) * (ranks - 1) / ranks * tensor


def sent_context(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the bytes sent per rank for attention over a sharded sequence, including gradients.

    - Ring: n-1 blocks of keys and values in forward and again in backward, and n blocks of their gradients.
    - All-gather: (n-1)/n of all keys and values, and their gradients back.
    - Ulysses: (n-1)/n of the queries, keys, values and outputs of the rank's own tokens, and their gradients back.
    """
    ranks, model = manifest.mesh["cp"], _model(manifest)
    method = manifest.options.get("cp_method", "ring")
    token = _width(manifest) * model.head_dim  # bytes per token and head
    own_tokens = manifest.micro_batch_tokens / ranks
    keys_and_values = 2 * own_tokens * model.kv_heads * token
    if method == "ring":
        sent = (3 * ranks - 2) * keys_and_values
    elif method == "allgather":
        sent = 2 * (ranks - 1) * keys_and_values
    else:
        heads = lcm(model.kv_heads, ranks)  # keys and values are repeated until each rank has a head
        sent = 2 * (ranks - 1) / ranks * 2 * own_tokens * (model.heads + heads) * token
    gradients = 2 * (ranks - 1) / ranks * _FP32 * model.parameters
    return model.layers * sent + gradients


def layers_of_a_rank(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the paced compute per step of one rank's layers, over all micro-batches."""
    return layers_time(manifest) * max(1, manifest.micro_batches) / manifest.mesh.get("pp", 1)


def recomputed_step(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the paced compute, plus a second forward of each layer with full recomputation.

    Selective recomputation repeats only unpaced work, so its theory is the step without recomputation.
    """
    again = _model(manifest).layers * pace(manifest)[0] if manifest.recompute == "full" else 0.0
    return layers_time(manifest) + again


def textbook_bubble(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the schedule's textbook bubble, assuming F = I = W."""
    chunks = max(len(held) for held in manifest.stages.values())
    shape = Shape(manifest.mesh["pp"], manifest.micro_batches, chunks)
    return Schedule(manifest.schedule).traits.bubble(shape)


def ring_imbalance(manifest: Manifest, _: Mapping[str, float]) -> float:
    """Return the slowest rank's compute over the mean: the last of n contiguous shards has (2n-1)/n times the work."""
    attention = 3 * pace(manifest)[3]  # forward, and backward, which takes twice as long
    ranks = manifest.mesh["cp"]
    share = (2 * ranks - 1) / ranks if manifest.options.get("cp_layout") == "contiguous" else 1.0
    rest = sum(pace(manifest)[:3])
    return (rest + share * attention) / (rest + attention)


def experts_step(manifest: Manifest, measured: Mapping[str, float]) -> float:
    """Return the paced compute, with the experts' time of the fullest rank, from the measured imbalance."""
    experts = 3 * pace(manifest)[4] * measured["moe_imbalance"]
    return layers_time(manifest) + _model(manifest).layers * experts


def _width(manifest: Manifest) -> int:
    """Return the bytes per element of an activation."""
    return 2 if manifest.dtype == "bf16" else 4


def _model(manifest: Manifest) -> ModelEntry:
    assert manifest.model is not None  # noqa: S101 - the trainer always tells it
    return manifest.model


THEORIES: dict[str, Callable[[Manifest, Mapping[str, float]], float]] = {
    function.__name__: function
    for function in (
        data_parallel_step,
        exposed_gradients,
        experts_step,
        gradient_messages,
        layers_of_a_rank,
        model_states,
        recomputed_step,
        ring_imbalance,
        sent_activations,
        sent_context,
        sent_gradients,
        textbook_bubble,
    )
}
"""Theories by the name that a lesson's figure refers to."""
