"""Layout of a job as far as edits change it: degrees, sharding, recomputation, schedule, types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usp_prof.contract import Manifest, ModelEntry
    from usp_prof.tables.table_set import TableSet

AXES = ("dp", "tp", "pp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout; 0, -1 and "" are not known. `micro_batches` counts passes between two updates on one replica."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = -1
    recompute: str = ""
    schedule: str = ""
    chunks: int = 1
    micro_batches: int = 0
    micro_batch_tokens: int = 0
    tokens_per_step: int = 0
    dtype: str = ""
    device: str = ""
    model: ModelEntry | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks; those of ep are borrowed."""
        return self.dp * self.tp * self.pp * self.cp

    def degree(self, axis: str) -> int:
        """Give one axis' size."""
        return int(getattr(self, axis))

    def resized(self, axis: str, size: int) -> Layout:
        """Give the layout with another size of one axis."""
        return replace(self, **{axis: size})  # type: ignore[arg-type]


def layout_of(tables: TableSet) -> Layout:
    """Read the layout off the manifest, else as much of it as the groups tell."""
    manifest = tables.manifest
    if manifest is None:
        return Layout(**{axis: size for axis, size in tables.topology.axes.items() if axis in AXES})  # type: ignore[arg-type]
    sizes = manifest.mesh
    data = sizes.get("dp", 0) or prod(sizes.get(name, 1) for name in ("dp_replicate", "dp_shard"))
    return Layout(
        dp=data,
        **{axis: sizes.get(axis, 1) for axis in AXES if axis != "dp"},
        zero=manifest.zero_stage,
        recompute=manifest.recompute,
        schedule=manifest.schedule,
        chunks=_chunks(manifest),
        micro_batches=max(manifest.micro_batches, manifest.gradient_accumulation),
        micro_batch_tokens=manifest.micro_batch_tokens,
        tokens_per_step=manifest.tokens_per_step,
        dtype=manifest.dtype,
        device=tables.assumptions.device or manifest.device,
        model=tables.assumptions.model or manifest.model,
    )


def _chunks(manifest: Manifest) -> int:
    return max((len(stages) for stages in manifest.stages.values()), default=1)
