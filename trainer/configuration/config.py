"""Configuration: checked options, and properties derived from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.configuration.faults import Fault
from trainer.configuration.layout import Layout
from trainer.configuration.options import Options
from trainer.configuration.shape import ModelShape
from usp_prof.schedule import Schedule, Traits

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True, slots=True)
class Config:
    """Checked options, and properties derived from them."""

    options: Options
    layout: Layout
    shape: ModelShape
    micro_batch: int
    """Sequences in a micro-batch."""
    faults: tuple[Fault, ...] = ()

    @property
    def schedule(self) -> str:
        """The pipeline's schedule; empty without a pipeline."""
        return self.options.schedule if self.layout.pp > 1 else ""

    @property
    def traits(self) -> Traits:
        """Properties of the pipeline's schedule; those of 1F1B without a pipeline (one stage, a whole backward)."""
        return Schedule(self.schedule or Schedule.ONE_F_ONE_B).traits

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks."""
        return self.layout.pp * stages_per_rank(self.schedule, self.options)

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages of a rank of the pipeline: one, every pp-th, or one from each end."""
        if self.traits.is_v_shaped:
            return [rank, self.stages - 1 - rank]
        return list(range(rank, self.stages, self.layout.pp))

    @property
    def sums_gradients(self) -> bool:
        """Whether several ranks have gradients of the same weights: ranks of dp, cp or (experts) efsdp."""
        return self.layout.dp * self.layout.cp > 1 or self._shares_experts

    @property
    def can_shard(self) -> bool:
        """Whether some of these ranks belong to one replica, so that ZeRO can shard over them."""
        return self.layout.dp_shard * self.layout.cp > 1 or self._shares_experts

    @property
    def _shares_experts(self) -> bool:
        """Whether several ranks of a replica hold the same experts; those of tp may."""
        return self.shape.experts > 0 and self.layout.expert_pool > self.layout.ep

    @property
    def compute(self) -> torch.dtype:
        """The data type that the layers compute in."""
        return COMPUTE[self.options.dtype]

    @property
    def device(self) -> str:
        """Type of device: `cuda` if there is a GPU, except for paced compute, which waits on the host."""
        wanted = self.options.device or ("cpu" if self.options.pace else "cuda")
        return wanted if torch.cuda.is_available() else "cpu"

    @property
    def local_batch(self) -> int:
        """Sequences of a data-parallel rank in an update."""
        return self.options.batch // self.layout.dp

    @property
    def tokens(self) -> int:
        """Tokens in an update over all ranks."""
        return self.options.batch * self.shape.sequence


def stages_per_rank(schedule: str, options: Options) -> int:
    """Return the number of stages per rank under a schedule."""
    fixed = Schedule(schedule or Schedule.ONE_F_ONE_B).traits.stages_per_rank
    return options.stages_per_rank if fixed is None else fixed
