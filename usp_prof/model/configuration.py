"""How would a model be spread over devices? The degrees of the axes and what else decides about memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.schedule import named

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry


class Recompute(StrEnum):
    """What backward computes once more instead of keeping it."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to train: degrees of the axes, ZeRO stage, micro-batch size (sequences) and how many of them a step has.

    `ep` is carved out of `dp` x `cp`, as torchtitan and Megatron do, so that it takes no devices of its own.
    `micro_batches` counts those that one data-parallel rank works through in a step.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    recompute: Recompute = Recompute.NONE
    dtype: str = "bf16"

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def batch(self) -> int:
        """How many sequences a step has over all ranks."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def shards(self) -> int:
        """Over how many ranks a parameter outside the experts is replicated, and may be sharded."""
        return self.dp * self.cp

    def __str__(self) -> str:
        """Write it as a person would: only what is not the default."""
        axes = [f"{name}{size}" for name, size in self.degrees().items() if size > 1] or ["1 device"]
        words = [" ".join(axes), f"{self.micro_batches}x{self.micro_batch}"]
        if self.zero:
            words.append(f"ZeRO-{self.zero}")
        if self.pp > 1:
            words.append(self.schedule + (f" v={self.chunks}" if self.chunks > 1 else ""))
        if self.recompute is not Recompute.NONE:
            words.append(f"recompute {self.recompute}")
        return ", ".join(words)

    def degrees(self) -> dict[str, int]:
        """Give the degree of each axis."""
        return {"dp": self.dp, "cp": self.cp, "tp": self.tp, "pp": self.pp, "ep": self.ep}


def broken_rule(model: ModelEntry, configuration: Configuration) -> str:
    """Name the first rule that makes a configuration impossible for a model; empty when there is none."""
    c = configuration
    if min(*c.degrees().values(), c.micro_batch, c.micro_batches, c.chunks) < 1:
        return "every degree and count is at least 1"
    rules = (
        (model.heads % c.tp, f"tp={c.tp} does not divide the {model.heads} attention heads"),
        (
            bool(model.kv_heads) and max(model.kv_heads, c.tp) % min(model.kv_heads, c.tp),
            f"tp={c.tp} and {model.kv_heads} key/value heads do not divide one another",
        ),
        (model.sequence % (2 * c.cp) if c.cp > 1 else 0, f"cp={c.cp} needs a sequence that 2 x cp divides"),
        (model.sequence % c.tp, f"tp={c.tp} does not divide the sequence of {model.sequence} tokens"),
        (c.pp * c.chunks > model.layers, f"{c.pp} x {c.chunks} stages are more than the {model.layers} layers"),
        (c.ep > 1 and not model.experts, f"ep={c.ep} needs a model with experts"),
        (bool(model.experts) and model.experts % c.ep, f"ep={c.ep} does not divide the {model.experts} experts"),
        (c.shards % c.ep, f"ep={c.ep} does not divide dp x cp = {c.shards}"),
        (not 0 <= c.zero <= 3, "ZeRO has stages 0 to 3"),
        (
            c.chunks > 1 and _is_looped(c.schedule) and c.micro_batches % c.pp,
            f"{c.schedule} needs micro-batches in multiples of pp={c.pp}, not {c.micro_batches}",
        ),
    )
    return next((sentence for broken, sentence in rules if broken), "")


def _is_looped(name: str) -> bool:
    schedule = named(name)
    return schedule is not None and schedule.traits.is_looped
