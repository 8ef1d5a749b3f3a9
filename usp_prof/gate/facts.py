"""Facts of a run (layout, work, hardware, software), and which metrics they allow to be compared with another run.

A fact belongs to a kind, and a difference of a kind bars what it makes meaningless: on other hardware times say
nothing, for other work counts and times say nothing, and software may differ, since that is what a gate is for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.gate.series import EXACT
from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from usp_prof.contract import Manifest
    from usp_prof.tables.table_set import TableSet


MEASURED_PEAK = "measured peak"
SAME_PEAK = 1.25
"""Where a machine's name is not known, its largest matrix product tells it; measured again it differs by less."""


class FactKind(StrEnum):
    """What a fact is about, in the order in which differences are told."""

    HARDWARE = "hardware"
    WORK = "work"
    LAYOUT = "layout"
    SOFTWARE = "software"


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """One condition of a run: `hardware.device = NVIDIA H100`."""

    kind: FactKind
    name: str
    value: str


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """A fact that differs between baseline and candidate; an empty side did not say."""

    kind: FactKind
    name: str
    before: str
    after: str

    @property
    def known(self) -> bool:
        """Both sides said what they are."""
        return bool(self.before) and bool(self.after)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.before or 'not recorded'} -> {self.after or 'not recorded'}"


def differences(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Difference, ...]:
    """List the facts that differ, hardware first."""
    old: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in before}
    new: Mapping[tuple[FactKind, str], str] = {(fact.kind, fact.name): fact.value for fact in after}
    order = list(FactKind)
    keys = sorted(old.keys() | new.keys(), key=lambda key: (order.index(key[0]), key[1]))
    pairs = (Difference(kind, name, old.get((kind, name), ""), new.get((kind, name), "")) for kind, name in keys)
    return tuple(
        difference for difference in pairs if difference.before != difference.after and not _as_measured(difference)
    )


def _as_measured(difference: Difference) -> bool:
    """Say whether two figures are the same but for how they were measured."""
    if difference.name != MEASURED_PEAK or not difference.known:
        return False
    before, after = float(difference.before), float(difference.after)
    return max(before, after) <= SAME_PEAK * min(before, after)


_RATES = (Unit.NS, Unit.PER_SECOND, Unit.BYTES_PER_SECOND, Unit.FLOP_PER_SECOND, Unit.FRACTION, Unit.RATIO)
_AMOUNTS = (Unit.NS, Unit.BYTES, Unit.FLOP, Unit.COUNT)


def barred(unit: Unit, differing: Iterable[Difference], across: Iterable[FactKind] = ()) -> Difference | None:
    """Give the difference that bars figures of this unit, if any; kinds in `across` are compared all the same."""
    passed = set(across)
    for difference in differing:
        if not difference.known or difference.kind in passed:
            continue
        if difference.kind is FactKind.HARDWARE and unit in _RATES:
            return difference
        if difference.kind is FactKind.WORK and unit in _AMOUNTS:
            return difference
        if difference.kind is FactKind.LAYOUT and unit in EXACT:
            return difference
    return None


_BARRED_BY = {FactKind.HARDWARE: "times, rates and shares", FactKind.WORK: "times and amounts"}
"""What a known difference of a kind leaves uncompared, in words."""


def uncompared(differing: Iterable[Difference], across: Iterable[FactKind] = ()) -> tuple[str, ...]:
    """Say, a sentence a kind, which differences of device or work leave metrics uncompared."""
    passed = set(across)
    words_of_kind: dict[FactKind, list[str]] = {}
    for difference in differing:
        if difference.known and difference.kind in _BARRED_BY and difference.kind not in passed:
            words_of_kind.setdefault(difference.kind, []).append(_in_words(difference))
    return tuple(f"{', '.join(words)}: {_BARRED_BY[kind]} are not compared" for kind, words in words_of_kind.items())


def _in_words(difference: Difference) -> str:
    change = f"{difference.before} -> {difference.after}"
    match difference.name:
        case "model":
            return "another model"  # its sizes are among the conditions
        case "device":
            return f"another device ({change})"
        case name:
            return f"{name} {change}"


# Facts of one run, from the manifest and the ranks' own metadata


def facts_of(tables: TableSet) -> tuple[Fact, ...]:
    """Gather the facts of a run, sorted; what was not recorded is left out."""
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
    joined = {name: ", ".join(sorted(texts)) for name, texts in seen.items()}
    return {
        (FactKind.HARDWARE, "device"): joined["device"] or joined["device_kind"],
        (FactKind.HARDWARE, "hosts"): str(len(seen["host"])) if seen["host"] else "",
        (FactKind.LAYOUT, "world size"): str(max(world, 0) or ""),
        (FactKind.SOFTWARE, "torch"): joined["torch"],
        (FactKind.SOFTWARE, "backend"): joined["backend"],
    }


def _from_manifest(manifest: Manifest) -> dict[tuple[FactKind, str], str]:
    model = manifest.model
    shape = (
        {name: value for name, value in asdict(model).items() if value and name != "flop_per_token"} if model else {}
    )
    hardware = {
        MEASURED_PEAK if manifest.peak_source.startswith("measured") else "peak": f"{manifest.peak_flops:g}"
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
