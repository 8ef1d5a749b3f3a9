"""Manifest content: this rank's own part, the job's manifest on rank 0, and the model.

Rank 0 collects the other ranks' parts without a collective, which could hang or disturb a step. Each rank stores its
part in the key-value store that every process group has. Rank 0 reads the available parts; at the end it waits for the
rest, up to a time limit, so a dead rank costs only its own part. The model is described as far as needed to count its
work, from a dataclass, a dict or a Hugging Face configuration.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from usp_prof import architecture, conventions
from usp_prof.contract import GroupEntry, Manifest, ModelEntry, model_entry
from usp_prof.record.options import Settings
from usp_prof.record.peak import Peak
from usp_prof.record.surroundings import CPU, Place, Topology, software

_KEY = "usp_prof/record"
_SHORTEST_WAIT_S = 0.01
"""Minimum wait; a store treats a time limit below a millisecond as none, and would wait forever."""


@dataclass(slots=True)
class Part:
    """Facts that only one rank knows."""

    rank: int
    host: str = ""
    device: str = ""
    device_key: str = ""
    coordinates: dict[str, int] = field(default_factory=dict)
    stages: list[int] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    unrecorded_step_ns: float = 0.0
    join_rate: float | None = None
    notes: list[str] = field(default_factory=list)
    final: bool = False


class Exchange:
    """Exchange of all ranks' parts in one session."""

    def __init__(self, world: int, session: int, store: Any | None) -> None:  # noqa: ANN401 - a torch Store, untyped
        self._world = world
        self._session = session
        self._store = store
        self._own: Part | None = None

    def leave(self, part: Part) -> None:
        """Store this rank's part for rank 0; a later part replaces it."""
        self._own = part
        if self._store is not None and part.rank != 0:
            self._store.set(self._key(part.rank, final=part.final), json.dumps(asdict(part)))

    def collect(self, *, wait_seconds: float) -> dict[int, Part]:
        """Return the parts by rank: final ones that arrive in time, else the latest available."""
        parts = {self._own.rank: self._own} if self._own is not None else {}
        deadline = time.monotonic() + wait_seconds
        for rank in range(self._world):
            if rank not in parts and self._store is not None:
                part = self._read(rank, final=True, wait_seconds=max(0.0, deadline - time.monotonic()))
                part = part or self._read(rank, final=False, wait_seconds=0.0)
                if part is not None:
                    parts[rank] = part
        return parts

    def _read(self, rank: int, *, final: bool, wait_seconds: float) -> Part | None:
        key = self._key(rank, final=final)
        store = self._store
        if store is None:
            return None
        try:
            if not store.check([key]):
                if wait_seconds < _SHORTEST_WAIT_S:
                    return None
                store.wait([key], timedelta(seconds=wait_seconds))
            return Part(**json.loads(store.get(key)))
        except RuntimeError:  # the store's time limit has passed, or its host is gone
            return None

    def _key(self, rank: int, *, final: bool) -> str:
        return f"{_KEY}/{self._session}/{rank}/{'final' if final else 'start'}"


# Manifest entries from the parts.


def complete_part(part: Part, place: Place, topology: Topology, settings: Settings) -> None:
    """Add to this rank's part what is known at the start of the session."""
    part.host, part.device, part.device_key = place.host, place.device, place.device_key
    part.coordinates = topology.coordinates.get(place.rank, {})
    part.stages = list(settings.declared.stages)
    part.groups = [asdict(group) for group in topology.groups]


def begin(place: Place, topology: Topology, model: ModelEntry | None, settings: Settings, peak: Peak) -> Manifest:
    """Build the manifest entries that are equal on all ranks."""
    declared, window = settings.declared, settings.window
    return Manifest(
        name=declared.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mesh=dict(topology.mesh),
        axis_order=list(topology.mesh),
        coordinates={str(rank): dict(place) for rank, place in sorted(topology.coordinates.items())},
        schedule=declared.schedule,
        micro_batches=declared.micro_batches,
        gradient_accumulation=declared.gradient_accumulation,
        tokens_per_step=declared.tokens_per_step,
        micro_batch_tokens=declared.micro_batch_tokens,
        model=model,
        recompute=declared.recompute,
        dtype=dtype_name(declared.dtype),
        zero_stage=declared.zero_stage,
        device=declared.device or place.device,
        devices_per_node=place.devices_per_node,
        peak_flops=declared.peak_flops or peak.flops,
        peak_source=declared.peak_source if declared.peak_flops else peak.source,
        processes_per_device=place.processes_here if place.device == CPU else 1,
        software=software(),
        paced=declared.paced,
        faults=[dict(fault) for fault in declared.faults],
        options={
            **_plain(declared.options or {}),
            "recorded": {**asdict(window), **asdict(settings.content)},
        },
    )


