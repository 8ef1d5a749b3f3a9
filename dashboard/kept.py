"""How is a run's report kept, so that the next visit shows it at once? As a file beside the run's other tables.

The file holds plain dataclasses and arrays. It is read back by name, and only names of the report's own classes are
followed: a file that says anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import usp_prof
from usp_prof import UspProfError
from usp_prof.report.document import Document

FILE = "document.pickle"
OWN = ("usp_prof.charts.inputs", "usp_prof.model.", "usp_prof.report.document")
FOREIGN = frozenset(
    {
        *(("builtins", kind) for kind in ("dict", "int", "float", "bool", "str")),
        ("numpy", "dtype"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)
"""What else a document consists of."""


@cache
def form() -> str:
    """Name the form of kept documents: another version of the code that makes them is another form."""
    root = Path(usp_prof.__file__).parent
    stamp = blake2b(digest_size=8)
    for file in sorted(root.rglob("*.py")):
        facts = file.stat()
        stamp.update(f"{file.relative_to(root)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return f"document-{usp_prof.__version__}-{stamp.hexdigest()}"


def write(document: Document, folder: Path) -> None:
    """Keep a document in a folder."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(document)
    (folder / FILE).write_bytes(buffer.getvalue())


def read(folder: Path) -> Document:
    """Read a document back."""
    with (folder / FILE).open("rb") as stream:
        found = _Unpickler(stream).load()
    if not isinstance(found, Document):
        raise UspProfError(f"{folder / FILE} holds no report", hint="usp-prof cache clear")
    return found


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: object) -> Any:  # noqa: ANN401 - a reduction, or that there is none
        """Write what the document's parts are made of in ways that name nothing else when they are read."""
        if isinstance(thing, MappingProxyType):
            return dict, (dict(thing),)
        if isinstance(thing, np.ndarray):  # one that is a view of another would name its own rebuilding
            return np.ascontiguousarray(thing).__reduce_ex__(5)
        if isinstance(thing, np.generic):
            return type(thing.item()), (thing.item(),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """Follow the names of the report's own classes, and no others."""
        if not (module.startswith(OWN) and "." not in name) and (module, name) not in FOREIGN:
            raise UspProfError(f"a kept report names {module}.{name}", hint="usp-prof cache clear")
        return super().find_class(module, name)
