from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made import run, step
from tiny import Trace, table_set

import usp_prof
from usp_prof import conventions
from usp_prof.analyses import mfu
from usp_prof.analyses.result import impossible
from usp_prof.contract import Manifest, ModelEntry
from usp_prof.extras.synth.declaration import Declaration, Mesh, Shape, Speed, Work
from usp_prof.extras.synth.write import write
from usp_prof.model.errors import UsageError
from usp_prof.model.selection import Assumptions, Selection

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

MODEL = ModelEntry(
    layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=128, vocab=100, sequence=32, parameters=90_000
)
MANIFEST = Manifest(tokens_per_step=1_000_000, model=MODEL, dtype="bfloat16", recompute="full")
PALM = 6 * 90_000 + 12 * 2 * 64 * 32


def tables(manifest: Manifest | None = MANIFEST, device: str = "NVIDIA H100 80GB HBM3", world: int = 4) -> TableSet:
    """Make two of four ranks, with two steps of 1 ms and 3 ms."""
    ranks = [{"device": device, "world_size": world, "host": "a", "base_ns": 1}]
    rows = {"ranks": ranks, "steps": [step(1, 0, 1_000_000), step(2, 1_000_000, 4_000_000)]}
    return run({0: rows, 1: rows}, manifest)


def figures(result: mfu.MfuResult) -> dict[tuple[str, object], float]:
    return {(value.metric.id, next(iter(value.dims.values()), "")): value.value for value in result.values()}


def test_mfu_is_model_flops_over_the_peak_of_all_devices() -> None:
    figure_of_metric = figures(mfu.compute(tables()))
    rate = 1_000_000 / 2e-3
    assert figure_of_metric["mfu", ""] == pytest.approx(PALM * rate / (4 * 989e12))
    assert figure_of_metric["mfu", 1] == pytest.approx(PALM * 1_000_000 / 1e-3 / (4 * 989e12))
    assert figure_of_metric["hfu", ""] == pytest.approx(figure_of_metric["mfu", ""] * 4 / 3)
    assert figure_of_metric["model_flop_per_token", "palm"] == PALM


def test_a_paced_run_has_no_mfu() -> None:
    result = mfu.compute(tables(replace(MANIFEST, paced=True)))
    assert not {"mfu", "hfu"} & {value.metric.id for value in result.values()}
    assert "paced_compute" in {row.code for row in result.notes}


def test_a_window_of_unknown_steps_has_no_mfu() -> None:
    ranks = [{"device": "NVIDIA H100 80GB HBM3", "world_size": 2, "host": "a", "base_ns": 1}]
    rows = {"ranks": ranks, "steps": [step(0, 0, 1_000_000, source="window")]}
    result = mfu.compute(run({0: rows, 1: rows}, MANIFEST))
    assert not {"mfu", "hfu"} & {value.metric.id for value in result.values()}
    assert "window_is_no_step" in {note.code for note in result.notes}


def test_the_convention_is_named_and_changes_the_figure() -> None:
    run_tables = tables()
    run_tables = run_tables.assuming(Assumptions(convention="causal"))
    result = mfu.compute(run_tables)
    assert result.convention == "causal"
    assert result.mfu < mfu.compute(tables()).mfu
    table = result.to_pandas()
    assert table.convention.tolist() == list(conventions.CONVENTIONS)
    assert table.loc[table.chosen, "mfu"].item() == pytest.approx(result.mfu)
    run_tables = run_tables.assuming(Assumptions(convention="narayanan"))
    with pytest.raises(UsageError, match="convention"):
        mfu.compute(run_tables)


def test_assumptions_take_precedence_over_the_manifest() -> None:
    run_tables = tables()
    run_tables = run_tables.assuming(Assumptions(model=replace(MODEL, parameters=180_000, sequence=0), peak_flops=1e12))
    result = mfu.compute(run_tables)
    assert result.flop_per_token["palm"] == 6 * 180_000 + 12 * 2 * 64 * 32
    assert (result.peak, result.peak_source) == (1e12, "given by hand")


