"""Edits in words, such as "transfers 2x faster (axis dp)"."""

from __future__ import annotations

from usp_prof.model.edit import Edit

_WORDS = {
    "compute_faster": "compute {value}x faster",
    "rank_as_peers": "rank {value} performs like its peers",
    "link_as_peers": "transfers of group {value} as fast as other groups'",
    "comm_faster": "transfers {value}x faster",
    "comm_hidden": "communication hidden",
    "comm_removed": "no communication",
    "bucketed": "small collectives in buckets of {value} bytes",
    "no_launch_gaps": "no waiting for launches",
    "no_input_wait": "no waiting for input",
    "no_pauses": "no host pauses",
    "even_work": "even work on {value}",
    "no_blocking": "no blocking host calls",
    "pinned_copies": "copies from pinned memory",
    "host_as_peers": "host of rank {value} performs like its peers",
    "no_allocator_calls": "no device allocations",
    "fused_optimizer": "fused optimizer",
    "op_faster": "op {value}x faster",
    "no_interference": "compute not slowed by communication",
    "sync_overlapped": "gradient reduction during backward",
    "bandwidth": "{value}x bandwidth",
    "latency": "latency divided by {value}",
    "algorithm": "{value} collectives",
    "recompute": "{value} recomputation",
    "zero": "ZeRO-{value}",
    "prefetch": "weight prefetch {value}",
    "micro_batches": "{value} micro-batches",
    "dp": "{value}-way data parallel",
    "tp": "{value}-way tensor parallel",
    "cp": "{value}-way context parallel",
    "ep": "{value}-way expert parallel",
    "comm_dtype": "collectives in {value}",
    "matmul_dtype": "matrix products in {value}",
    "device": "on {value}",
    "ideal": "all ranks perform like their peers",
    "schedule": "{value} schedule",
    "balance_stages": "equal work on all stages",
    "move_layers": "layers moved: {value}",
}
"""Changes in words, by the name of the edit."""
_PLACES = {"m": "{value} micro-batches", "v": "{value} stages per rank"}
"""Places that are not named by their key."""


def in_words(edit: Edit) -> str:
    """Return a change in words, with its places: "transfers 2x faster (axis dp)"."""
    template = _WORDS.get(edit.name, "{name} {value}")
    if edit.value == "all":
        template = template.replace("rank {value} performs like its", "all slower ranks perform like their")
    if "+" in edit.value:
        template = template.replace("rank {value} performs like its", "ranks {value} perform like their")
    text = template.format(name=edit.name.replace("_", " "), value=edit.value.replace("+", " and ")).strip()
    places = ", ".join(_PLACES.get(key, f"{key} {{value}}").format(value=value) for key, value in edit.places)
    if edit.name == "schedule" and edit.value == "same":  # only its places change
        return places or "the same schedule"
    return f"{text} ({places})" if places else text
