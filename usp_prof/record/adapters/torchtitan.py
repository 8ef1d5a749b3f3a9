"""torchtitan (0.3): `torchtitan.attach(trainer, "traces/my-run")` before `trainer.train()`.

The session replaces torchtitan's own profiler. A custom loop on torchtitan's parallel dims uses
`torchtitan.session(folder, parallel_dims, ...)` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from torchtitan.tools.profiler import Profiler

from usp_prof.record.options import Options
from usp_prof.record.session import Session
from usp_prof.record.session import session as plain_session

if TYPE_CHECKING:
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.trainer import Trainer

_SIZES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dims that make up the world, outermost first; expert parallelism uses the ranks of others."""
_AXES_OF_DIM: dict[str, tuple[str, ...]] = {
    **{axis: (axis,) for axis in (*_SIZES, "ep")},
    "dp": ("dp_replicate", "dp_shard"),
    "efsdp": ("dp_shard",),
}


class Recorder(Profiler):  # type: ignore[misc, unused-ignore] # of a library that need not be there
    """torchtitan's profiler with a session instead of its own traces; its memory snapshots stay."""

    @dataclass(kw_only=True, slots=True)
    class Config(Profiler.Config):  # type: ignore[misc, unused-ignore] # as above
        """torchtitan's configuration, with the session to run."""

        session: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._config.session.__enter__()
        return self

    def step(self) -> None:
        """End a training step."""
        super().step()
        self._config.session.advance()

    def __exit__(self, *error: object) -> bool:
        self._config.session.__exit__(*error)
        return bool(super().__exit__(*error))


def attach(trainer: Trainer, folder: str | Path, *, model: object = None, **options: Unpack[Options]) -> Session:
    """Make a trainer record its training: mesh, groups, batch sizes and dtype come from the trainer itself.

    MFU requires `model`, because torchtitan's own configurations have no plain shape.
    """
    config = trainer.config
    filled: Options = {
        **declared(config.training, config.parallelism, trainer.parallel_dims, trainer.gradient_accumulation_steps),
        **options,
    }
    opened = session(folder, trainer.parallel_dims, model=model, **filled)
    config.profiler = Recorder.Config(
        session=opened,
        enable_memory_snapshot=config.profiler.enable_memory_snapshot,
        memory_snapshot_freq=config.profiler.memory_snapshot_freq,
        save_memory_snapshot_folder=config.profiler.save_memory_snapshot_folder,
    )
    return opened


def session(folder: str | Path, dims: ParallelDims, *, model: object = None, **options: Unpack[Options]) -> Session:
    """Record a loop, like `usp_prof.record.session`, with the mesh and groups of the parallel dims."""
    mesh = {axis: int(getattr(dims, axis)) for axis in _SIZES}
    return plain_session(folder, mesh=mesh, groups=groups_of(dims), model=model, **options)


def groups_of(dims: ParallelDims) -> dict[str | tuple[str, ...], Any]:
    """Return the group of each used dimension; those for data loading or the loss are recognized by name."""
    groups: dict[str | tuple[str, ...], Any] = {}
    for dim, mesh in dims.get_all_one_dimensional_meshes().items():
        # FSDP also shards over context parallelism.
        axes = ("dp_shard", "cp")[: 1 + (dims.cp > 1)] if dim == "fsdp" else _AXES_OF_DIM.get(dim)
        if axes is not None:
            groups.setdefault(axes[0] if len(axes) == 1 else axes, []).append(mesh.get_group())
    return groups


def declared(
    training: TrainingConfig, parallelism: ParallelismConfig, dims: ParallelDims, accumulation: int
) -> Options:
    """Return the manifest fields from the configuration."""
    samples, micro_batches = int(training.local_batch_size), 1
    options: Options = {
        "sequence": int(training.seq_len),
        "gradient_accumulation": accumulation,
        "dtype": training.mixed_precision_param,
        "tokens_per_step": samples * accumulation * dims.dp_replicate * dims.dp_shard * int(training.seq_len),
        "options": {"trainer": "torchtitan"},
    }
    if dims.pp > 1:
        micro_batches = samples // int(parallelism.pipeline_parallel_microbatch_size)
        options["schedule"] = parallelism.pipeline_parallel_schedule
        options["micro_batches"] = micro_batches
    options["micro_batch_tokens"] = samples // micro_batches * int(training.seq_len)
    return options