def test_assumed_tokens_replace_missing_recorded_ones() -> None:
    run_tables = tables(replace(MANIFEST, tokens_per_step=0))
    run_tables = run_tables.assuming(Assumptions(tokens_per_step=1_000_000))
    assert figures(mfu.compute(run_tables)) == figures(mfu.compute(tables()))


def test_a_cpus_measured_peak_is_shared_by_its_processes() -> None:
    manifest = replace(MANIFEST, peak_flops=8e11, processes_per_device=4, peak_source="measured", dtype="float32")
    assert mfu.compute(tables(manifest, device="")).peak == 2e11


@pytest.mark.parametrize(
    ("manifest", "device", "code"),
    [
        (replace(MANIFEST, model=None), "NVIDIA B200", "no_model"),
        (replace(MANIFEST, tokens_per_step=0), "NVIDIA B200", "no_tokens"),
        (replace(MANIFEST, model=replace(MODEL, sequence=0)), "NVIDIA B200", "no_model_flop"),
        (MANIFEST, "Quantum 9", "no_device_peak"),
        (replace(MANIFEST, dtype="bfloat16"), "Tesla V100-SXM2-16GB", "no_device_peak"),
        (None, "NVIDIA B200", "no_model"),
    ],
)
def test_missing_inputs_are_reported_and_figures_withheld(manifest: Manifest | None, device: str, code: str) -> None:
    result = mfu.compute(tables(manifest, device))
    assert code in [note.code for note in result.notes]
    assert not {key for key in figures(result) if key[0] in {"mfu", "hfu"}}


def test_incomplete_model_descriptions_are_reported() -> None:
    result = mfu.compute(tables(replace(MANIFEST, model=replace(MODEL, notes=["vision layers are not counted"]))))
    assert {note.code: note.detail for note in result.notes}["model_description"] == "vision layers are not counted"


def test_an_impossible_mfu_is_withheld_and_its_inputs_are_doubted() -> None:
    """MFU would be 42,400%: the tokens are per epoch, or the peak is far too low."""
    run_tables = tables()
    run_tables = run_tables.assuming(Assumptions(peak_flops=1e3))
    result = mfu.compute(run_tables)
    assert not {key for key in figures(result) if key[0] in {"mfu", "hfu"}}
    assert np.isnan(result.mfu)
    assert np.isnan(result.listing()["mfu"]).all()
    detail_of_metric = {row.detail.split()[0]: row.detail for row in impossible(result.values())}
    assert set(detail_of_metric) == {"mfu", "hfu"}
    assert "the device's peak" in detail_of_metric["mfu"]


def test_an_unknown_precision_is_not_blamed_on_the_device() -> None:
    """A note used to claim that H800 has no known dense peak, although its peaks are known."""
    result = mfu.compute(tables(replace(MANIFEST, dtype=""), "NVIDIA H800"))
    detail_of_note = {note.code: note.detail for note in result.notes}
    assert "precision" in detail_of_note["precision_unknown"]
    assert "no_device_peak" not in detail_of_note


def test_unknown_recomputation_gives_no_hfu() -> None:
    result = mfu.compute(tables(replace(MANIFEST, recompute="")))
    assert [note.code for note in result.notes] == ["recompute_unknown"]
    assert ("hfu", "") not in figures(result)


SHAPE = Shape(layers=2, hidden=512, heads=8, kv_heads=8, ffn_hidden=1024, vocab=2048, sequence=256)


def test_the_ops_of_a_synthetic_run_match_its_model(tmp_path: Path) -> None:
    declared = Declaration(mesh=Mesh(dp=2, tp=2, pp=2), shape=SHAPE, work=Work(steps=2), speed=Speed(head_ns=50_000))
    write(declared, tmp_path / "run")
    run_tables = usp_prof.open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables
    result = mfu.compute(run_tables)
    weights, attention = result.parts
    assert weights.ratio == pytest.approx(1.0)
    assert attention.ratio == pytest.approx(7 / 12)
    assert "causal" in attention.why
    assert figures(result)["hfu", ""] == pytest.approx(figures(result)["mfu", ""])
    assert result.check_listing()["part"] == ["weights", "attention"]
    assert mfu.compute(run_tables, Selection(ranks=(0,))).parts == ()
    run_tables.manifest = replace(run_tables.manifest or Manifest(), dtype="")
    assert mfu.compute(run_tables).precision == "bf16"


