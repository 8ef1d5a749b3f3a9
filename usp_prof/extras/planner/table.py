"""Tables of configurations: one prediction per row of a CSV file, with the reason for a refusal in `error`.

Columns of a row set the model, the cluster and the configuration. `COLUMNS` lists them, and `ALIASES` are other common
names. Missing values have defaults; impossible rows are refused in their `error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TextIO, TypeVar

from usp_prof import limits
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.cases import Cases, cases_of, machine_of
from usp_prof.extras.planner.cluster import Cluster, cluster_of
from usp_prof.extras.planner.model_rules import broken_rule, modules_named
from usp_prof.extras.planner.predict import Prediction, records
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER, Profile, profile_named
from usp_prof.extras.planner.ranges import SIZES, SWITCHES, most_of, range_of_knob
from usp_prof.extras.planner.stages import leaves_rank_empty
from usp_prof.model.configuration import MODULES, Configuration, Offload, Recompute
from usp_prof.model.errors import UsageError, UspProfError
from usp_prof.model.files import csv_rows
from usp_prof.model.known_models import model_named
from usp_prof.model.shape import missing_sizes, shape_of, stacked
from usp_prof.schedule import schedule_by_name

SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "experts", "experts_per_token",
    "shared_experts", "expert_ffn_hidden", "moe_layers",
)  # fmt: skip
COLUMNS = (
    "model", *SHAPE,
    "gated_ffn", "tied_embeddings", "sequence", "device", "devices", "node", "network", "efficiency", "memory_share",
    "trainer", "dp", "tp", "cp", "pp", "ep", "etp", "zero", "replicas", "micro_batch", "micro_batches", "batch",
    "schedule", "chunks", "recompute", "recompute_layers", "recompute_group", "recompute_modules", "offload_layers",
    "loss_chunks", "recompute_method", "recompute_num_layers", "offload", "dtype", "sequence_parallel",
    "fused_attention", "expert_overlap", "gradient_bytes", "optimizer_bytes",
)  # fmt: skip
"""Columns of a table; docs/reference/planner.md explains them."""
ALIASES = {
    "seq": "sequence", "seq_len": "sequence", "gpu": "device", "n_gpus": "devices", "framework": "trainer",
    "mbs": "micro_batch", "grad_acc": "micro_batches", "gbs": "batch", "gbs_samples": "batch", "vpp": "chunks",
    "precision": "dtype", "ffn": "ffn_hidden", "expert_ffn": "expert_ffn_hidden", "tied": "tied_embeddings",
    "gated": "gated_ffn",
}  # fmt: skip
KNOWN = {*COLUMNS, *ALIASES}
_HINT = "docs/reference/planner.md lists the columns and their values"
MAX_WHOLE = 1 << 31
"""Maximum of an integer in a table (sequences, degrees, model sizes), so that products fit 64 bits."""
TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
Word = TypeVar("Word", Recompute, Offload)


def read_rows(file: TextIO) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV file; return its columns and its rows."""
    columns, rows = csv_rows(file, "table")
    if not KNOWN & set(columns):
        raise UsageError(f"the table has none of the columns {', '.join(COLUMNS[:6])}, ...", hint=_HINT)
    return columns, rows


@dataclass(frozen=True, slots=True)
class Case:
    """One parsed row."""

    model: ModelEntry
    cluster: Cluster
    configuration: Configuration
    trainer: str


def predict_table(
    rows: Sequence[Mapping[str, str]], convention: str = "palm", defaults: Mapping[str, str] = MappingProxyType({})
) -> list[Prediction | str]:
    """Predict every row; a refused row has the reason. `defaults` fill empty cells."""
    cases_or_reasons = [_case_or_reason(row, defaults) for row in rows]
    cases = [case_or_reason for case_or_reason in cases_or_reasons if isinstance(case_or_reason, Case)]
    if not cases:
        return [str(case_or_reason) for case_or_reason in cases_or_reasons]
    configurations, models = [case.configuration for case in cases], [case.model for case in cases]
    predictions = iter(records(stacked_cases(cases), configurations, models, convention))
    return [
        next(predictions) if isinstance(case_or_reason, Case) else case_or_reason for case_or_reason in cases_or_reasons
    ]


def _case_or_reason(row: Mapping[str, str], defaults: Mapping[str, str]) -> Case | str:
    try:
        return understood(row, defaults)
    except UspProfError as error:
        return str(error)


def stacked_cases(cases: Sequence[Case], profile: Profile | None = None) -> Cases:
    """Combine rows into columns; `profile` replaces each row's own."""
    # One record per distinct model, machine and trainer, so that stacking is cheap.
    shapes = {id(case.model): shape_of(case.model) for case in cases}
    return cases_of(
        stacked([shapes[id(case.model)] for case in cases]),
        stacked([machine_of(case.cluster) for case in cases]),
        stacked([profile or profile_named(case.trainer) for case in cases]),
        [case.configuration for case in cases],
    )


