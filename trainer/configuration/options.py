"""Options: every setting of the trainer, with its default and help text.

`Options` has one field per option, with its default and help text. `command_line.py` reads them, and the table in
docs/reference/trainer.md is made from them. `rules.py` checks whether options fit together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from usp_prof.schedule import Schedule


class OptionError(Exception):
    """An option, or a combination of them, that cannot be trained; `hint` names the nearest legal choice."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def refuse(broken: object, rule: str, hint: str) -> None:
    """Raise `OptionError` if a rule is broken."""
    if broken:
        raise OptionError(rule, hint)


PROFILER_WARMUP = 1
"""Steps between the skipped and the recorded ones, in which the profiler warms up."""
SCHEDULES = tuple(str(schedule) for schedule in Schedule if schedule.traits.pytorch_name)


def option(  # noqa: PLR0913 - an option has that many properties
    default: Any,  # noqa: ANN401
    text: str,
    *,
    choices: tuple[Any, ...] = (),
    metavar: str = "",
    section: str = "",
    example: str = "",
    needs: str = "",
    positive: bool = False,
    most: float = math.inf,
) -> Any:  # noqa: ANN401
    """Declare one option. `section` starts a new section of `--help`; hints show the `example`.

    The option has no effect without the one that it `needs`. Numbers are 0 to `most`, or above 0 if `positive`.
    """
    metadata = {"help": text, "choices": choices, "metavar": metavar, "section": section, "example": example}
    return field(default=default, metadata={**metadata, "needs": needs, "positive": positive, "most": most})


