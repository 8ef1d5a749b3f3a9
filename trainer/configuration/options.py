"""Options: everything that a user can ask of the trainer, and how it is read.

`Options` is the whole list: one field an option, with its default and its line of help. Three things are made from it:
    the command line      `--tp 2` sets `tp`
    a TOML file           `--config run.toml` reads lines such as `tp = 2`, checked as if they were typed
    the documentation     the table of options in docs/trainer.md
Whether options fit together is another question, which `rules.py` answers.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from usp_prof.schedule import Schedule

# Errors: what is wrong with the options, and what to type instead.


class OptionError(Exception):
    """An option, or a combination of them, that cannot be trained; `hint` names the nearest legal choice."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def refuse(broken: object, rule: str, hint: str) -> None:
    """Raise `OptionError` where a rule is broken."""
    if broken:
        raise OptionError(rule, hint)


SCHEDULES = tuple(str(schedule) for schedule in Schedule if schedule.traits.pytorch_name)


def option(default: Any, text: str, *, choices: tuple[Any, ...] = (), metavar: str = "", section: str = "") -> Any:  # noqa: ANN401
    """Declare one option; `section` heads it and those behind it in `--help`."""
    metadata = {"help": text, "choices": choices, "metavar": metavar, "section": section}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(slots=True)
class Options:
    """Every option with its default; zero for a size means: choose one."""

    dp: int = option(0, "data-parallel ranks (default: what the other axes leave)", section="data parallelism")
    dp_replicate: int = option(1, "replicas among them: hybrid sharding over dp / dp-replicate ranks")
    zero: int = option(0, "ZeRO stage: what data-parallel ranks shard", choices=(0, 1, 2, 3))
    prefetch: bool = option(default=True, text="ZeRO-2 and -3: gather the next layer's weights while this one computes")
    bucket_mb: float = option(0.0, "ZeRO-0 and -1: size of a gradient bucket (default: 25 MB, at least four buckets)")

    tp: int = option(0, "tensor-parallel ranks", section="tensor parallelism")
    sequence_parallel: bool = option(default=True, text="tensor ranks hold a slice of the sequence between blocks")
    tp_async: bool = option(default=False, text="cut products into chunks, so that tp's messages hide behind them")

    cp: int = option(0, "context-parallel ranks", section="context parallelism")
    cp_method: str = option("ring", "how attention sees the whole sequence", choices=("ring", "ulysses", "allgather"))
    cp_layout: str = option("zigzag", "which tokens a context rank holds", choices=("contiguous", "zigzag"))

    pp: int = option(0, "pipeline-parallel ranks", section="pipeline parallelism")
    schedule: str = option("1f1b", "order of the pipeline's actions", choices=SCHEDULES)
    stages_per_rank: int = option(2, "stages on each rank under the interleaved schedules")
    micro_batches: int = option(0, "micro-batches of a pipeline pass (default: twice --pp)")

    ep: int = option(0, "expert-parallel ranks, borrowed from dp, cp and tp", section="experts")
    ep_layout: str = option("outer", "borrow ranks far apart (dp first) or neighbours", choices=("outer", "inner"))
    experts: int = option(0, "routed experts in each layer (default: the model's, or none)")
    top_k: int = option(0, "experts for each token (default: the model's, else 2)")
    capacity: float = option(0.0, "most tokens of an expert, in even shares; more are dropped (default: no limit)")

    recompute: str = option(
        "none", "activations computed again in backward", choices=("none", "selective", "full"), section="compute"
    )
    offload: str = option("none", "what is kept in host memory: masters and moments", choices=("none", "optimizer"))
    accumulate: int = option(0, "passes before an update (default: what --batch and --micro-batch ask for, else one)")
    micro_batch: int = option(0, "sequences in a micro-batch (default: what --batch leaves)")
    batch: int = option(0, "sequences in an update over all ranks (default: two in each micro-batch)")
    dtype: str = option("fp32", "type of the arithmetic; masters stay fp32", choices=("fp32", "bf16", "fp8", "fp64"))
    compile: bool = option(default=False, text="compile the layers with torch.compile")

    model: str = option(
        "tiny", "tiny, small, 100m, 1b, 8b or a config.json", metavar="NAME|FILE", section="model and data"
    )
    layers: int = option(0, "override the model's layers")
    sequence: int = option(0, "override the model's sequence length")
    data: str = option("", "a text file to learn, byte by byte (default: synthetic tokens)", metavar="FILE")

    steps: int = option(5, "updates to make", section="updates")
    lr: float = option(3e-3, "peak learning rate")
    warmup: int = option(2, "updates of linear warm-up; a cosine follows")
    clip: float = option(1.0, "largest gradient norm over the mesh; 0 for none")
    weight_decay: float = option(0.1, "AdamW's weight decay")
    adamw: str = option("fused", "how an update runs over the tensors", choices=("fused", "foreach", "loop"))
    seed: int = option(0, "seed of weights and data (default: 0)")

    device: str = option(
        "", "where to compute (default: cuda where there is one)", choices=("cpu", "cuda"), section="recording"
    )
    output: str = option("", "folder of the run (default: traces/<time>-<mesh>)", metavar="FOLDER")
    profile: bool = option(default=False, text="record a trace of every rank")
    profile_skip: int = option(1, "steps before recording starts")
    profile_steps: int = option(2, "steps to record")
    profile_memory: bool = option(default=True, text="record allocations too")
    metrics: str = option("text", "form of the live metrics; also --log", choices=("text", "json"))
    flop_convention: str = option("palm", "what counts as FLOP in the MFU shown", choices=("palm", "matmul", "causal"))

    checkpoint: str = option("", "folder of checkpoints", metavar="FOLDER", section="checkpoints")
    checkpoint_every: int = option(0, "updates between checkpoints (default: at the end)")
    resume: bool = option(default=False, text="continue from the newest checkpoint in --checkpoint")

    pace: str = option(
        "", "replace compute by waits: h100, a100, b200, or F,I,W[,A[,E]] ms a layer", section="pacing, faults"
    )
    pace_model: str = option("8b", "model whose layers the paced device computes", metavar="NAME|FILE")
    fault: list[str] = option([], "inject a fault, e.g. slow-rank:rank=2,factor=1.8 (several)", metavar="FAULT")  # noqa: RUF009 - makes a field with a factory
    timeout: int = option(300, "seconds until a rank that waits for a lost one gives up")

    def changed(self) -> dict[str, Any]:
        """Give what differs from the defaults, for the manifest."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {item.name: values[item.name] for item in fields(self) if values[item.name] != default(item)}


def default(item: Field[Any]) -> Any:  # noqa: ANN401 - an option's own type
    """Give an option's default."""
    return item.default if item.default is not MISSING else item.default_factory()  # type: ignore[misc]


