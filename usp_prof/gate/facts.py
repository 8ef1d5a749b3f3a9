"""Facts of a run (layout, work, hardware, software), and which metrics they allow to be compared with another run.

Each fact belongs to a kind. A difference of a kind blocks the metrics that it makes meaningless. Different hardware
blocks times, and different work blocks counts and times. Software may differ, because that is what a gate tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from usp_prof.contract import Manifest
from usp_prof.gate.series import EXACT
from usp_prof.model.hardware import precision
from usp_prof.model.metric import Unit
from usp_prof.tables.table_set import TableSet

PEAK = "peak"
MEASURED_PEAK = "measured peak"
SAME_PEAK = 1.25
"""Largest ratio of two measured peaks on the same machine.

If the machine's name is unknown, the rate of its largest matrix product identifies it. A second measurement differs by
less than this.
"""


UNRECORDED = "not recorded"
BARRED = "not comparable: "
"""Start of the reason for metrics that a difference excludes from the comparison."""


class FactKind(StrEnum):
    """The subject of a fact, in the order of lists of differences."""

    HARDWARE = "hardware"
    WORK = "work"
    LAYOUT = "layout"
    SOFTWARE = "software"


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """One condition of a run, for example `hardware.device = NVIDIA H100`."""

    kind: FactKind
    name: str
    value: str


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A fact that differs between baseline and candidate; an empty side did not record it."""

    kind: FactKind
    name: str
    before: str
    after: str

    @property
    def is_in_both(self) -> bool:
        """Whether both sides recorded the fact."""
        return bool(self.before) and bool(self.after)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.before or UNRECORDED} -> {self.after or UNRECORDED}"


def differences(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Difference, ...]:
    """Return the facts that differ, hardware first."""
    old: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in before}
    new: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in after}
    order = list(FactKind)
    keys = sorted(old.keys() | new.keys(), key=lambda key: (order.index(key[0]), key[1]))
    pairs = (Difference(kind, name, old.get((kind, name), ""), new.get((kind, name), "")) for kind, name in keys)
    return tuple(
        difference
        for difference in pairs
        if difference.before != difference.after and not (_as_measured(difference) or _is_respelled(difference))
    )


def _is_respelled(difference: Difference) -> bool:
    """Return whether both sides name the same data type, such as bf16 and bfloat16."""
    before = precision(difference.before)
    return difference.name == "dtype" and before is not None and before is precision(difference.after)


def _as_measured(difference: Difference) -> bool:
    """Return whether two measured peaks differ by no more than measurement error."""
    if difference.name != MEASURED_PEAK or not difference.is_in_both:
        return False
    before, after = float(difference.before), float(difference.after)
    return max(before, after) <= SAME_PEAK * min(before, after)


_RATES = (Unit.NS, Unit.PER_SECOND, Unit.BYTES_PER_SECOND, Unit.FLOP_PER_SECOND, Unit.FRACTION, Unit.RATIO)
_AMOUNTS = (Unit.NS, Unit.BYTES, Unit.FLOP, Unit.COUNT)


def barred(unit: Unit, differing: Iterable[Difference], across: Iterable[FactKind] = ()) -> Difference | None:
    """Return the first difference that blocks figures of this unit, or None. Kinds in `across` do not block."""
    passed = set(across)
    for difference in differing:
        if not difference.is_in_both or difference.kind in passed:
            continue
        if difference.kind is FactKind.HARDWARE and unit in _RATES:
            return difference
        if difference.kind is FactKind.WORK and unit in _AMOUNTS:
            return difference
        if difference.kind is FactKind.LAYOUT and unit in EXACT:
            return difference
    return None


_BARRED_BY = {FactKind.HARDWARE: "times, rates and shares", FactKind.WORK: "times and amounts"}
"""What a recorded difference of each kind leaves uncompared, in words."""


def uncompared(differing: Iterable[Difference], across: Iterable[FactKind] = ()) -> tuple[str, ...]:
    """Return one sentence per kind on which differences of hardware or work leave metrics uncompared."""
    passed = set(across)
    words_of_kind: dict[FactKind, list[str]] = {}
    for difference in differing:
        if difference.is_in_both and difference.kind in _BARRED_BY and difference.kind not in passed:
            words_of_kind.setdefault(difference.kind, []).append(_in_words(difference))
    return tuple(f"{', '.join(words)}: {_BARRED_BY[kind]} are not compared" for kind, words in words_of_kind.items())


def _in_words(difference: Difference) -> str:
    change = f"{difference.before} -> {difference.after}"
    match difference.name:
        case "model":
            return "another model"  # its sizes are among the facts
        case "device":
            return f"another device ({change})"
        case name:
            return f"{name} {change}"


# Facts of one run, from the manifest and the ranks' own metadata


def facts_of(tables: TableSet) -> tuple[Fact, ...]:
    """Return the facts of a run, sorted; omit facts that were not recorded."""
    values = _from_ranks(tables)
    if tables.manifest is not None:
        values = {**values, **_from_manifest(tables.manifest)}
    return tuple(sorted(Fact(kind, name, value) for (kind, name), value in values.items() if value))


def _from_ranks(tables: TableSet) -> dict[tuple[FactKind, str], str]:
    seen: dict[str, set[str]] = {"device": set(), "device_kind": set(), "torch": set(), "backend": set(), "host": set()}
    world = -1
    for rank in tables.ranks:
        rows = tables.columns("ranks", rank)
        for name, texts in seen.items():
            texts.update(str(text) for text in rows[name] if text)
        world = max([world, *(int(size) for size in rows["world_size"])])
    text_of = {name: ", ".join(sorted(texts)) for name, texts in seen.items()}
    return {
        (FactKind.HARDWARE, "device"): text_of["device"] or text_of["device_kind"],
        (FactKind.HARDWARE, "hosts"): str(len(seen["host"])) if seen["host"] else "",
        (FactKind.LAYOUT, "world size"): str(max(world, 0) or ""),
        (FactKind.SOFTWARE, "torch"): text_of["torch"],
        (FactKind.SOFTWARE, "backend"): text_of["backend"],
    }


def _from_manifest(manifest: Manifest) -> dict[tuple[FactKind, str], str]:
    model = manifest.model
    shape = (
        {name: value for name, value in asdict(model).items() if value and name != "flop_per_token"} if model else {}
    )
    hardware = {
        MEASURED_PEAK if manifest.peak_source.startswith("measured") else PEAK: f"{manifest.peak_flops:g}"
        if manifest.peak_flops
        else "",
        "processes per device": str(manifest.processes_per_device),
        "paced": "yes" if manifest.paced else "no",
    }
    if manifest.device:
        hardware["device"] = manifest.device
    work = {
        "model": json.dumps(shape, sort_keys=True) if shape else "",
        "tokens per step": str(manifest.tokens_per_step or ""),
        "dtype": manifest.dtype,
    }
    layout = {
        "mesh": ",".join(f"{axis}={size}" for axis, size in sorted(manifest.mesh.items()) if size > 1),
        "schedule": manifest.schedule,
        "micro-batches": str(manifest.micro_batches or ""),
        "gradient accumulation": str(manifest.gradient_accumulation or ""),
        "recompute": manifest.recompute,
        "ZeRO stage": str(manifest.zero_stage) if manifest.zero_stage >= 0 else "",
    }
    kinds = ((FactKind.HARDWARE, hardware), (FactKind.WORK, work), (FactKind.LAYOUT, layout))
    values = {(kind, name): value for kind, facts in kinds for name, value in facts.items() if value}
    return {**values, **{(FactKind.SOFTWARE, name): value for name, value in manifest.software.items()}}