@dataclass(slots=True)
class Options:
    """Every option with its default; `rules.resolve` chooses sizes of zero."""

    dp: int = option(0, "data-parallel ranks (default: what the other axes leave)", section="data parallelism")
    dp_replicate: int = option(1, "replicas for hybrid sharding over dp / dp-replicate ranks")
    zero: int = option(0, "ZeRO stage: what data-parallel ranks shard", choices=(0, 1, 2, 3))
    prefetch: bool = option(default=True, text="ZeRO-2 and -3: gather the next layer's weights while this one computes")
    bucket_mb: float = option(0.0, "ZeRO-0 and -1: size of a gradient bucket (default: 25 MB, at least four buckets)")

    tp: int = option(0, "tensor-parallel ranks", section="tensor parallelism")
    sequence_parallel: bool = option(
        default=True, text="tensor-parallel ranks hold a slice of the sequence between blocks", needs="tp"
    )
    tp_async: bool = option(default=False, text="split products into chunks to overlap tp communication", needs="tp")

    cp: int = option(0, "context-parallel ranks", section="context parallelism")
    cp_method: str = option(
        "ring", "method of context parallelism", choices=("ring", "ulysses", "allgather"), needs="cp"
    )
    cp_layout: str = option(
        "zigzag", "tokens of each context-parallel rank", choices=("contiguous", "zigzag"), needs="cp"
    )

    pp: int = option(0, "pipeline-parallel ranks", section="pipeline parallelism")
    schedule: str = option("1f1b", "order of the pipeline's actions", choices=SCHEDULES, needs="pp")
    stages_per_rank: int = option(2, "stages per rank with interleaved schedules", needs="pp")
    micro_batches: int = option(0, "micro-batches per pipeline pass (default: twice --pp)")

    ep: int = option(0, "expert-parallel ranks, borrowed from dp, cp and tp", section="experts")
    ep_layout: str = option(
        "outer", "borrow distant ranks (dp first) or adjacent ones", choices=("outer", "inner"), needs="ep"
    )
    experts: int = option(0, "routed experts per layer (default: the model's, or none)")
    top_k: int = option(0, "experts per token (default: the model's, or 2)", needs="experts")
    capacity: float = option(
        0.0, "limit of tokens per expert, in equal shares; the rest is dropped (default: none)", needs="experts"
    )

    recompute: str = option(
        "none", "activations recomputed in backward", choices=("none", "selective", "full"), section="compute"
    )
    offload: str = option("none", "keep masters and moments in host memory", choices=("none", "optimizer"))
    accumulate: int = option(0, "passes per update (default: from --batch and --micro-batch, or one)")
    micro_batch: int = option(0, "sequences per micro-batch (default: from --batch)")
    batch: int = option(0, "sequences per update over all ranks (default: two per micro-batch)")
    dtype: str = option("fp32", "data type of compute; masters stay fp32", choices=("fp32", "bf16", "fp8", "fp64"))
    compile: bool = option(default=False, text="compile the layers with torch.compile")

    model: str = option(
        "tiny", "tiny, small, 100m, 1b, 8b or a config.json", metavar="NAME|FILE", section="model and data"
    )
    layers: int = option(0, "override the model's layers")
    sequence: int = option(0, "override the model's sequence length")
    data: str = option("", "text file to learn, byte by byte (default: synthetic tokens)", metavar="FILE")

    steps: int = option(5, "number of updates", section="updates", positive=True)
    lr: float = option(3e-3, "peak learning rate", positive=True)
    warmup: int = option(2, "updates of linear warm-up; a cosine follows")
    clip: float = option(1.0, "largest gradient norm over the mesh; 0 for none")
    weight_decay: float = option(0.1, "AdamW's weight decay")
    adamw: str = option("fused", "implementation of AdamW", choices=("fused", "foreach", "loop"))
    seed: int = option(0, "seed of weights and data (default: 0)", most=2**40)

    device: str = option("", "device (default: cuda if available)", choices=("cpu", "cuda"), section="recording")
    backend: str = option(
        "", "communication library (default: nccl if each process has a GPU, or gloo)", choices=("nccl", "gloo")
    )
    output: str = option("", "folder of the run (default: traces/<time>-<mesh>)", metavar="FOLDER")
    profile: bool = option(default=False, text="record a trace of every rank")
    profile_skip: int = option(1, "steps before recording starts", needs="profile")
    profile_steps: int = option(2, "steps to record", positive=True, needs="profile")
    profile_memory: bool = option(default=True, text="record allocations too", needs="profile")
    metrics: str = option(
        "text",
        "text and metrics.jsonl in --output, JSON lines on the console alone, or text and a library; also --log",
        choices=("text", "json", "tensorboard", "wandb", "trackio"),
    )
    log_every: int = option(1, "updates per line of live metrics, which shows their means", positive=True)
    flop_convention: str = option("palm", "FLOP convention of the MFU shown", choices=("palm", "matmul", "causal"))

    checkpoint: str = option("", "folder of checkpoints", metavar="FOLDER", section="checkpoints")
    checkpoint_every: int = option(0, "updates between checkpoints (default: at the end)", needs="checkpoint")
    resume: bool = option(default=False, text="continue from the newest checkpoint in --checkpoint", needs="checkpoint")

    pace: str = option(
        "",
        "replace compute by waits: h100, a100, b200, or F,I,W[,A[,E]] ms per layer",
        section="pacing, faults",
        example="h100",
    )
    pace_model: str = option("8b", "model whose layers set the pace", metavar="NAME|FILE", needs="pace")
    fault: Sequence[str] = option(
        (),
        "inject a fault, e.g. slow-rank:rank=2,factor=1.8; repeatable",
        metavar="FAULT",
        example="slow-rank:rank=0,factor=2",
    )
    timeout: int = option(300, "seconds that ranks wait for a lost rank", positive=True, most=10**6)

    def recorded_steps(self, begun: int) -> range:
        """Return the steps that `--profile` records in a run that begins with step `begun`."""
        first = begun + self.profile_skip + PROFILER_WARMUP
        return range(first, first + self.profile_steps)

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, for the manifest."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}


def check_ranges(options: Options) -> None:
    """Refuse numbers that are out of their option's range."""
    for item in fields(options):
        value, flag, most = getattr(options, item.name), flag_of(item), item.metadata["most"]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        suggestion = f"{flag} {1 if isinstance(value, int) else item.default or 1}"
        least = "above zero" if item.metadata["positive"] else "zero or more"
        refuse(not math.isfinite(value), f"{flag} {value} is not a number", suggestion)
        too_small = value < 0 or (value == 0 and item.metadata["positive"])
        refuse(too_small, f"{flag} {value} must be {least}", suggestion)
        refuse(value > most, f"{flag} {value} is above {most}", f"{flag} {most}")


def flag_of(item: Field[Any]) -> str:
    """Return an option's flag on the command line."""
    return "--" + item.name.replace("_", "-")


def flags_of(item: Field[Any]) -> list[str]:
    """Return the names of an option on the command line: torchrun itself refuses --log on Python 3.11."""
    return ["--metrics", "--log"] if item.name == "metrics" else [flag_of(item)]


def described(item: Field[Any]) -> str:
    """Return the help text of an option, with its default if that is informative."""
    text = item.metadata["help"]
    is_zero_stage = item.name == "zero"  # other zeros and empty values change nothing, or the text explains them
    return f"{text} (default: {item.default})" if (item.default or is_zero_stage) and "default:" not in text else text
