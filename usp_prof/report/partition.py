"""Parts of a step: their order on screens and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.topology import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from usp_prof.report.figures import Figures, Key, Number

_AXES = [str(axis) for axis in Axis]
_CAUSES = ("bubble", "host", "input", "sync", "other")


def parts(figures: Figures, **dims: Key) -> list[tuple[str, str, Number]]:
    """Give label, role and time of each part of the step at these dimensions, parts of no time left out."""
    exposed = figures.along("exposed_comm_time", "axis", **dims)
    idle = figures.along("idle_time", "cause", **dims)
    found: list[tuple[str, str, Number | None]] = [
        ("compute", "compute", figures.at("compute_time", **dims)),
        *((f"exposed {axis}", f"comm:{axis}", exposed[axis]) for axis in axes_in_order(exposed)),
        ("memcpy", "memcpy", figures.at("memcpy_time", **dims)),
        *((_idle_label(cause), f"idle:{cause}", idle[cause]) for cause in _in_order(idle, _CAUSES)),
    ]
    return [(label, role, value) for label, role, value in found if value]


def axes_in_order(axes: Iterable[Key]) -> list[Key]:
    """Sort axes as screens show them."""
    return _in_order(axes, _AXES)


def label_of(role: str) -> str:
    """Name a part by its role: `comm:tp` is exposed tp, `idle:host` idle: host."""
    family, _, which = role.partition(":")
    if family == "comm":
        return f"exposed {which}"
    return _idle_label(which) if family == "idle" else role


def _in_order(names: Iterable[Key], known: Sequence[str]) -> list[Key]:
    place = {name: number for number, name in enumerate(known)}
    return sorted(names, key=lambda name: (place.get(str(name), len(place)), str(name)))


def _idle_label(cause: Key) -> str:
    # "Bubble" alone is the schedule's: a share of its window, in which a stage also waits inside other parts.
    return "idle: pipeline" if cause == "bubble" else f"idle: {cause}"
