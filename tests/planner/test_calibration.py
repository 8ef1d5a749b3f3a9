"""Does a recorded run teach the planner what it can, and is the error told?"""

from pathlib import Path

import pytest

from usp_prof import open_run
from usp_prof.model.errors import InputError
from usp_prof.planner.calibration import calibrate

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize(("run", "bound"), [("recorded-1f1b", 0.1), ("recorded-interleaved", 0.1)])
def test_a_paced_pipeline_is_predicted_from_its_own_efficiency(run: str, bound: float, tmp_path: Path) -> None:
    found = calibrate(open_run(TRACES / run, cache_dir=tmp_path).tables)
    assert found.configuration.pp == 4
    assert 0 < found.cluster.efficiency < 1
    assert abs(found.error_fraction) < bound


def test_all_axes_are_read_off_the_manifest(tmp_path: Path) -> None:
    found = calibrate(open_run(TRACES / "recorded-5d", cache_dir=tmp_path).tables)
    assert found.configuration.degrees() == {"dp": 2, "cp": 2, "tp": 2, "pp": 2, "ep": 2}


def test_a_run_that_says_nothing_of_its_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1}]}'
    )
    with pytest.raises(InputError, match="does not tell its model"):
        calibrate(open_run(tmp_path, cache_dir=tmp_path / "cache").tables)
