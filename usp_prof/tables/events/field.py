"""Which argument of an event is wanted, and as what?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from usp_prof.model.schema import Kind

_OUTER = re.compile(r'\$\.(?:"([^"]*)"|([^".\[]+))')


@dataclass(frozen=True, slots=True)
class Field:
    """One argument: the column to make, the key as Kineto writes it (`$.` paths reach inside) and its type.

    Texts of which many are alike can be had `coded`: each distinct one is held once.
    """

    name: str
    key: str
    kind: Kind = Kind.INT
    coded: bool = False

    @property
    def path(self) -> str:
        """The JSON path."""
        return self.key if self.key.startswith("$") else f'$."{self.key}"'

    @property
    def outer(self) -> str:
        """The argument itself, of which a path may want a part."""
        inside = _OUTER.match(self.key)
        return inside[1] or inside[2] if inside else self.key