Cells = dict[str, str]
"""Non-empty cells of a row, by the names in `COLUMNS`."""
OF_MODEL = ("model", "sequence", *SHAPE, "gated_ffn", "tied_embeddings")
OF_SHAPE = ("hidden", "heads", "ffn_hidden", "vocab", "experts", "experts_per_token", "expert_ffn_hidden")
OF_CLUSTER = ("device", "node", "network", "efficiency", "memory_share")
NUMBERS = ("tp", "cp", "pp", "ep", "etp", "chunks", "micro_batch", "replicas", "offload_layers", "loss_chunks")
USUAL = Configuration()


def understood(row: Mapping[str, str], defaults: Mapping[str, str] = MappingProxyType({})) -> Case:
    """Parse one row; raise for missing or impossible values. `defaults` fill empty cells."""
    cells = {**defaults, **_cells(row)}
    dtype = _precision(cells.get("dtype", "bf16").lower())
    model = _model(_key(cells, OF_MODEL))
    cluster = _cluster(_key(cells, OF_CLUSTER), dtype)
    settings: dict[str, Any] = {
        **{name: _integer(cells, name, getattr(USUAL, name), range_of_knob(name).low) for name in NUMBERS},
        **{name: _flag(cells, name, default=getattr(USUAL, name)) for name in SWITCHES},
        **{name: _number(cells, name) for name in SIZES},
        **_partly_recomputed(cells),
    }
    dp = _data_ranks(cells, settings["tp"] * settings["cp"] * settings["pp"])
    trainer = cells.get("trainer", DEFAULT_TRAINER)
    profile = profile_named(trainer)
    schedule = cells.get("schedule", "interleaved" if settings["chunks"] > 1 else "1f1b")
    if schedule_by_name(schedule) is None:
        raise UsageError(f"no schedule is named {schedule!r}", hint=_HINT)
    modules = _modules(cells)
    configuration = Configuration(
        **settings,
        dp=dp,
        micro_batches=_micro_batches(cells, dp * settings["micro_batch"]),
        zero=_integer(cells, "zero", 1 if dp * settings["cp"] > 1 else 0),
        schedule=schedule,
        recompute=_word(cells, "recompute", Recompute) if "recompute" in cells or not modules else Recompute.SELECTIVE,
        recompute_modules=modules,
        offload=_word(cells, "offload", Offload),
        dtype=dtype,
    )
    if rule := broken_rule(model, configuration):
        raise UsageError(rule, hint=_HINT)
    if profile.uneven and leaves_rank_empty(shape_of(model), configuration.pp):
        raise UsageError(
            f"{trainer}'s split by cost leaves a rank of pp={configuration.pp} without a block", hint=_HINT
        )
    return Case(model, cluster, configuration, trainer)


def _cells(row: Mapping[str, str]) -> Cells:
    """Return the non-empty cells by column; two columns with the same meaning must agree."""
    cells: Cells = {}
    for name, value in row.items():
        column, text = ALIASES.get(name, name), (value or "").strip()
        if text and cells.setdefault(column, text) != text:
            raise UsageError(f"{name} = {text} contradicts another column: {column} = {cells[column]}", hint=_HINT)
    return cells


