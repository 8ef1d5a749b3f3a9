"""Tables of configurations: rows of a CSV file become predictions, one row each, with what was wrong in `error`.

A row says the model, the cluster and the configuration by column; `COLUMNS` documents them, and `ALIASES` are other
usual names. What a row leaves out takes its default; what is impossible is refused in the row's own `error`.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from usp_prof import limits
from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import Configuration, Offload, Recompute, broken_rule
from usp_prof.model.errors import UsageError, UspProfError
from usp_prof.model.files import csv_rows
from usp_prof.model.printable import csv_cell
from usp_prof.model.shape import missing_sizes, shape_of, stacked
from usp_prof.planner.cases import cases_of, machine_of
from usp_prof.planner.cluster import LEAST_NETWORK, of_device
from usp_prof.planner.models import model_named
from usp_prof.planner.predict import Prediction, records
from usp_prof.planner.profiles import DEFAULT_TRAINER, profile_named
from usp_prof.schedule import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.planner.cluster import Cluster
    from usp_prof.planner.predict import Prediction


SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "experts", "experts_per_token",
    "shared_experts", "expert_ffn_hidden", "moe_layers",
)  # fmt: skip
COLUMNS = {
    "model": "a name (`usp-prof plan --models-known`) or a file; not needed where the shape is given",
    **dict.fromkeys(SHAPE, "the model's shape, where no name or file gives it"),
    "gated_ffn": "1 (default): the feed-forward block has a gate, so three matrices; 0: two",
    "tied_embeddings": "1: embedding and head share their weights; 0 (default)",
    "sequence": "tokens of a sequence",
    "device": "a device of the hardware table (`usp-prof plan --devices-known`)",
    "devices": "how many; where `dp` is missing it follows from them",
    "node": "devices that share a node's links",
    "network": "GB/s of one device's share of the network, one direction",
    "trainer": "whose habits: megatron (default), nanotron, torchtitan, usp-prof",
    "dp": "data-parallel degree", "tp": "tensor", "cp": "context", "pp": "pipeline",
    "ep": "experts, out of dp x cp (and tp)",
    "etp": "over how many ranks of tp each expert is divided",
    "zero": "ZeRO stage, 0 to 3", "replicas": "copies of the shards that hybrid sharding keeps",
    "micro_batch": "sequences of a micro-batch", "micro_batches": "how many of them a step has on one rank of dp",
    "batch": "sequences of a step over all devices, where `micro_batches` is missing",
    "schedule": "pipeline schedule", "chunks": "stages on each pipeline rank",
    "recompute": "none, selective or full",
    "recompute_layers": "layers of a stage that full recomputation computes again; 0 (default): all",
    "recompute_group": "layers that share one kept input (default 1)",
    "recompute_method": "Megatron's: block makes `recompute_num_layers` layers of a stage, uniform a group",
    "recompute_num_layers": "Megatron's, with `recompute_method`",
    "offload": "optimizer: it lies in the host's memory; none (default)", "dtype": "bf16, fp16, fp8, fp4, fp32",
    "sequence_parallel": "1 (default) or 0", "fused_attention": "1 (default) or 0: the score matrix is kept",
    "gradient_bytes": "bytes of a gradient in memory; 0: the trainer's habit",
}  # fmt: skip
ALIASES = {
    "seq": "sequence", "seq_len": "sequence", "gpu": "device", "n_gpus": "devices", "framework": "trainer",
    "mbs": "micro_batch", "grad_acc": "micro_batches", "gbs": "batch", "gbs_samples": "batch", "vpp": "chunks",
    "precision": "dtype", "ffn": "ffn_hidden", "expert_ffn": "expert_ffn_hidden", "tied": "tied_embeddings",
    "gated": "gated_ffn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row, understood."""

    model: ModelEntry
    cluster: Cluster
    configuration: Configuration
    trainer: str


MAX_WHOLE = 1 << 31
"""Of one whole number in a table: sequences, degrees and sizes of a model, whose products are counted in 64 bits."""