def complete(base: Manifest, parts: Mapping[int, Part], world: int) -> Manifest:
    """Combine the common entries with what the ranks in `parts` reported."""
    manifest = Manifest.from_dict(base.to_dict())
    groups: dict[tuple[str, tuple[int, ...]], GroupEntry] = {}
    for rank, part in sorted(parts.items()):
        manifest.hosts[str(rank)] = part.host
        if part.coordinates:
            manifest.coordinates[str(rank)] = {**manifest.coordinates.get(str(rank), {}), **part.coordinates}
        if part.stages:
            manifest.stages[str(rank)] = part.stages
        if part.unrecorded_step_ns > 0:
            manifest.unrecorded_step_ns[str(rank)] = part.unrecorded_step_ns
        if part.join_rate is not None:
            manifest.join_rate[str(rank)] = part.join_rate
        for values in part.groups:
            _merge(groups, GroupEntry(**values))
        manifest.notes += [f"rank {rank}: {note}" for note in part.notes]
    manifest.groups = [groups[key] for key in sorted(groups, key=_group_order)]
    manifest.coordinates = dict(sorted(manifest.coordinates.items(), key=lambda item: int(item[0])))
    sharing = Counter((part.host, part.device_key) for part in parts.values())
    if sharing:
        counted = max(sharing.values())
        manifest.processes_per_device = counted if len(parts) == world else max(counted, base.processes_per_device)
    return manifest


def silent(parts: Mapping[int, Part], world: int) -> list[str]:
    """Return notes on ranks that did not report the end of their recording: they died, were killed, or hang."""
    return [
        f"rank {rank}: did not end its recording" for rank in range(world) if rank not in parts or not parts[rank].final
    ]


def dtype_name(dtype: object) -> str:
    """Return the short name of a dtype: bf16, fp16, fp32, fp64; others are formatted as they are."""
    name = str(dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}.get(name, name)


def _merge(groups: dict[tuple[str, tuple[int, ...]], GroupEntry], entry: GroupEntry) -> None:
    first_entry = groups.setdefault((entry.name, tuple(entry.ranks)), entry)
    first_entry.axes += [axis for axis in entry.axes if axis not in first_entry.axes]


def _group_order(key: tuple[str, tuple[int, ...]]) -> tuple[bool, int, str, tuple[int, ...]]:
    name, ranks = key
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name, ranks)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever an option holds
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


_ALIASES: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "model_type", "_name_or_path"),
    "layers": ("layers", "num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden", "hidden_size", "dim", "d_model", "n_embd"),
    "heads": ("heads", "num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("kv_heads", "num_key_value_heads", "n_kv_heads", "num_query_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn_hidden": ("ffn_hidden", "intermediate_size", "hidden_dim", "ffn_hidden_size", "n_inner", "d_ff"),
    "vocab": ("vocab", "vocab_size"),
    "sequence": ("sequence", "seq_len", "sequence_length", "max_seq_len"),
    "experts": ("experts", "num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts"),
    "experts_per_token": ("experts_per_token", "num_experts_per_tok", "top_k", "moe_router_topk"),
    "shared_experts": ("shared_experts", "n_shared_experts", "num_shared_experts"),
    "expert_ffn_hidden": ("expert_ffn_hidden", "moe_intermediate_size", "moe_ffn_hidden_size"),
    "moe_layers": ("moe_layers",),
    "gated_ffn": ("gated_ffn",),
    "tied_embeddings": ("tied_embeddings", "tie_word_embeddings"),
    "parameters": ("parameters",),
    "active_parameters": ("active_parameters",),
    "embedding_parameters": ("embedding_parameters",),
    "flop_per_token": ("flop_per_token",),
}
"""Names of each field in configurations: ours, Hugging Face's, torchtitan's, nanoGPT's, Megatron's."""

