"""Ranges of the values that a planning question contains: one check for options, Python functions and tables.

A number of 0 is not given: the question then has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from usp_prof.extras.planner.model_rules import modules_named
from usp_prof.limits import COUNT, DEGREE, MAX_RANKS, Range
from usp_prof.model.configuration import Offload, Recompute
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.schedule import Schedule, schedule_by_name

SHARES = ("efficiency", "memory_share")
"""Fractions from 0 to 1."""
WHOLE = ("sequence", "devices", "batch", "node")
"""Whole numbers from 1; other numbers only need to be positive."""
_MOST = {"devices": MAX_RANKS, "node": MAX_RANKS, **dict.fromkeys(SHARES, 1)}
_KNOBS = {
    "zero": Range(0, 3),
    "etp": Range(0, MAX_RANKS),
    "recompute_layers": Range(0, MAX_RANKS),
    "offload_layers": Range(0, MAX_RANKS),
    "loss_chunks": Range(0, MAX_RANKS),
}


SWITCHES = ("sequence_parallel", "expert_overlap", "fused_attention")
"""Settings that are on or off."""
DTYPES = ("bf16", "fp16", "fp32", "fp8", "fp4")
CHOICES: dict[str, tuple[str, ...]] = {"recompute": tuple(Recompute), "offload": tuple(Offload), "dtype": DTYPES}
"""Settings that are one of several words."""
SIZES = ("gradient_bytes", "optimizer_bytes")
STATES = {"on": True, "off": False}


def checked_settings(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return settings as fields of `Configuration`; raise for names that are not in `names`, and for their values."""
    for name in settings:
        if name not in names:
            raise unknown_name("knob", name, names)
    check_numbers({name: size for name, size in settings.items() if name in SIZES})
    return {name: _checked(name, value) for name, value in settings.items()}


def _checked(name: str, value: Any) -> Any:  # noqa: ANN401 - the type depends on the setting
    if name in SIZES:
        return value
    if name == "recompute_modules":
        return modules_named(value)
    if name == "schedule":
        if schedule_by_name(str(value)) is None:
            raise unknown_name("schedule", str(value), list(Schedule))
        return value
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise unknown_name(name, str(value), CHOICES[name])
        return {"recompute": Recompute, "offload": Offload}.get(name, str)(value)
    if name in SWITCHES:
        if value not in (*STATES, True, False):
            raise UsageError(f"{name} is True or False, not {value!r}", hint="omit it to use its default")
        return STATES.get(value, bool(value))
    number = int(value) if hasattr(value, "__index__") else None
    if not range_of_knob(name).holds(number):
        raise UsageError(f"{name} is a whole number from {range_of_knob(name)}, not {value!r}", hint="write it like 8")
    return number


def range_of_knob(name: str) -> Range:
    """Return the values of a setting that is a number; most are 1 or more."""
    return _KNOBS.get(name, DEGREE)


def most_of(name: str) -> int:
    """Return the largest value of a number."""
    return _MOST.get(name, COUNT.high)


def check_numbers(numbers: Mapping[str, float], spelled: Callable[[str], str] = str) -> None:
    """Raise for numbers that no machine can have; `spelled` returns how the user writes a name."""
    for name, value in numbers.items():
        if not isinstance(value, (int, float)):
            raise UsageError(f"{spelled(name)} is a number, not {value!r}", hint="write it without quotes")
        if 0 <= value <= most_of(name):  # false for NaN, too
            continue
        if name in SHARES:
            allowed = "a share between 0 and 1"
        elif name in WHOLE:
            allowed = f"1 to {most_of(name)}"
        else:
            allowed = f"positive and at most {most_of(name)}"
        raise UsageError(f"{spelled(name)} is {allowed}, not {value:.12g}", hint="omit it to use its default")


def option(name: str) -> str:
    """Return a name as it is written on the command line."""
    return "--" + name.replace("_", "-")
