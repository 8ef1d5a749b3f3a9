"""Cells: the configurations of a sweep, from a grid or a list, each as options of the trainer.

    --grid tp=1,2 zero=0,1        four cells: tp1 zero0, tp1 zero1, tp2 zero0, tp2 zero1
    --list cells.csv              one cell per row; columns are options, an empty field omits the option

`processes` is not an option of the trainer but the number of ranks to start; it may also be in a grid or a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import TextIO

from usp_prof.model.configuration import Configuration, Offload, Recompute
from usp_prof.model.errors import UsageError
from usp_prof.model.files import csv_rows
from usp_prof.schedule import schedule_by_name

MOST_CELLS = 10_000
MOST_PROCESSES = 1024
LONGEST_NAME = 80
FLAGS = {"true": "--", "on": "--", "false": "--no-", "off": "--no-"}
"""Prefix of an option whose value is a switch: `--prefetch` or `--no-prefetch`."""
TRAINERS_NAMES = {"devices": "processes", "chunks": "stages-per-rank", "replicas": "dp-replicate"}
"""Columns of `plan --table` with different names in the trainer."""
OF_THE_LAYOUT = frozenset(
    {
        "dp", "dp-replicate", "tp", "cp", "pp", "ep", "zero", "micro-batch", "micro-batches", "accumulate", "batch",
        "schedule", "stages-per-rank", "recompute", "sequence-parallel", "offload", "processes",
    }
)  # fmt: skip
"""Options in a `Configuration`; cells that differ only in these train the same model."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration: number of processes, and the trainer's options (name without dashes, value), sorted."""

    processes: int
    options: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Folder name of the cell, from its options; a hash is added if characters were replaced or cut."""
        words = [f"{self.processes}p", *(f"{option}={value}" for option, value in self.options)]
        plain = re.sub(r"[^A-Za-z0-9._=-]", "_", "-".join(words))[:LONGEST_NAME]
        if plain == "-".join(words):
            return plain
        return f"{plain}-{blake2b(repr(self).encode(), digest_size=4).hexdigest()}"


def trainer_words(options: Iterable[tuple[str, str]]) -> list[str]:
    """Return options as command-line words."""
    words: list[str] = []
    for option, value in options:
        words += [FLAGS[value] + option] if value in FLAGS else [f"--{option}", value]
    return words


OURS = frozenset({"metrics", "log", "output", "checkpoint", "resume", "profile"})
"""Options of the trainer that a sweep sets itself, or that cells cannot share."""


def parse_fixed(pairs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse `name=value` pairs that apply to all cells."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value.strip():
            raise UsageError(f"--fixed {pair!r} sets nothing", hint="write it like --fixed batch=16 steps=8")
        settings[_option(name)] = value.strip()
    not_settable = (OURS | {"processes"}) & settings.keys()
    if not_settable:
        raise UsageError(f"--fixed cannot set {min(not_settable)}", hint="leave it out")
    return tuple(sorted(settings.items()))


def cells_of_grid(axes: Sequence[str], processes: int) -> list[Cell]:
    """Return the cells of all combinations of `name=value,value` axes."""
    values: dict[str, list[str]] = {}
    for axis in axes:
        name, _, value_list = axis.partition("=")
        texts = [value.strip() for value in value_list.split(",") if value.strip()]
        if not name or not texts:
            raise UsageError(f"--grid {axis!r} is not an axis of a grid", hint="write it like --grid tp=1,2 zero=0,1")
        if _option(name) in values:
            raise UsageError(f"--grid names {name} twice", hint=f"write all its values at once: {name}=1,2")
        values[_option(name)] = texts
    size = 1
    for texts in values.values():
        size *= len(texts)
    if size > MOST_CELLS:
        raise UsageError(f"the grid has {size} cells, more than {MOST_CELLS}", hint="leave some values out")
    return _different(_cell(dict(zip(values, chosen, strict=True)), processes) for chosen in product(*values.values()))


def cells_of_list(file: TextIO, processes: int) -> list[Cell]:
    """Read one cell per row."""
    _, rows = csv_rows(file, "list of cells")
    if len(rows) > MOST_CELLS:
        raise UsageError(f"the list has {len(rows)} cells, more than {MOST_CELLS}", hint="split the list")
    return _different(
        _cell({_option(name): value.strip() for name, value in row.items() if name and value}, processes)
        for row in rows
    )


def _option(name: str) -> str:
    plain = name.strip().lstrip("-").replace("_", "-")
    return TRAINERS_NAMES.get(plain, plain)


def _cell(options: Mapping[str, str], processes: int) -> Cell:
    settings = {option: value for option, value in options.items() if value}
    not_settable = OURS & settings.keys()
    if not_settable:
        raise UsageError(f"{min(not_settable)} is not an option of a cell", hint="leave it out")
    number = settings.pop("processes", str(processes))
    if not number.isdigit() or not 1 <= int(number) <= MOST_PROCESSES:
        raise UsageError(f"processes is a whole number from 1 to {MOST_PROCESSES}, not {number!r}", hint="processes=8")
    return Cell(int(number), tuple(sorted(settings.items())))


def _different(cells: Iterable[Cell]) -> list[Cell]:
    return list(dict.fromkeys(cells))


def configuration_of(cell: Cell, fixed: Mapping[str, str]) -> Configuration | None:
    """Return the configuration that the trainer derives from a cell and the fixed options, or None if it refuses.

    Missing values are set like in the trainer's `settle`: dp uses the ranks left by the other axes, a pipeline has
    twice as many micro-batches as ranks, a micro-batch has two sequences.
    """
    settings = {**fixed, **dict(cell.options)}

    def number(option: str) -> int:
        return int(settings.get(option, "0") or 0)

    try:
        tp, cp, pp, ep = (number(axis) or 1 for axis in ("tp", "cp", "pp", "ep"))
        dp = number("dp") or cell.processes // (tp * cp * pp)
        if dp * tp * cp * pp != cell.processes:
            return None
        passes = number("micro-batches") or (2 * pp if pp > 1 else 1)
        size, batch = number("micro-batch"), number("batch")
        accumulate = number("accumulate") or max(1, batch // (dp * passes * size) if size else 1)
        batch = batch or (size or 2) * dp * passes * accumulate
        if batch % (dp * passes * accumulate):
            return None
        schedule = schedule_by_name(settings.get("schedule", "1f1b"))
        looped = schedule is not None and schedule.traits.is_looped
        fixed_chunks = schedule.traits.stages_per_rank if schedule is not None else None
        return Configuration(
            dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, zero=number("zero"), micro_batch=batch // (dp * passes * accumulate),
            micro_batches=passes * accumulate, schedule=str(schedule or "1f1b"),
            chunks=(number("stages-per-rank") or 2) if looped and pp > 1 else (fixed_chunks or 1) if pp > 1 else 1,
            recompute=Recompute(settings.get("recompute", "none")), dtype=settings.get("dtype", "fp32"),
            replicas=number("dp-replicate") or 1,
            offload=Offload(settings.get("offload", "none")),
            sequence_parallel=settings.get("sequence-parallel", "on") not in ("off", "false"),
        )  # fmt: skip
    except ValueError:  # an invalid number or choice: the trainer reports it
        return None