def flag_of(item: Field[Any]) -> str:
    """Give an option as it is typed."""
    return "--" + item.name.replace("_", "-")


def flags_of(item: Field[Any]) -> list[str]:
    """Give all that an option may be typed as: torchrun itself stumbles over --log on Python 3.11."""
    return ["--metrics", "--log"] if item.name == "metrics" else [flag_of(item)]


def described(item: Field[Any]) -> str:
    """Say what an option is for, and its default where that says anything."""
    text, value = item.metadata["help"], default(item)
    if item.metadata["choices"]:
        # Zero is a choice as any other: ZeRO stage 0.
        return text if value == "" else f"{text} (default: {value})"
    # Elsewhere zero, nothing and no ask for nothing, or the text says itself what they stand for.
    return f"{text} (default: {value})" if value and "default:" not in text else text


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as everything here does: once, and with a hint."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message, hint=_legal(message))


def parser() -> argparse.ArgumentParser:
    """Make the command line from `Options`."""
    made = _Parser(
        usage="torchrun [--nproc-per-node N] trainer/run.py [options]",
        description="Train a small decoder on a five-axis mesh, and record where each step goes.",
        epilog="docs/trainer.md: what each technique does, what to look for in its trace, and the faults.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    made.add_argument("--config", metavar="FILE", help="a TOML file of options; the command line wins")
    types = get_type_hints(Options)
    section: argparse._ActionsContainer = made
    for item in fields(Options):
        if title := item.metadata["section"]:
            section = made.add_argument_group(title)
        reading = _reading(item, types[item.name])
        section.add_argument(*flags_of(item), help=described(item), **reading)
    return made


def _reading(item: Field[Any], kind: type) -> dict[str, Any]:
    """Say to argparse how an option's text becomes a value of its type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}  # --profile and --no-profile
    reading: dict[str, Any] = {"type": kind}
    if get_args(kind):  # list[str]: the option may be given several times
        reading = {"action": "append"}
    if choices := item.metadata["choices"]:
        return reading | {"choices": choices}
    placeholder = {int: "N", float: "X"}.get(kind, "TEXT")
    return reading | {"metavar": item.metadata["metavar"] or placeholder}


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line, over a TOML file if one is given, over the defaults."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    if not path:
        return Options(**given)
    typed_in_file = list(_typed(Path(path)))
    from_file = vars(parser().parse_args(typed_in_file))
    return Options(**{**from_file, **given})  # what was typed comes last and wins


def _typed(path: Path) -> Iterator[str]:
    """Give a file's options as they would be typed, so that they are checked alike.

    tp = 2                                    --tp=2
    profile = false                           --no-profile
    fault = ["slow-rank:rank=2,factor=2"]     --fault=slow-rank:rank=2,factor=2
    """
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"--config {path}: {error}", hint="a TOML file of lines such as: tp = 2") from error
    for key, value in data.items():
        flag = "--" + key.replace("_", "-")
        nearest = _nearest(flag).removeprefix("--")  # as it is written in a file
        refuse(flag not in _flags(), f"--config {path}: no option {key!r}", nearest)
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif isinstance(value, list):
            yield from (f"{flag}={one_value}" for one_value in value)
        else:
            yield f"{flag}={value}"


def _legal(message: str) -> str:
    """Name the nearest legal choice to what argparse could not read, by its message.

    argument --schedule: invalid choice: '1fb1' (choose from ...)     --schedule 1f1b
    argument --tp: invalid int value: 'two'                           --tp 1
    unrecognized arguments: --schedul                                 --schedule
    """
    refused = re.match(r"argument (--[\w-]+)\S*: (?:invalid choice: '?([^' ]*))?", message)
    if refused is None:
        return _nearest(message.removeprefix("unrecognized arguments: ").split()[0])
    flag, typed = refused.groups()
    item = next((item for item in fields(Options) if flag in flags_of(item)), None)
    if item is None:
        return f"{flag} FILE"
    if isinstance(default(item), bool):
        return flag
    choices = [str(choice) for choice in item.metadata["choices"]]
    if typed and choices:
        return f"{flag} {get_close_matches(typed, choices, n=1, cutoff=0.0)[0]}"
    example = default(item) or item.metadata["metavar"] or 1
    return f"{flag} {example}"


def _flags() -> list[str]:
    return [flag for item in fields(Options) for flag in flags_of(item)]


def _nearest(typed: str) -> str:
    near = get_close_matches(typed, _flags(), n=1)
    return near[0] if near else "trainer/run.py --help tells all options"
