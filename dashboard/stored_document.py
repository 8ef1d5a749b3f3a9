"""A run's report kept as a file beside the run's other tables, so that the next visit shows it at once.

MessagePack of plain values. A dataclass is `[class name, fields...]`, an array is its type, shape and bytes; reading
knows the report's own classes and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .engine import REPORT_MODULES, Document, UspProfError, __version__, findings_code

if TYPE_CHECKING:
    from pathlib import Path

FILE = "document.msgpack"
_CLASSES: dict[str, type[Any]] = {
    name: made
    for module in REPORT_MODULES
    for name, made in vars(module).items()
    if isinstance(made, type) and made.__module__ == module.__name__
}


def form() -> str:
    """Name the form of kept documents: another version of the code that makes them is another form."""
    return f"document-{__version__}-{findings_code()}"


def write(made: Document, folder: Path) -> None:
    """Keep a document in a folder."""
    (folder / FILE).write_bytes(msgspec.msgpack.encode(_plain(made)))


def read(folder: Path) -> Document:
    """Read a document back."""
    try:
        made = _made(msgspec.msgpack.decode((folder / FILE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_report(folder, error) from None
    if not isinstance(made, Document):
        raise _no_report(folder, type(made).__name__)
    return made


def _no_report(folder: Path, what: object) -> UspProfError:
    return UspProfError(f"{folder / FILE} holds no report: {what}", hint="usp-prof cache clear")


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of a document
    """Write what consists of parts as a list that begins with its kind; bare values stand for themselves."""
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, Mapping):
        return ["map", [[_plain(key), _plain(each)] for key, each in value.items()]]
    if isinstance(value, (tuple, list)):
        return ["tuple", [_plain(each) for each in value]]
    if is_dataclass(value) and _CLASSES.get(type(value).__name__) is type(value):
        return ["class", type(value).__name__, [_plain(getattr(value, field.name)) for field in fields(value)]]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:  # noqa: ANN401 - any scalar of a document
    if isinstance(value, Enum):  # before str: most of ours are texts as well
        return ["enum", type(value).__name__, value.value]
    if isinstance(value, np.generic):  # before float: np.float64 is one
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} is no part of a report")


def _made(value: Any) -> Any:  # noqa: ANN401 - any part of a document
    if not isinstance(value, list):
        return value
    kind, *content = value
    if kind == "tuple":
        return tuple(_made(each) for each in content[0])
    if kind == "class":
        return _CLASSES[content[0]](*(_made(each) for each in content[1]))
    if kind == "enum":
        return _CLASSES[content[0]](content[1])
    if kind == "map":
        return {_made(key): _made(each) for key, each in content[0]}
    if kind == "array":
        return np.frombuffer(content[2], np.dtype(content[0])).reshape(content[1])
    raise ValueError(f"a part of the kind {kind!r}")
