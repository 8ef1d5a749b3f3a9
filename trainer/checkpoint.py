"""Checkpoints: weights, moments and the data position, under global names, so any layout can resume any other.

Each rank writes its boxes of the whole weights (`parallel/weights`); a box on several ranks is written once. On
loading, torch's planner selects the stored boxes that overlap each box of this run. Changing dp, tp, pp, cp, ep, the
ZeRO stage or the pipeline schedule between two runs is therefore no special case.

A checkpoint is written under a temporary name and renamed when every rank is done, so a crash does not damage the
previous one. Training draws no random numbers, and a batch depends on seed and step: there is no generator to store.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata, planner, planner_helpers

from trainer.configuration.config import Config
from trainer.configuration.options import OptionError, Options, flag_of, refuse
from trainer.step import Update

IDENTITY = "identity.json"
FORMAT = 2
"""Version of the written format; format 1 named weights by rank, so only the same layout could read it."""
MODEL_FLAGS = {"layers": "--layers", "experts": "--experts", "top_k": "--top-k"}
"""Sizes of a model that have an option of their own."""
CURVE = ("seed", "data", "batch", "sequence", "capacity", "dtype", "lr", "warmup", "steps", "clip", "weight_decay")
"""Options that may change between two runs, but then change the losses of one uninterrupted run."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a named tensor: its position in the whole weight, and its memory."""

    name: str
    whole_sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    memory: torch.Tensor
    is_stored: bool = True
    """False for a second copy of a weight that is stored elsewhere (a tied embedding)."""

    @property
    def chunk(self) -> metadata.ChunkStorageMetadata:
        """Its position as torch writes it."""
        return metadata.ChunkStorageMetadata(torch.Size(self.offsets), self.memory.shape)


