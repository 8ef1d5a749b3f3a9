"""Replayed ranks: representatives give the same gain, and all ranks are replayed if an edit needs them.

The command, the Python API and the dashboard choose the same ranks and report it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write
from usp_prof.model.edit import parse_edit
from usp_prof.replay import representatives as chosen
from usp_prof.replay.build import graph_of
from usp_prof.run import open_run
from usp_prof.whatif.attribution import slowdown, slowdown_on
from usp_prof.whatif.predict import predict, predict_on
from usp_prof.whatif.replayed_ranks import ranks_made_like_peers, replayed_ranks

if TYPE_CHECKING:
    from usp_prof.run import Run

DECLARED = {
    "mesh": {"dp": 6, "tp": 2, "pp": 2},
    "work": {"steps": 3, "micro_batches": 4},
    "faults": [{"kind": "slow_rank", "rank": 5, "factor": 1.5}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("replicas")
    write(with_events(Declaration.from_dict(DECLARED), 400), folder / "run")
    return open_run(folder / "run", cache_dir=folder / "store")


@pytest.fixture(autouse=True)
def too_large(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limit to about half of the run."""
    monkeypatch.setattr(chosen, "MOST_NODES", round(0.6 * len(graph_of(run.tables).nodes)))


@pytest.mark.parametrize(
    "text",
    ["rank_as_peers=5", "compute_faster=1.5,rank=14", "comm_removed,axis=tp", "comm_faster=2,axis=dp", "ideal,stage=1",
     "schedule=gpipe"],
)  # fmt: skip
def test_the_gain_is_that_of_all_ranks_within_its_error(run: Run, text: str) -> None:
    edits = [parse_edit(text)]
    replayed = replayed_ranks(run.tables, edits)
    assert len(replayed.tables.ranks) == len(run.ranks) / 2
    of_run, of_part = predict(run.tables, edits), predict_on(replayed, edits)
    assert of_part.gain_fraction == pytest.approx(of_run.gain_fraction, abs=of_part.error_fraction)


def test_the_ideal_step_is_that_of_all_ranks_within_its_error(run: Run) -> None:
    replayed = replayed_ranks(run.tables, [])
    of_run, of_part = slowdown(run.tables).overall, slowdown_on(replayed).overall
    assert of_part.ideal_ns / of_part.step_ns == pytest.approx(
        of_run.ideal_ns / of_run.step_ns, abs=of_part.error_fraction
    )


@pytest.mark.parametrize("rank", [0, 9, 14, 23])
def test_named_ranks_are_replayed(run: Run, rank: int) -> None:
    for text in (f"rank_as_peers={rank}", f"host_as_peers=5+{rank}", f"compute_faster=2,rank={rank}"):
        assert rank in replayed_ranks(run.tables, [parse_edit(text)]).tables.ranks


@pytest.mark.parametrize(
    "texts", [["dp=12"], ["link_as_peers=3"], [f"compute_faster=2,rank={rank}" for rank in range(24)]]
)
def test_edits_that_need_every_rank_are_replayed_on_all(run: Run, texts: list[str]) -> None:
    assert replayed_ranks(run.tables, [parse_edit(text) for text in texts]).tables is run.tables


def test_the_command_states_which_ranks_were_replayed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(run.path), "--edit", "rank_as_peers=5"]
    assert main(["whatif", *words]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "The prediction is from 12 of 24 ranks, 3 of 6 replicas of the model" in output
    assert main(["whatif", *words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"]["replayed"].startswith("from 12 of 24 ranks")
    assert main(["whatif", str(run.path), "--ideal"]) == 0
    assert "The ideal step is from 12 of 24 ranks" in capsys.readouterr().out


def test_python_replays_the_ranks_of_the_command_and_states_which(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run.whatif("rank_as_peers=5")
    assert len(predicted.tables.ranks) == len(run.ranks) / 2
    assert predicted.replayed.startswith("from 12 of 24 ranks")
    assert predicted.df["replayed"].item() == predicted.replayed in predicted.explain()
    assert main(["whatif", str(run.path), "--edit", "rank_as_peers=5", "--format", "json"]) == 0
    command = json.loads(capsys.readouterr().out)["prediction"]
    assert command["replayed"] == predicted.replayed
    assert command["together"]["gain_fraction"] == pytest.approx(predicted.gain_fraction)


def test_a_prediction_in_python_covers_the_replayed_ranks_before_and_after(run: Run) -> None:
    predicted = run.whatif("rank_as_peers=5")
    assert "12 of 24 ranks (" in predicted.breakdown().explain()
    assert next(row for row in predicted.tables.health if row.code == "ranks_represented").detail.startswith("the pred")
    before, after = predicted.compare().metrics["step_time"]
    assert after / before == pytest.approx(predicted.after_ns / predicted.before_ns, abs=0.02)


def test_later_assumptions_apply_to_the_replayed_ranks(run: Run) -> None:
    first = run.whatif("rank_as_peers=5").prediction
    run.assume(device="H100-SXM")
    again = run.whatif("rank_as_peers=5").prediction
    assert again.replayed.tables.ranks == first.replayed.tables.ranks
    assert again.replayed.tables.assumptions.device == "H100-SXM"
    run.assume()


def test_named_ranks_that_are_replayed_anyway_need_no_more_memory(run: Run) -> None:
    usual = replayed_ranks(run.tables, [])
    assert replayed_ranks(run.tables, [parse_edit("rank_as_peers=5")]) is usual
    other = next(rank for rank in run.ranks if rank not in usual.tables.ranks)
    edits = [parse_edit(f"rank_as_peers={other}")]
    assert replayed_ranks(run.tables, edits) is replayed_ranks(run.tables, edits) is not usual
    assert replayed_ranks(run.tables, []) is usual


@pytest.mark.parametrize(
    ("texts", "ranks"),
    [
        (["rank_as_peers=all"], (0, 1, 2, 3)),
        (["rank_as_peers=1+3", "no_pauses"], (1, 3)),
        (["host_as_peers=2"], (2,)),
        (["ideal"], (0, 1, 2, 3)),
        (["no_pauses"], ()),
    ],
)
def test_the_ranks_that_become_like_their_peers(texts: list[str], ranks: tuple[int, ...]) -> None:
    assert ranks_made_like_peers([parse_edit(text) for text in texts], (0, 1, 2, 3)) == ranks
