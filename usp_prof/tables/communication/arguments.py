"""Arguments of communication: data on a collective in kernels, c10d ops and their ranges."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof import limits
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import coded, index_of, numbers_of
from usp_prof.columns.rows import by_appearance, lookup
from usp_prof.columns.table import Columns
from usp_prof.inputs.growing import spread
from usp_prof.model.schema import Kind
from usp_prof.tables.events.arguments import Field, recorded_list
from usp_prof.tables.events.frame import EventFrame

_FIELDS = (
    Field("name", "Collective name", Kind.TEXT),
    Field("in_nelems", "In msg nelems", within=limits.COUNT),
    Field("out_nelems", "Out msg nelems", within=limits.COUNT),
    Field("dtype", "dtype", Kind.TEXT),
    Field("in_split", "In split size", Kind.TEXT),
    Field("out_split", "Out split size", Kind.TEXT),
    Field("group_size", "Group size", within=limits.WORLD_SIZE),
    Field("group_name", "Process Group Name", Kind.TEXT),
    Field("group_id", "Process Group ID", Kind.TEXT),
    Field("description", "Process Group Description", Kind.TEXT),
    Field("ranks", "Process Group Ranks", Kind.TEXT),
    Field("first_rank", "Global rank start", within=limits.RANK),
    Field("stride", "Global rank stride", within=limits.RANK),
    Field("sequence", "Seq"),
    Field("source", "Src Rank", within=limits.RANK),
    Field("destination", "Dst Rank", within=limits.RANK),
    Field("asynchronous", "Is asynchronized op", Kind.TEXT),
    Field("dims", "Input Dims", Kind.TEXT),
    Field("types", "Input type", Kind.TEXT),
    # record_param_comms until 2023 has positional fields only: tensors, sequence, group, rank, name, splits, size.
    Field("old_sequence", "Concrete Inputs", item=1),
    Field("old_group", "Concrete Inputs", item=2),
    Field("old_size", "Concrete Inputs", item=7),  # newer forms have different data there
    Field("newer", "Concrete Inputs", Kind.TEXT, item=8),
)
_KINDS = {field.name: field.kind for field in _FIELDS}
_BYTES = {
    1: "byte char bool uint8 int8 signed_char unsigned_char float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "quint8 qint8",
    2: "half bfloat16 short float16 int16",
    4: "float int int32 float32 complexhalf",
    8: "double long int64 float64 long_int complexfloat",
    16: "complexdouble",
}
_SIZE_OF = {name: size for size, names in _BYTES.items() for name in names.split()}


def arguments_of(frame: EventFrame, first: Ints, *fallback_rows: Ints) -> Columns:
    """Read the arguments of parts: each field from the first of a part's events that has it.

    `first` and each of `fallback_rows` have one event row per part, -1 for none.
    """
    # All events are read together: those of `first`, then the fallbacks.
    read = _described(frame, np.concatenate([first, *fallback_rows]))
    columns = {}
    for name, kind in _KINDS.items():
        numbers, texts = read[name]
        merged, *fallbacks = np.split(numbers, len(fallback_rows) + 1)
        for fallback in fallbacks:
            is_known = merged != texts.index("") if kind is Kind.TEXT else merged >= 0
            merged = np.where(is_known, merged, fallback)
        columns[name] = coded(*by_appearance(merged, texts)) if kind is Kind.TEXT else index_of(merged)
    return Columns(pa.table(columns))


def _described(frame: EventFrame, rows: Ints) -> dict[str, tuple[Ints, list[str]]]:
    """Return each field of event rows as numbers, or as codes and texts, one of which is empty.

    Rows of -1, and events without the field, get -1 or the code of the empty text.
    """
    has_event = rows >= 0
    read = frame.arguments(rows[has_event], _FIELDS)
    columns: dict[str, tuple[Ints, list[str]]] = {}
    for name, kind in _KINDS.items():
        if kind is Kind.TEXT:
            codes, texts = coded_texts(read[name])
            texts = texts if "" in texts else [*texts, ""]
            columns[name] = spread(codes, has_event, texts.index("")), texts
        else:
            columns[name] = spread(read[name], has_event), []
    return _modern(columns)


def _modern(columns: dict[str, tuple[Ints, list[str]]]) -> dict[str, tuple[Ints, list[str]]]:
    """Move positional fields of the oldest form to the fields of newer forms."""
    size = columns["old_size"][0]
    old = (size >= limits.WORLD_SIZE.low) & (size <= limits.WORLD_SIZE.high)
    for name in ("newer", "name"):
        codes, values = columns[name]
        old &= codes == values.index("")
    for name, spare in (("group_size", "old_size"), ("sequence", "old_sequence")):
        numbers = columns[name][0]
        columns[name] = np.where(old & (numbers < 0), columns[spare][0], numbers), []
    return columns


def coded_texts(column: pa.DictionaryArray) -> tuple[Ints, list[str]]:
    """Return texts that were read from arguments as codes and distinct texts."""
    return numbers_of(column.indices).astype(np.int64), column.dictionary.to_pylist()


def sizes(arguments: Columns) -> tuple[Ints, Ints, NDArray[Any], Flags]:
    """Return bytes in and out, the element type, and whether bytes come from shapes, which only have inputs."""
    # By part: elements and type of its first input, and the type named by the event.
    dims_code, dims = arguments.codes("dims")
    count_by_shape = lookup([elements(text) for text in dims], dims_code, missing=-1)
    types_code, types = arguments.codes("types")
    type_of_input = lookup([_first_type(text) for text in types], types_code, missing="")
    dtype_code, dtypes = arguments.codes("dtype")
    named_type = lookup(dtypes, dtype_code, missing="")
    dtype = np.where(named_type != "", named_type, type_of_input)
    width_of = {text: size_of(text) for text in set(dtype.tolist())}
    width = np.array([width_of[text] for text in dtype.tolist()], dtype=np.int64)
    in_count, out_count = arguments["in_nelems"], arguments["out_nelems"]
    by_shape = (in_count < 0) & (count_by_shape >= 0)
    in_count = np.where(by_shape, count_by_shape, in_count)
    in_bytes = np.where((in_count >= 0) & (width > 0), in_count * width, -1)
    out_bytes = np.where((out_count >= 0) & (width > 0), out_count * width, -1)
    return in_bytes, out_bytes, dtype, by_shape


def size_of(dtype: str) -> int:
    """Return the bytes of one element by PyTorch's type name; -1 if unknown."""
    plain = dtype.removeprefix("c10::").removeprefix("torch.").strip().lower().replace(" ", "_")
    return _SIZE_OF.get(plain, -1)


def elements(dims: str, place: int = 0) -> int:
    """Count the elements of an input in "Input Dims" (all tensors of a tensor list); -1 if unknown.

    c10d lists the output before the input.
    """
    shapes = recorded_list(dims)
    if len(shapes) <= place:
        return -1
    shape = shapes[place]
    if not shape:  # a scalar; without a tensor type the size is unknown
        return 1
    try:
        tensors = shape if isinstance(shape[0], list) else [shape]
        count = sum(prod(tensor) for tensor in tensors)
    except (TypeError, LookupError):
        return -1
    return count if limits.COUNT.holds(count) else -1


def first_shape(dims: str) -> str:
    """Return the shape of the first input (the first tensor of a tensor list); empty if unknown."""
    shape = next(iter(recorded_list(dims)), None)
    while isinstance(shape, list) and shape and isinstance(shape[0], list):
        shape = shape[0]
    return json.dumps(shape, separators=(",", ":")) if isinstance(shape, list) and shape else ""


def _first_type(types: str) -> str:
    first = next(iter(recorded_list(types)), None)
    return first if isinstance(first, str) and size_of(first) > 0 else ""