def pieces_of(update: Update) -> Iterator[Piece]:
    """Yield the complete state that the next update needs."""
    for bucket in update.buckets:
        state = update.state_of(bucket)
        tensors = {"weight": bucket.master, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
        for box in bucket.boxes():
            for kind, tensor in tensors.items():
                yield Piece(f"{kind}/{box.name}", box.note.whole_sizes, box.offsets, box.view(tensor), box.note.stored)
    for layer, experts in update.experts.items():
        yield Piece(f"bias/layers.{layer}", tuple(experts.bias.shape), (0,), experts.bias)


class SavePieces(checkpoint.DefaultSavePlanner):
    """Planner of one write per piece; torch drops duplicates of other ranks."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        super().__init__(flatten_state_dict=False)
        self.pieces = {(piece.name, torch.Size(piece.offsets)): piece for piece in pieces if piece.is_stored}

    def create_local_plan(self) -> checkpoint.SavePlan:
        """Return what this rank could write."""
        items = []
        for piece in self.pieces.values():
            properties = metadata.TensorProperties.create_from_tensor(piece.memory)
            data = planner.TensorWriteData(piece.chunk, properties, torch.Size(piece.whole_sizes))
            index = metadata.MetadataIndex(piece.name, piece.chunk.offsets)
            items.append(planner.WriteItem(index, planner.WriteItemType.SHARD, tensor_data=data))
        self.plan = checkpoint.SavePlan(items)
        return self.plan

    def lookup_object(self, index: metadata.MetadataIndex) -> torch.Tensor:
        """Return the memory of a piece that this rank was chosen to write."""
        return self.pieces[index.fqn, index.offset].memory.detach()


class LoadPieces(checkpoint.DefaultLoadPlanner):
    """Planner of the reads of all stored boxes that overlap each piece."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        super().__init__(flatten_state_dict=False)
        self.pieces: dict[str, list[Piece]] = defaultdict(list)
        for piece in pieces:
            self.pieces[piece.name].append(piece)

    def create_local_plan(self) -> checkpoint.LoadPlan:
        """Find the stored boxes."""
        items: list[checkpoint.ReadItem] = []
        for name, pieces in self.pieces.items():
            chunks = [piece.chunk for piece in pieces]
            stored = self.metadata.state_dict_metadata[name]
            items += planner_helpers.create_read_items_for_chunk_list(name, stored, chunks)
        return checkpoint.LoadPlan(items)

    def lookup_tensor(self, index: metadata.MetadataIndex) -> torch.Tensor:
        """Return the memory of a piece; its number counts the pieces of one name."""
        return self.pieces[index.fqn][index.index].memory.detach()


def save(folder: Path, updates: int, config: Config, update: Update) -> None:
    """Write the state after a number of updates."""
    final, partial = folder / f"step-{updates:06d}", folder / f".step-{updates:06d}.partial"
    try:
        checkpoint.save({}, checkpoint_id=partial, planner=SavePieces(pieces_of(update)))
    except checkpoint.CheckpointException as error:
        raise OptionError(f"--checkpoint {folder}: {_reason(error)}", "a folder with room for it") from error
    if dist.get_rank() == 0:
        (partial / IDENTITY).write_text(json.dumps(_identity(config)))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    dist.barrier()


def load(folder: Path, config: Config, update: Update) -> int:
    """Read the newest state in place; return the number of updates made so far."""
    stored = newest(folder)
    updates = check(folder, config)
    update.initialize_state(updates)
    try:
        checkpoint.load({}, checkpoint_id=stored, planner=LoadPieces(pieces_of(update)))
    except checkpoint.CheckpointException as error:
        raise OptionError(f"{stored} cannot be read: {_reason(error)}", _aside(stored)) from error
    update.publish()
    return updates


def newest(folder: Path) -> Path:
    """Find the checkpoint after the most updates."""
    stored = _stored(folder)
    refuse(not stored, f"--checkpoint {folder}: there is none to resume from", "leave --resume out")
    return stored[max(stored)]


def _stored(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by the number of updates before them."""
    numbers = {path: path.name.removeprefix("step-") for path in folder.glob("step-*")}
    return {int(number): path for path, number in numbers.items() if number.isdecimal()}


def check_unused(folder: Path) -> None:
    """Refuse a folder with another run's checkpoints: a later `--resume` would continue that run."""
    if _stored(folder):
        rule = f"--checkpoint {folder} holds checkpoints of an earlier run, up to {newest(folder).name}"
        raise OptionError(rule, "add --resume to continue that run, or choose another --checkpoint")


def check(folder: Path, config: Config) -> int:
    """Refuse a checkpoint of another model; return the number of updates before it."""
    stored = newest(folder)
    try:
        written = json.loads((stored / IDENTITY).read_text())
    except (OSError, ValueError) as error:
        raise OptionError(f"{stored}: {IDENTITY} cannot be read: {error}", _aside(stored)) from error
    is_old = not isinstance(written, dict) or written.get("format") != FORMAT
    rule = f"{stored} was written by another version of the trainer, in a format that this one does not read"
    refuse(is_old, rule, "resume it with that version, or train again into another --checkpoint")
    now = _identity(config)
    other = [name for name in now["model"] if written["model"].get(name) != now["model"][name]]
    if other:
        differs = ", ".join(f"{name} {written['model'].get(name)}, not {now['model'][name]}" for name in other)
        raise OptionError(f"{stored} holds another model: {differs}", _model_hint(written, other))
    return int(stored.name.removeprefix("step-"))


def changes(folder: Path, config: Config) -> list[str]:
    """Return the options, other than the layout, that had different values when the checkpoint was written."""
    written, now = json.loads((newest(folder) / IDENTITY).read_text())["curve"], _identity(config)["curve"]
    return [
        f"{flag_of(item)} {now[item.name]} (was {before})"
        for item in fields(Options)
        if item.name in now and (before := written.get(item.name, item.default)) != now[item.name]
    ]


def _identity(config: Config) -> dict[str, Any]:
    """Return the model, which a resumed run must share with its checkpoint, and the options that it should share."""
    options, model = config.options, asdict(config.shape)
    model.pop("sequence")  # no weight depends on it
    curve = {name: getattr(options, name) for name in CURVE} | {"sequence": config.shape.sequence}
    identity = {"format": FORMAT, "typed": options.model, "model": model, "curve": curve}
    return json.loads(json.dumps(identity))  # type: ignore[no-any-return] # as it is read back


def _model_hint(written: dict[str, Any], other: list[str]) -> str:
    """Return the options that select the stored model."""
    model = "" if set(other) <= MODEL_FLAGS.keys() else f"--model {written['typed']} "
    sizes = {flag: written["model"][name] for name, flag in MODEL_FLAGS.items() if model or name in other}
    if not written["model"]["experts"]:
        sizes.pop("--top-k", None)  # refused without experts
    return model + " ".join(f"{flag} {size}" for flag, size in sizes.items() if size)


def _aside(stored: Path) -> str:
    return f"move {stored} away to resume from the one before it"


def _reason(error: checkpoint.CheckpointException) -> str:
    """Return the first error that torch collected from the ranks, in one line."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {cause or type(cause).__name__}"
