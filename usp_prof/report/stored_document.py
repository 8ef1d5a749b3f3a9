"""Stored document: a run's report as a file in the store, so that the next request shows it at once.

MessagePack of two plain values: the metrics, and the document, which refers to metrics by index (a run of 1,024 ranks
has 190,000 values of 110 metrics). A dataclass is `[class name, fields...]`, an array is its type, shape and bytes.
Only the report's own classes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from usp_prof._version import __version__, fingerprint
from usp_prof.charts import inputs
from usp_prof.findings import causes
from usp_prof.model import finding, health, metric
from usp_prof.model.errors import UspProfError
from usp_prof.model.metric import Metric
from usp_prof.report import document, run_facts, verdict
from usp_prof.report.document import Document

if TYPE_CHECKING:
    from usp_prof.tables.table_set import Kept

FILE = "document.msgpack"
_CLASSES: dict[str, type[Any]] = {
    name: made
    for module in (causes, document, finding, health, inputs, metric, run_facts, verdict)
    for name, made in vars(module).items()
    if isinstance(made, type) and made.__module__ == module.__name__
}


def form(*facts: object) -> str:
    """Return the format name of stored documents: it depends on the code that builds them and the run's facts."""
    facts_part = f"-{blake2b(repr(facts).encode(), digest_size=16).hexdigest()}" if facts else ""
    return f"document-{__version__}-{fingerprint()}{facts_part}"


def stored_or_built(place: Kept, name: str, make: Callable[[], Document]) -> Document:
    """Return a stored document, else build and store it."""
    made: list[Document] = []

    def write_made(folder: Path) -> None:
        if not made:
            made.append(make())
        write(made[0], folder)

    try:
        folder = place.derived(name, write_made)
    except OSError:  # neither the store nor a temporary folder is writable
        return made[0] if made else make()
    return made[0] if made else read(folder)


def write(made: Document, folder: Path) -> None:
    """Store a document in a folder."""
    writer = _Writer()
    document = writer.plain(made)
    (folder / FILE).write_bytes(msgspec.msgpack.encode([writer.metrics, document]))


def read(folder: Path) -> Document:
    """Read a stored document."""
    try:
        metrics, encoded = msgspec.msgpack.decode((folder / FILE).read_bytes())
        document = _made(encoded, [_made(metric, []) for metric in metrics])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _no_report(folder, error) from None
    if not isinstance(document, Document):
        raise _no_report(folder, type(document).__name__)
    return document


def _no_report(folder: Path, reason: object) -> UspProfError:
    return UspProfError(f"{folder / FILE} contains no report: {reason}", hint="usp-prof cache clear")


class _Writer:
    """Encodes objects as lists that begin with their type; plain values are unchanged."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        """Metrics seen so far, in order."""
        self._places: dict[int, int] = {}
        """Index in the list by metric identity."""

    def plain(self, value: Any) -> Any:  # noqa: ANN401 - any part of a document
        """Encode one value."""
        if isinstance(value, np.ndarray):
            return ["array", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        if isinstance(value, Mapping):
            return ["map", [[self.plain(key), self.plain(item)] for key, item in value.items()]]
        if isinstance(value, (tuple, list)):
            return ["tuple", [self.plain(item) for item in value]]
        if isinstance(value, Metric):
            return ["metric", self._place(value)]
        if is_dataclass(value) and _CLASSES.get(type(value).__name__) is type(value):
            return self._of_class(value)
        return _plain_scalar(value)

    def _place(self, metric: Metric) -> int:
        if id(metric) not in self._places:
            self._places[id(metric)] = len(self.metrics)
            self.metrics.append(self._of_class(metric))
        return self._places[id(metric)]

    def _of_class(self, value: Any) -> list[Any]:  # noqa: ANN401 - one of the classes of a document
        return ["class", type(value).__name__, [self.plain(getattr(value, field.name)) for field in fields(value)]]


def _plain_scalar(value: Any) -> Any:  # noqa: ANN401 - any scalar of a document
    if isinstance(value, Enum):  # before str: most enums here are also str
        return ["class", type(value).__name__, [value.value]]
    if isinstance(value, np.generic):  # before float: np.float64 is one
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} is not part of a report")


def _made(value: Any, metrics: list[Any]) -> Any:  # noqa: ANN401 - any part of a document
    if not isinstance(value, list):
        return value
    kind, *content = value
    if kind == "metric":
        return metrics[content[0]]
    if kind == "tuple":
        return tuple(_made(item, metrics) for item in content[0])
    if kind == "class":
        return _CLASSES[content[0]](*(_made(item, metrics) for item in content[1]))
    if kind == "map":
        return {_made(key, metrics): _made(item, metrics) for key, item in content[0]}
    if kind == "array":
        return np.frombuffer(content[2], np.dtype(content[0])).reshape(content[1])
    raise ValueError(f"a part of the kind {kind!r}")
