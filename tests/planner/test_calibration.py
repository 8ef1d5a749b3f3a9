"""Calibration from a recorded run: learned constants, and the reported error."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from usp_prof import open_run
from usp_prof.extras.planner.calibration import Calibration, calibrate
from usp_prof.extras.planner.cases import machine_of
from usp_prof.extras.planner.network import FEW_MEMBERS
from usp_prof.extras.planner.predict import predict
from usp_prof.extras.synth.declaration import Declaration, Mesh
from usp_prof.extras.synth.write import write
from usp_prof.model.errors import InputError
from usp_prof.model.selection import Assumptions

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize(("run", "bound"), [("recorded-1f1b", 0.1), ("recorded-interleaved", 0.1)])
def test_a_paced_pipeline_is_predicted_from_its_own_efficiency(run: str, bound: float, tmp_path: Path) -> None:
    calibration = calibrate(open_run(TRACES / run, cache_dir=tmp_path).tables)
    assert calibration.configuration.pp == 4
    assert 0 < calibration.cluster.efficiency < 1
    assert abs(calibration.error_fraction) < bound


def test_names_of_pytorch_become_the_planners(tmp_path: Path) -> None:
    """The manifest's bfloat16 had no launch option, and its float32 was planned with two bytes per element."""
    write(Declaration(mesh=Mesh(pp=2)), tmp_path / "run")
    configuration = calibrate(open_run(tmp_path / "run", cache_dir=tmp_path).tables).configuration
    assert (configuration.dtype, configuration.schedule) == ("bf16", "1f1b")


SHARDED = ("recorded-zero0", "recorded-zero1", "recorded-zero3-prefetch")


@pytest.fixture(scope="module")
def of_sharding(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Calibration]:
    """Calibrate on each run of one model; the runs differ only in their ZeRO stage."""
    cache = tmp_path_factory.mktemp("cache")
    names = (*SHARDED, "recorded-zero3-no-prefetch")
    return {name: calibrate(open_run(TRACES / name, cache_dir=cache).tables) for name in names}


@pytest.mark.parametrize("taught_by", SHARDED)
@pytest.mark.parametrize("neighbor", SHARDED)
def test_a_run_predicts_its_neighbors_with_another_zero_stage(
    of_sharding: dict[str, Calibration], taught_by: str, neighbor: str
) -> None:
    teacher, other = of_sharding[taught_by], of_sharding[neighbor]
    prediction = predict(teacher.model, other.configuration, teacher.cluster, profile=teacher.profile)
    assert prediction.step_ns == pytest.approx(other.measured_step_ns, rel=0.1)


def test_gloo_links_are_fitted_to_their_own_calls(of_sharding: dict[str, Calibration]) -> None:
    """The runs were recorded over links of 25 Mbit/s, so every kind of call reaches the same share of them."""
    for calibration in of_sharding.values():
        reached = calibration.profile.data_share * machine_of(calibration.cluster).link_rate * (1 - FEW_MEMBERS / 4**2)
        assert reached == pytest.approx(25e6 / 8, rel=0.25)


def test_calibration_on_a_run_without_prefetch_hides_no_gather(of_sharding: dict[str, Calibration]) -> None:
    assert of_sharding["recorded-zero3-no-prefetch"].profile.gather_overlap < 0.1
    assert of_sharding["recorded-zero3-prefetch"].profile.gather_overlap > 0.9


def test_all_axes_are_read_from_the_manifest(tmp_path: Path) -> None:
    calibration = calibrate(open_run(TRACES / "recorded-5d", cache_dir=tmp_path).tables)
    assert calibration.configuration.degrees() == {"dp": 2, "cp": 2, "tp": 2, "pp": 2, "ep": 2}


def test_device_memory_is_that_reported_by_the_driver(tmp_path: Path) -> None:
    """A device with 16 GB used to be planned with the table's 32 GB. The smallest recorded memory counts."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in sorted((TRACES / "recorded-1f1b").glob("r*.json*")):
        content = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        if path.suffix == ".gz":
            size = 16_945_709_056 if path.name.startswith("rank2") else 34_089_730_048
            content["deviceProperties"] = [{"id": 0, "name": "a board", "totalGlobalMem": size}]
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(content))
    calibration = calibrate(open_run(folder, cache_dir=tmp_path / "cache").tables)
    assert calibration.cluster.memory_bytes == 16_945_709_056


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1}]}'
    )
    with pytest.raises(InputError, match="model and mesh are unknown"):
        calibrate(open_run(tmp_path, cache_dir=tmp_path / "cache").tables)


def test_a_run_that_contradicts_its_tokens_or_its_mesh_is_refused(tmp_path: Path) -> None:
    """Plans used to be listed, although MFU was withheld for the same inputs."""
    tables = open_run(TRACES / "recorded-5d", cache_dir=tmp_path).tables
    recorded = tables.tokens_per_step
    tables = tables.assuming(Assumptions(tokens_per_step=100 * recorded))
    with pytest.raises(InputError, match=f"{100 * recorded:,} tokens per step") as refused:
        calibrate(tables)
    assert "--tokens-per-step" in refused.value.hint
    tables = tables.assuming(Assumptions())
    assert tables.manifest is not None
    tables.manifest = replace(tables.manifest, mesh={"dp": 3})
    with pytest.raises(InputError, match="not a multiple of the manifest") as refused:
        calibrate(tables)
    assert "run.json" in refused.value.hint
