"""Edit: a change of the run as plain data that can be typed, stored with a finding, and combined.

``name=value,key=value``: the name is the kind of change, the keys are its place and amount, as in
`comm_faster=2,axis=dp`, `rank_as_peers=7` or `schedule=interleaved,v=2`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from usp_prof import limits
from usp_prof.model.errors import UsageError

_RANGES = {
    "v": limits.CHUNKS,
    "m": limits.PASSES,
    "micro_batches": limits.PASSES,
    "rank": limits.RANK,
    "stage": limits.STAGE,
}
"""Range of the number of a key or an edit's value; others use `limits.COUNT`."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: `name` is its kind, `value` the text after it, `places` the other keys, sorted."""

    name: str
    value: str = ""
    places: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        head = f"{self.name}={self.value}" if self.value else self.name
        return ",".join([head, *(f"{key}={value}" for key, value in self.places)])

    def place(self, key: str, default: str = "") -> str:
        """Return the text of one key."""
        return dict(self.places).get(key, default)

    def number(self, key: str = "", default: float | None = None) -> float:
        """Return the number of one key, or of the value."""
        word = self.place(key) if key else self.value
        if not word and default is not None:
            return default
        shown = f"{key}={word}" if key else word
        try:
            number = float(word)
        except ValueError:
            raise UsageError(
                f"edit {self}: {shown!r} is not a number", hint="usp-prof whatif RUN --list shows all edits"
            ) from None
        within = _RANGES.get(key or self.name, limits.COUNT)
        if not within.low <= number <= within.high:  # false for NaN, too
            raise UsageError(
                f"edit {self}: {shown!r} is outside of {within}", hint="docs/reference/limits.md lists all ranges"
            )
        return number


def parse_edit(text: str) -> Edit:
    """Parse an edit."""
    parts = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not parts or any(not _WORD.match(name) for name, _, _ in parts):
        raise UsageError(f"{text!r} is not an edit", hint="write it like comm_faster=2,axis=dp")
    (name, _, value), *rest = parts
    return Edit(name, value, tuple(sorted((key, word) for key, _, word in rest)))