def _key(cells: Cells, columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((column, cells[column]) for column in columns if column in cells)


@lru_cache(maxsize=1024)
def _model(key: tuple[tuple[str, str], ...]) -> ModelEntry:
    """Return the model, by its shape if given, otherwise by name or file. Equal models are one object."""
    cells = dict(key)
    sequence = _integer(cells, "sequence")
    if {"layers", "hidden", "heads"} <= cells.keys() and cells.keys() & {"ffn_hidden", "expert_ffn_hidden"}:
        model = _shaped(cells, sequence)
    elif "model" in cells:
        model = model_named(cells["model"], sequence)
        if "layers" in cells:  # proxies of large models are their first layers
            layers = _integer(cells, "layers", least=1)
            kinds = model.layer_order[:layers]
            model = replace(model, layers=layers, layer_order=kinds, flop_per_token={}, parameters=0)
        other = [name for name in OF_SHAPE if name in cells and _integer(cells, name) != getattr(model, name)]
        if other:
            raise UsageError(
                f"{other[0]} is not that of {model.name}: a shape needs layers, hidden, heads, ffn_hidden", hint=_HINT
            )
    else:
        raise UsageError("the row names no model and gives no shape", hint="layers, hidden, heads, ffn_hidden")
    if not model.sequence:
        raise UsageError("the row gives no sequence length", hint=_HINT)
    if missing := missing_sizes(model):
        raise UsageError(f"{', '.join(missing)}: at least 1", hint=_HINT)
    return model


def _shaped(cells: Cells, sequence: int) -> ModelEntry:
    sizes: dict[str, Any] = {name: _integer(cells, name) for name in SHAPE}
    sizes["kv_heads"] = sizes["kv_heads"] or sizes["heads"]
    sizes["head_dim"] = sizes["head_dim"] or sizes["hidden"] // max(sizes["heads"], 1)
    gated, tied = _flag(cells, "gated_ffn", default=True), _flag(cells, "tied_embeddings", default=False)
    return ModelEntry(cells.get("model", ""), sequence=sequence, gated_ffn=gated, tied_embeddings=tied, **sizes)


@lru_cache(maxsize=1024)
def _cluster(key: tuple[tuple[str, str], ...], dtype: str) -> Cluster:
    """Return the cluster. Equal clusters are one object."""
    cells = dict(key)
    if "device" not in cells:
        raise UsageError("the row names no device", hint=_HINT)
    cluster = cluster_of(cells["device"], dtype)
    node = _integer(cells, "node", cluster.devices_per_node, least=1)
    network_rate = _number(cells, "network") * 1e9
    return replace(
        cluster,
        devices_per_node=node,
        network_rate=network_rate or cluster.network_rate,
        efficiency=_number(cells, "efficiency") or cluster.efficiency,
        memory_share=_number(cells, "memory_share") or cluster.memory_share,
    )


def _data_ranks(cells: Cells, ranks: int) -> int:
    """Return dp, or derive it from the devices; `ranks` is the number of ranks used by the other axes."""
    devices = _integer(cells, "devices")
    if "dp" not in cells and devices % ranks:
        raise UsageError(f"tp x cp x pp = {ranks} does not divide {devices} devices", hint=_HINT)
    dp = _integer(cells, "dp", max(1, devices // ranks), least=1)
    if devices and dp * ranks != devices:
        raise UsageError(f"dp x tp x cp x pp = {dp * ranks} is not the {devices} devices", hint=_HINT)
    if dp * ranks > limits.MAX_RANKS:
        raise UsageError(
            f"dp x tp x cp x pp = {dp * ranks} is more than the {limits.MAX_RANKS} devices of any plan", hint=_HINT
        )
    return dp


def _micro_batches(cells: Cells, together: int) -> int:
    """Return the micro-batches per rank and step, or derive them; all ranks of dp process `together` at a time."""
    number, batch = _integer(cells, "micro_batches"), _integer(cells, "batch")
    if number and batch and number * together != batch:
        raise UsageError(f"dp x micro_batch x micro_batches = {number * together} is not {batch}", hint=_HINT)
    if not number and batch % together:
        raise UsageError(f"dp x micro_batch = {together} does not divide the batch of {batch}", hint=_HINT)
    return number or max(1, batch // together)


def _partly_recomputed(cells: Cells) -> dict[str, int]:
    """Return the recomputed layers, from our options or Megatron's."""
    layers, group = _integer(cells, "recompute_layers"), _integer(cells, "recompute_group", 1)
    method, number = cells.get("recompute_method", ""), _integer(cells, "recompute_num_layers")
    if method not in ("", "block", "uniform") or (number and not method):
        raise UsageError(f"recompute_method is block or uniform, not {method!r}", hint=_HINT)
    return {
        "recompute_layers": number if method == "block" else layers,
        "recompute_group": max(number, 1) if method == "uniform" else group,
    }


def _modules(cells: Cells) -> tuple[str, ...]:
    """Return the modules that selective recomputation repeats, in a column of their own or after `selective`."""
    words = cells.get("recompute", "").lower().split()
    after = [word for word in words[1:] if word in MODULES and words[0] == Recompute.SELECTIVE]
    return modules_named([*modules_named(cells.get("recompute_modules", "")), *after])


def _precision(dtype: str) -> str:
    """Convert a trainer's name of its precision to ours."""
    if "fp4" in dtype:
        return "fp4"
    if "fp8" in dtype or "float8" in dtype:
        return "fp8"
    return {"bfloat16": "bf16", "amp_bf16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)


def _word(cells: Cells, name: str, kind: type[Word]) -> Word:
    """Return one of several words; sources may add text after it, such as `selective core_attn`."""
    words = [str(word) for word in kind]
    first = cells.get(name, "none").lower().split()[0]
    if first not in words:
        raise UsageError(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {cells[name]!r}", hint=_HINT)
    return kind(first)


def _flag(cells: Cells, name: str, *, default: bool) -> bool:
    text = cells.get(name, str(default)).lower()
    if text not in TRUTH:
        raise UsageError(f"{name} is 1 or 0, not {cells[name]!r}", hint=_HINT)
    return TRUTH[text]


def _number(cells: Cells, name: str, default: float = 0.0, most: int = limits.COUNT.high) -> float:
    text, most = cells.get(name, ""), min(most, most_of(name))
    try:
        value = float(text or default)
    except ValueError:
        raise UsageError(f"{name} is a number, not {text[:24]!r}", hint=_HINT) from None
    if not 0 <= value <= most:  # also excludes NaN
        raise UsageError(f"{name} is a finite number from 0 to {most}, not {text[:24]!r}", hint=_HINT)
    return value


def _integer(cells: Cells, name: str, default: int = 0, least: int = 0) -> int:
    value = _number(cells, name, default, MAX_WHOLE)
    if value != int(value):
        raise UsageError(f"{name} is a whole number, not {cells[name]!r}", hint=_HINT)
    if value < least:
        raise UsageError(f"{name} = {value:.0f}: every degree and count is at least 1", hint=_HINT)
    return int(value)