@pytest.fixture(scope="module")
def synthetic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic")
    declared = Declaration(mesh=Mesh(tp=2, pp=2), shape=SHAPE, work=Work(steps=2), speed=Speed(head_ns=50_000))
    write(declared, folder / "run")
    return folder


def assumed(folder: Path, **given: object) -> TableSet:
    run_tables = usp_prof.open_run(folder / "run", cache_dir=folder / "cache").tables
    return run_tables.assuming(Assumptions(**given))  # type: ignore[arg-type]


def model_of(folder: Path) -> ModelEntry:
    manifest = assumed(folder).manifest
    assert manifest is not None
    assert manifest.model is not None
    return manifest.model


def scaled(model: ModelEntry, factor: float) -> ModelEntry:
    """Make a model whose cost per token is multiplied by `factor`."""
    return replace(
        model, flop_per_token={name: factor * flop for name, flop in conventions.flop_per_token(model).items()}
    )


# Biases, routers and padding may explain a quarter; attention may be causal (half), and forward may run twice.
@pytest.mark.parametrize(("factor", "is_refused"), [(10, True), (2, True), (1.1, False), (0.9, False), (0.3, True)])
def test_a_model_that_the_ops_contradict_has_no_mfu(synthetic_run: Path, factor: float, is_refused: bool) -> None:
    """MFU used to be shown for an assumed model that the ops contradict; only a note mentioned it."""
    result = mfu.compute(assumed(synthetic_run, model=scaled(model_of(synthetic_run), factor)))
    assert bool(np.isnan(result.mfu)) is is_refused
    assert bool({"mfu", "hfu"} & {key[0] for key in figures(result)}) is not is_refused
    detail_of_note = {note.code: note.detail for note in result.notes}
    assert ("model_contradicted" in detail_of_note) is is_refused
    if is_refused:
        assert "the model given by hand" in detail_of_note["model_contradicted"]
        assert ("the most" if factor < 1 else "the least") in detail_of_note["model_contradicted"]


@pytest.mark.parametrize("factor", [0.1, 10])
def test_tokens_that_the_ops_contradict_have_no_mfu_and_no_rate(synthetic_run: Path, factor: float) -> None:
    """Tokens per second used to be ten times too high, although MFU was withheld because of the same tokens."""
    run_tables = assumed(synthetic_run)
    tokens = round(run_tables.tokens_per_step * factor)
    result = mfu.compute(assumed(synthetic_run, tokens_per_step=tokens))
    assert np.isnan(result.mfu)
    assert np.isnan(result.listing()["tokens_per_second"]).all()
    assert ("tokens_per_second", "") not in figures(result)
    assert f"{tokens:,} tokens per step" in {note.code: note.detail for note in result.notes}["model_contradicted"]


def test_recorded_tokens_are_kept_if_the_recorded_model_matches_the_ops(synthetic_run: Path) -> None:
    """Here only the assumed model is wrong. Without another model, it is unknown which input is wrong."""
    recorded = figures(mfu.compute(assumed(synthetic_run)))["tokens_per_second", ""]
    wrong = scaled(model_of(synthetic_run), 10)
    assert figures(mfu.compute(assumed(synthetic_run, model=wrong)))["tokens_per_second", ""] == recorded
    alone = assumed(synthetic_run, model=wrong)
    assert alone.manifest is not None
    alone.manifest = replace(alone.manifest, model=None)
    assert ("tokens_per_second", "") not in figures(mfu.compute(alone))
    manifests_own = assumed(synthetic_run)
    assert manifests_own.manifest is not None
    manifests_own.manifest = replace(manifests_own.manifest, model=wrong)
    assert ("tokens_per_second", "") not in figures(mfu.compute(manifests_own))