def predict_table(rows: Sequence[Mapping[str, str]], convention: str = "palm") -> list[Prediction | str]:
    """Predict every row; a row that is refused gives the sentence that says why."""
    found: list[Prediction | str] = []
    good: list[tuple[int, Case]] = []
    for place, row in enumerate(rows):
        try:
            good.append((place, understood(row)))
            found.append("")
        except UspProfError as error:
            found.append(str(error))
    if good:
        cases = [case for _, case in good]
        # One record for each model, machine and trainer that occurs, so that stacking is cheap.
        shapes = {id(case.model): shape_of(case.model) for case in cases}
        columns = cases_of(
            stacked([shapes[id(case.model)] for case in cases]),
            stacked([machine_of(case.cluster) for case in cases]),
            stacked([profile_named(case.trainer) for case in cases]),
            [case.configuration for case in cases],
        )
        made = records(columns, [case.configuration for case in cases], [case.model for case in cases], convention)
        for (place, _), prediction in zip(good, made, strict=True):
            found[place] = prediction
    return found


def understood(row: Mapping[str, str]) -> Case:
    """Read one row; raises with what is missing or impossible."""
    given = {ALIASES.get(name, name): value.strip() for name, value in row.items() if name and value and value.strip()}
    model = _model(given)
    dtype = given.get("dtype", "bf16").lower()
    cluster = _cluster(given, _precision(dtype))
    degrees = {name: _whole(given, name, 1) for name in ("tp", "cp", "pp", "ep", "chunks", "micro_batch", "replicas")}
    for name, degree in degrees.items():
        if degree < 1:
            raise UsageError(f"{name} = {degree}: every degree and count is at least 1")
    dp = _data_ranks(given, degrees["tp"] * degrees["cp"] * degrees["pp"])
    number = _whole(given, "micro_batches", 0)
    batch = _whole(given, "batch", 0)
    if not number and batch % (dp * degrees["micro_batch"]):
        raise UsageError(f"dp x micro_batch = {dp * degrees['micro_batch']} does not divide the batch of {batch}")
    if number and batch and number * dp * degrees["micro_batch"] != batch:
        raise UsageError(f"dp x micro_batch x micro_batches = {number * dp * degrees['micro_batch']} is not {batch}")
    number = number or max(1, batch // (dp * degrees["micro_batch"]))
    configuration = Configuration(
        dp=dp,
        micro_batches=number,
        zero=_whole(given, "zero", 1 if dp * degrees["cp"] > 1 else 0),
        etp=_whole(given, "etp", 0),
        schedule=given.get("schedule", "interleaved" if degrees["chunks"] > 1 else "1f1b"),
        recompute=_recompute(given.get("recompute", "none")),
        **_partly_recomputed(given),
        offload=_offload(given.get("offload", "none")),
        dtype=_precision(dtype),
        sequence_parallel=_flag(given, "sequence_parallel", default=1),
        fused_attention=_flag(given, "fused_attention", default=1),
        gradient_bytes=_number(given, "gradient_bytes", 0.0),
        tp=degrees["tp"], cp=degrees["cp"], pp=degrees["pp"], ep=degrees["ep"], chunks=degrees["chunks"],
        micro_batch=degrees["micro_batch"], replicas=degrees["replicas"],
    )  # fmt: skip
    if named(configuration.schedule) is None:
        raise UsageError(f"no schedule is named {configuration.schedule!r}")
    rule = broken_rule(model, configuration)
    if rule:
        raise UsageError(rule)
    trainer = given.get("trainer", DEFAULT_TRAINER)
    profile_named(trainer)
    return Case(model, cluster, configuration, trainer)


def _data_ranks(given: Mapping[str, str], ranks: int) -> int:
    """Read dp, or work it out from the devices; `ranks` is what the other axes take."""
    devices = _whole(given, "devices", 0)
    if "dp" not in given and devices % ranks:
        raise UsageError(f"tp x cp x pp = {ranks} does not divide {devices} devices")
    dp = _whole(given, "dp", max(1, devices // ranks))
    if dp < 1:
        raise UsageError(f"dp = {dp}: every degree and count is at least 1")
    if devices and dp * ranks != devices:
        raise UsageError(f"dp x tp x cp x pp = {dp * ranks} is not the {devices} devices")
    if dp * ranks > limits.MAX_RANKS:
        raise UsageError(f"dp x tp x cp x pp = {dp * ranks} is more than the {limits.MAX_RANKS} devices of any plan")
    return dp


_MODELS: dict[tuple[str, ...], ModelEntry] = {}


def _model(given: Mapping[str, str]) -> ModelEntry:
    """Read the model: by its shape where that is given, else by name or file. Equal models are one object."""
    names = ("model", "sequence", *SHAPE, "gated_ffn", "tied_embeddings")
    key = tuple(given.get(name, "") for name in names)
    if key not in _MODELS:
        sequence = _whole(given, "sequence", 0)
        if {"layers", "hidden", "heads"} <= given.keys() and (given.keys() & {"ffn_hidden", "expert_ffn_hidden"}):
            sizes: dict[str, Any] = {name: _whole(given, name, 0) for name in SHAPE}
            sizes["kv_heads"] = sizes["kv_heads"] or sizes["heads"]
            sizes["head_dim"] = sizes["head_dim"] or sizes["hidden"] // max(sizes["heads"], 1)
            model = ModelEntry(
                name=given.get("model", ""),
                sequence=sequence,
                gated_ffn=_flag(given, "gated_ffn", default=1),
                tied_embeddings=_flag(given, "tied_embeddings", default=0),
                **sizes,
            )
        elif "model" in given:
            model = model_named(given["model"], sequence)
            if "layers" in given:
                model = _with_layers(model, _whole(given, "layers", 0))
        else:
            raise UsageError("the row names no model and gives no shape", hint="layers, hidden, heads, ffn_hidden")
        if not model.sequence:
            raise UsageError("the row gives no sequence length")
        if missing := missing_sizes(model):
            raise UsageError(f"{', '.join(missing)}: at least 1")
        _MODELS[key] = model
    return _MODELS[key]


def _with_layers(model: ModelEntry, layers: int) -> ModelEntry:
    """Cut a model down to its first layers, as proxies of large ones are run."""
    if layers < 1:
        raise UsageError("layers are at least 1")
    return replace(model, layers=layers, layer_order=model.layer_order[:layers], flop_per_token={}, parameters=0)


_CLUSTERS: dict[tuple[str, ...], Cluster] = {}


def _cluster(given: Mapping[str, str], dtype: str) -> Cluster:
    key = (given.get("device", ""), given.get("node", ""), given.get("network", ""), dtype)
    if key not in _CLUSTERS:
        if not key[0]:
            raise UsageError("the row names no device")
        cluster = of_device(key[0], dtype)
        node, network = _whole(given, "node", cluster.devices_per_node), _number(given, "network", 0.0)
        if node < 1:
            raise UsageError("node is at least 1")
        if 0 < network < LEAST_NETWORK:
            raise UsageError(f"network is at least {LEAST_NETWORK:g} GB/s, not {given['network']!r}")
        _CLUSTERS[key] = replace(cluster, devices_per_node=node, network_rate=network * 1e9 or cluster.network_rate)
    return _CLUSTERS[key]


def _precision(dtype: str) -> str:
    """Reduce a trainer's word for its precision to ours."""
    if "fp4" in dtype:
        return "fp4"
    if "fp8" in dtype or "float8" in dtype:
        return "fp8"
    return {"bfloat16": "bf16", "amp_bf16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)


def _recompute(word: str) -> Recompute:
    first = word.lower().split()[0]
    if first not in list(Recompute):
        raise UsageError(f"recompute is none, selective or full, not {word!r}")
    return Recompute(first)


def _partly_recomputed(given: Mapping[str, str]) -> dict[str, int]:
    """Read which layers are recomputed, in our words or in Megatron's."""
    layers, group = _whole(given, "recompute_layers", 0), _whole(given, "recompute_group", 1)
    method, number = given.get("recompute_method", ""), _whole(given, "recompute_num_layers", 0)
    if method not in ("", "block", "uniform") or (number and not method):
        raise UsageError(f"recompute_method is block or uniform, not {method!r}")
    return {
        "recompute_layers": number if method == "block" else layers,
        "recompute_group": max(number, 1) if method == "uniform" else group,
    }


def _offload(word: str) -> Offload:
    if word.lower() not in list(Offload):
        raise UsageError(f"offload is none or optimizer, not {word!r}")
    return Offload(word.lower())


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        raise UsageError(f"{name} is a number, not {given[name]!r}") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} is a finite number of at least 0, not {given[name]!r}")
    if value > limits.COUNT.high:
        raise UsageError(f"{name} is at most {limits.COUNT.high}, not {given[name][:24]}")
    return value


def _flag(given: Mapping[str, str], name: str, *, default: int) -> bool:
    value = _whole(given, name, default)
    if value > 1:
        raise UsageError(f"{name} is 1 or 0, not {given[name]!r}")
    return value == 1


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    truth = {"true": "1", "false": "0"}
    text = truth.get(given.get(name, "").lower())
    value = float(text) if text is not None else _number(given, name, default)
    if value != int(value):
        raise UsageError(f"{name} is a whole number, not {given[name]!r}")
    if value > MAX_WHOLE:
        raise UsageError(f"{name} is at most {MAX_WHOLE}, not {given[name][:24]}")
    return int(value)


# The table's file: rows of a CSV file, and the same rows with their predictions beside them.

GIVEN = (
    "step_ns", "step_low_ns", "step_high_ns", "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "tokens_per_second_device", "mfu_fraction", "memory_bytes", "memory_low_bytes", "memory_high_bytes", "fits",
    "fit_probability", "compute_ns", "exposed_tp_ns", "exposed_dp_ns", "exposed_cp_ns", "exposed_ep_ns", "bubble_ns",
    "optimizer_ns", "fixed_ns", "stall_fraction", "expected_step_ns", "host_bytes", "error",
)  # fmt: skip
"""Columns that a prediction adds."""


def read_rows(file: TextIO) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV file: its columns and its rows."""
    columns, rows = csv_rows(file, "table")
    known = {*COLUMNS, *ALIASES}
    if not known & set(columns):
        raise UsageError(f"the table has none of the columns {', '.join(list(COLUMNS)[:6])}, ...")
    return columns, rows


def write_rows(
    file: TextIO, columns: Sequence[str], rows: Sequence[Mapping[str, str]], found: Sequence[Prediction | str]
) -> None:
    """Write the rows with the columns of `GIVEN` beside them; a column of that name in the input is replaced."""
    kept = [column for column in columns if column not in GIVEN]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in (*kept, *GIVEN)])
    for row, prediction in zip(rows, found, strict=True):
        writer.writerow([csv_cell(text) for text in (*(row[column] for column in kept), *_values(prediction))])


def _values(p: Prediction | str) -> list[str]:
    if isinstance(p, str):
        return [""] * (len(GIVEN) - 1) + [p]
    c = p.configuration
    values = (
        p.step_ns, p.step_low_ns, p.step_high_ns, p.tokens_per_second, p.tokens_per_second * p.step_ns / p.step_high_ns,
        p.tokens_per_second * p.step_ns / p.step_low_ns, p.tokens_per_second / c.devices,
    )  # fmt: skip
    rest = [p.compute_ns, *(p.exposed_ns.get(axis, 0.0) for axis in ("tp", "dp", "cp", "ep"))]
    rest += [p.bubble_ns, p.optimizer_ns, p.fixed_ns]
    memory = (p.footprint.total_bytes, p.memory_low_bytes, p.memory_high_bytes)
    return [
        *(f"{value:.0f}" for value in values),
        f"{p.mfu:.5f}",
        *(f"{value:.0f}" for value in memory),
        str(int(p.fit_probability >= 0.5)),
        f"{p.fit_probability:.3f}",
        *(f"{value:.0f}" for value in rest),
        f"{p.stall_fraction:.3f}",
        f"{p.expected_step_ns:.0f}",
        f"{p.host_bytes:.0f}",
        "",
    ]
