"""Fault settings: the kinds of fault that `--fault` takes, their settings and limits.

``--fault kind:key=value,key=value`` can be repeated. Most kinds accept ``steps=first-last`` and ``probability=p``
(drawn per step from the seed). The manifest lists the injected faults, and marks in the trace show where they act.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from trainer.configuration.options import OptionError, refuse

ALWAYS: dict[str, Any] = {"steps": "", "probability": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "slow-rank": {"rank": 0, "factor": 2.0, **ALWAYS},
    "slow-stage": {"stage": 0, "factor": 2.0, **ALWAYS},
    "slow-host": {"host": 0, "hosts": 2, "factor": 2.0, **ALWAYS},
    "late-input": {"rank": 0, "ms": 100.0, **ALWAYS},
    "pause": {"rank": 0, "ms": 200.0, "every": 2, **ALWAYS},
    "slow-link": {"axis": "dp", "mbps": 0.0, "delay_ms": 0.0, "rank": -1},
    "unbucketed": {},
    "unoverlapped": {},
    "blocking-sync": {},
    "expert-imbalance": {"expert": 0, "bias": 0.2},
    "unequal-lengths": {"dp": -1, "documents": 4},
}
"""Kinds of fault, their settings and defaults."""
ONCE = ("unbucketed", "unoverlapped", "blocking-sync", "unequal-lengths")
"""Kinds that can be used only once, because a second one would have no effect."""
SMALLEST = 1e-6
HOUR_MS = 3_600_000.0
LIMITS = {
    "probability": (SMALLEST, 1.0),
    "factor": (1 + SMALLEST, 1e6),
    "ms": (SMALLEST, HOUR_MS),
    "mbps": (0.1, 10_000.0),
    "delay_ms": (0.1, HOUR_MS),
    "bias": (SMALLEST, math.inf),
    "every": (1, math.inf),
    "hosts": (1, math.inf),
    "documents": (2, math.inf),
}
"""Minimum and maximum of settings; the minimum of other settings is zero, or a negative default."""
FITTING = {"steps": "2-4", "mbps": 100, "delay_ms": 50}
"""Values for hints, for settings whose default has no effect."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its settings."""

    kind: str
    settings: dict[str, Any]

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - a setting's own type
        return self.settings[key]

    def acts(self, step: int, seed: int) -> bool:
        """Return whether the fault acts in a step; the result is the same on all ranks."""
        if self.settings.get("steps"):
            first, _, last = self["steps"].partition("-")
            if not int(first) <= step <= int(last or first):
                return False
        if step % self.settings.get("every", 1):
            return False
        chance = self.settings.get("probability", 1.0)
        return chance >= 1 or random.Random(f"{seed} {step} {self.kind}").random() < chance  # noqa: S311 - no secret


def parse_fault(text: str) -> Fault:
    """Parse ``kind:key=value,...``; an error about an unknown name lists the valid ones."""
    kind, _, rest = text.partition(":")
    refuse(kind not in KINDS, f"--fault {text}: no fault {kind!r}", f"one of {', '.join(KINDS)}")
    pairs = [pair.partition("=") for pair in filter(None, rest.split(","))]
    settings, typed = dict(KINDS[kind]), [key for key, _, _ in pairs]
    for key, _, value in pairs:
        setting_names = ", ".join(settings) or "nothing"
        refuse(key not in settings, f"--fault {text}: {kind} has no setting {key!r}", f"it takes {setting_names}")
        refuse(typed.count(key) > 1, f"--fault {text}: {key} is given twice", f"--fault {kind}:{key}={value}")
        try:
            settings[key] = _setting(key, value, KINDS[kind][key]) if key != "steps" else _steps(value)
        except ValueError as error:
            rule = f"--fault {text}: {key} must be {_valid_values(key, KINDS[kind][key])}, not {value!r}"
            raise OptionError(rule, f"{key}={FITTING.get(key, KINDS[kind][key])}") from error
    return Fault(kind, settings)


def _setting(key: str, value: str, default: Any) -> Any:  # noqa: ANN401 - a setting's own type
    read = type(default)(value)
    if isinstance(read, str):
        return read
    least, most = LIMITS.get(key, (min(default, 0), math.inf))
    if read != default and not least <= read <= most:
        raise ValueError(value)
    return read


def _valid_values(key: str, default: Any) -> str:  # noqa: ANN401 - a setting's own type
    """Describe the values of a setting: "a number above 1"."""
    if isinstance(default, str):
        return "a range such as 2-4"
    least, most = LIMITS.get(key, (min(default, 0), math.inf))
    kind = "a whole number" if isinstance(default, int) else "a number"
    # The smallest step above a bound means that the bound itself is excluded.
    lower = f"above {least - SMALLEST:g}" if least in (SMALLEST, 1 + SMALLEST) else f"of at least {least:g}"
    return f"{kind} {lower}" + (f" and at most {most:g}" if most < math.inf else "")


def _steps(value: str) -> str:
    first, _, last = value.partition("-")
    if int(last or first) < int(first):
        raise ValueError(value)
    return value