def test_one_rank_is_enough_to_contradict_a_model(synthetic_run: Path) -> None:
    """Unread ranks count like the others. A factor of two may be an uneven stage; a factor of ten cannot."""
    chosen = Selection(ranks=(1,))
    assert np.isnan(mfu.compute(assumed(synthetic_run, model=scaled(model_of(synthetic_run), 10)), chosen).mfu)
    assert not np.isnan(mfu.compute(assumed(synthetic_run, model=scaled(model_of(synthetic_run), 1.5)), chosen).mfu)


def test_a_peak_below_the_rate_of_the_products_gives_no_mfu() -> None:
    """MFU is far below one because the device idles. Only the rate of the products shows that the peak is wrong."""
    trace = Trace().meta(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]).step(1, at=0, dur=3_000_000)
    shapes = [[1024, 1024], [1024, 1024]]
    trace.op("aten::mm", at=0, dur=90, dims=shapes, types=["c10::BFloat16"] * 2, external_id=1)
    trace.kernel("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", at=1_000, dur=10_000, launch_at=10)
    trace.kernel("elementwise_kernel", at=900_000, dur=1_000, launch_at=20)  # the step is 900 us long
    product_rate = 2 * 1024**3 / 10e-6
    run_tables = table_set(trace)
    run_tables.manifest = Manifest(tokens_per_step=1, model=ModelEntry(flop_per_token={"palm": 2.0 * 1024**3}))
    right = mfu.compute(run_tables)
    assert right.mfu == pytest.approx(2 * 1024**3 / 900e-6 / 989e12, rel=0.01)
    run_tables = run_tables.assuming(Assumptions(peak_flops=product_rate / 1.05))
    assert not np.isnan(mfu.compute(run_tables).mfu)
    run_tables = run_tables.assuming(Assumptions(peak_flops=product_rate / 2))
    wrong = mfu.compute(run_tables)
    assert np.isnan(wrong.mfu)
    assert "above the peak of 107 TFLOP/s" in {note.code: note.detail for note in wrong.notes}["peak_contradicted"]


def test_a_mesh_of_another_job_gives_no_mfu() -> None:
    result = mfu.compute(tables(replace(MANIFEST, mesh={"dp": 4, "tp": 2}), world=4))
    assert np.isnan(result.mfu)
    assert [note.code for note in result.notes] == ["devices_contradicted"]
    assert not mfu.compute(tables(replace(MANIFEST, mesh={"dp": 2, "tp": 2, "ep": 2}), world=4)).notes


def test_a_job_without_a_world_size_ends_with_its_highest_rank() -> None:
    """Ranks 0 and 7 used to count as two devices, so MFU was four times too high."""
    rows = {"steps": [step(1, 0, 1_000_000)]}
    assert mfu.compute(run({0: rows, 7: rows}, MANIFEST)).devices == 8
    groups = [{"group": "dp@0,15", "name": "dp", "size": 2, "ranks": "0,15"}]
    assert mfu.compute(run({0: {**rows, "groups": groups}}, MANIFEST)).devices == 16
    assert mfu.compute(run({0: rows}, replace(MANIFEST, mesh={"dp": 2, "pp": 2}))).devices == 4


@pytest.mark.parametrize("name", ["recorded-1f1b", "recorded-zero3-prefetch", "recorded-slow-rank"])
def test_the_products_of_recorded_runs_match_their_models_exactly(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "traces" / name
    if not (folder / "run.json").exists():
        pytest.skip("this recorded run is not here")
    weights, attention = mfu.compute(usp_prof.open_run(folder, cache_dir=tmp_path).tables).parts
    assert weights.ratio == pytest.approx(1.0, abs=1e-9)
    assert attention.ratio == pytest.approx(7 / 12, rel=0.01)


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"replicate": 2, "tp": 2}, {"sp": 2, "dp": 2}], ids=str)
def test_a_partial_mesh_does_not_withhold_mfu(mesh: dict[str, int]) -> None:
    """A user's loop may pass one dimension of its mesh, or dimensions with custom names."""
    result = mfu.compute(tables(replace(MANIFEST, mesh=mesh), world=4))
    assert not np.isnan(result.mfu)
    assert not result.notes