_NOT_PLAIN = (
    "sliding_window", "window_size", "layer_types", "kv_lora_rank", "multi_latent_attention", "mtp_num_layers",
    "first_k_dense_replace", "moe_layer_freq", "n_dense_layers", "linear_num_value_heads", "attention_chunk_size",
)  # fmt: skip
"""Fields of other libraries' configurations whose models cannot be counted as a plain decoder."""


def describe_model(model: object, sequence: int = 0) -> ModelEntry | None:
    """Read a model's description, or return `None`; `sequence` is the run's length, not the model's maximum.

    A Hugging Face configuration is read layer by layer. If that fails, the entry's notes give the reason, and it has no
    FLOP. Multi-token-prediction layers are not counted, because Hugging Face's classes do not build them.
    """
    if model is None:
        return None
    if isinstance(model, ModelEntry):
        return conventions.complete(replace(model, sequence=sequence or model.sequence))
    values = _values(getattr(model, "config", model))
    if architecture.is_configuration(values):
        return _read_layers(values, sequence)
    not_plain = [name for name in _NOT_PLAIN if values.get(name)]
    if not_plain and not values.get("flop_per_token"):
        return _uncounted(values, sequence, f"it has {', '.join(not_plain)}: give its Hugging Face configuration")
    entry = {name: value for name, aliases in _ALIASES.items() if (value := _first(values, aliases)) not in {None, ""}}
    wrong = {name: value for name, value in entry.items() if _is_no_size(name, value)}
    described = model_entry({name: value for name, value in entry.items() if name not in wrong})
    described.notes += [
        f"{name} = {value!r} of the model is left out: it is not a size" for name, value in wrong.items()
    ]
    described.sequence = sequence or described.sequence
    if not described.head_dim and described.heads:
        described.head_dim = described.hidden // described.heads
    if not described.kv_heads:
        described.kv_heads = described.heads
    return conventions.complete(described)


def _is_no_size(name: str, value: Any) -> bool:  # noqa: ANN401 - a configuration's value
    """Return whether a field that counts something has text, a negative number or none."""
    return (isinstance(value, str) and name != "name") or (
        isinstance(value, (int, float)) and not 0 <= value < math.inf
    )


def _read_layers(values: Mapping[str, Any], sequence: int) -> ModelEntry:
    try:
        described = architecture.read(values)
    except architecture.ArchitectureError as error:
        return _uncounted(values, sequence, str(error))
    described.sequence = sequence
    return conventions.complete(described)


def _uncounted(values: Mapping[str, Any], sequence: int, reason: str) -> ModelEntry:
    """Return an entry with only the name and the reason; sizes would be counted as a plain model's."""
    name = str(_first(values, _ALIASES["name"]) or "")
    return ModelEntry(name=name, sequence=sequence, notes=[f"the model's FLOP cannot be counted: {reason}"])


def check_model(model: object) -> None:
    """Raise `TypeError` for an object that cannot hold a model's description."""
    if (
        model is not None
        and not isinstance(model, Mapping)
        and not hasattr(model, "__dict__")
        and not is_dataclass(model)
    ):
        raise TypeError(f"model is a configuration (a dataclass, a dict or Hugging Face's), not {model!r}")


def _values(model: object) -> Mapping[str, Any]:
    if isinstance(model, Mapping):
        return model
    to_dict = getattr(model, "to_dict", None)
    # Before dataclasses: Hugging Face's are dataclasses too, and store the model's type outside of the fields.
    if callable(to_dict):
        return dict(to_dict())
    if is_dataclass(model) and not isinstance(model, type):
        return asdict(model)
    return dict(vars(model))


def _first(values: Mapping[str, Any], aliases: tuple[str, ...]) -> Any:  # noqa: ANN401 - a configuration's value
    for alias in aliases:
        value = values.get(alias)
        if isinstance(value, (str, bool, int, float)) or (alias == "flop_per_token" and isinstance(value, Mapping)):
            return value
    return None
