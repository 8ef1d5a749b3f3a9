"""Sampling: which ranks a choice selects, and the notes on omitted ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof import open_run
from usp_prof.analyses import stragglers
from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.findings.engine import found_in
from usp_prof.model.errors import UsageError
from usp_prof.store import sampling
from usp_prof.store.cache import Cache

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

RANKS, STAGES, SLOW = 16, 2, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run with two stages of eight ranks each and one slow rank."""
    path = tmp_path_factory.mktemp("sampled") / "run"
    declared = {
        "mesh": {"dp": RANKS // STAGES, "pp": STAGES},
        "work": {"steps": 2, "micro_batches": 2},
        "faults": [{"kind": "slow_rank", "rank": SLOW, "factor": 1.5}],
    }
    write(Declaration.from_dict(declared), path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def stages_of(run: Run) -> list[int]:
    return [run.tables.topology.coordinates[rank].get("pp", 0) for rank in run.ranks]


class TestOutliers:
    """In each stage, outliers and typical ranks are sampled."""

    def test_the_slow_rank_is_among_them_with_peers_of_its_stage(self, folder: Path, store: Path) -> None:
        run = open_run(folder, ranks="outliers", cache_dir=store)
        assert SLOW in run.ranks
        assert len(run.ranks) < RANKS
        assert min(stages_of(run).count(stage) for stage in range(STAGES)) >= 2

    def test_its_slowdown_is_the_one_of_all_ranks(self, folder: Path, store: Path) -> None:
        sample, everything = (
            stragglers.compute(open_run(folder, ranks=ranks, cache_dir=store).tables) for ranks in ("outliers", None)
        )
        assert sample.rank_slowdown(SLOW) == pytest.approx(everything.rank_slowdown(SLOW), rel=0.01)

    def test_nothing_is_read_of_the_others_but_three_columns(
        self, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        open_run(folder, cache_dir=store)
        read: list[tuple[str, ...]] = []
        only = sampling.StoredTable.only
        monkeypatch.setattr(
            sampling.StoredTable, "only", lambda self, names: (read.append(tuple(names)), only(self, names))[1]
        )
        run = open_run(folder, ranks="outliers", cache_dir=store)
        assert read == [("kind", "dur_ns", "step")] * RANKS
        assert set(run.sql("SELECT DISTINCT rank FROM kernels").df()["rank"]) <= set(run.ranks)


class TestOnePerStage:
    """The first rank of each stage: one pipeline."""

    def test_if_the_manifest_names_stages_no_other_trace_is_read(self, folder: Path, tmp_path: Path) -> None:
        run = open_run(folder, ranks="one-per-stage", cache_dir=tmp_path)
        assert stages_of(run) == list(range(STAGES))
        assert Cache(tmp_path).size().entries == STAGES  # everything that is read is stored

    def test_without_a_manifest_groups_determine_the_stages(self, folder: Path, tmp_path: Path) -> None:
        for trace in folder.glob("*rank*"):
            (tmp_path / trace.name).write_bytes(trace.read_bytes())
        with_manifest = open_run(folder, ranks="one-per-stage", cache_dir=tmp_path / "store")
        assert open_run(tmp_path, ranks="one-per-stage", cache_dir=tmp_path / "store").ranks == with_manifest.ranks


class TestSample:
    """This number of ranks, spread over the run, the same each time."""

    @pytest.mark.parametrize("count", [1, 3, 8, RANKS, 99])
    def test_as_many_as_were_asked_for(self, count: int) -> None:
        chosen = sampling.Sampling.parse(f"sample:{count}").before_reading(range(RANKS), None)
        assert chosen is not None
        assert len(set(chosen)) == min(count, RANKS)

    def test_places_of_a_mesh_are_hit_alike(self) -> None:
        chosen = sampling.Sampling.parse("sample:64").before_reading(range(1024), None)
        assert chosen is not None
        for places in (2, 4, 8):
            hits = [sum(rank % places == place for rank in chosen) for place in range(places)]
            assert max(hits) - min(hits) <= 2


class TestWhatIsLeftOutIsSaid:
    """Omitted ranks are listed in health, on the first screen, and by the rules that need all ranks."""

    def test_in_health(self, folder: Path, store: Path) -> None:
        run = open_run(folder, ranks="sample:4", cache_dir=store)
        rows = [row for row in run.health if row.code == "ranks_left_out"]
        assert [row.count for row in rows] == [RANKS - 4]
        assert "12 of 16 ranks are left out (ranks sample:4)" in rows[0].detail

    def test_also_of_ranks_chosen_by_number(self, folder: Path, store: Path) -> None:
        run = open_run(folder, ranks=iter([0, 1]), cache_dir=store)
        assert "figures cover ranks 0-1 only" in next(r.detail for r in run.health if r.code == "ranks_left_out")

    def test_nothing_where_all_are_read(self, folder: Path, store: Path) -> None:
        for ranks in (None, range(RANKS), f"sample:{RANKS}"):
            run = open_run(folder, ranks=ranks, cache_dir=store)
            assert "ranks_left_out" not in {row.code for row in run.health}

    def test_rules_that_need_all_ranks_are_not_asked(self, folder: Path, store: Path) -> None:
        search_result = found_in(open_run(folder, ranks="outliers", cache_dir=store).tables)
        assert any("ranks_left_out" in row.detail and "slow-rank" in row.detail for row in search_result.skipped)

    def test_on_the_first_screen(self, folder: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", str(folder), "--ranks", "outliers", "--store", str(store), "-q"]) == 0
        output = " ".join(capsys.readouterr().out.split())
        assert f"of {RANKS} ranks" in output
        assert "ranks_left_out" in output

    def test_over_the_mean_step_in_the_terminal_and_on_the_page(
        self, folder: Path, store: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for form in ("terminal", "html"):
            command = ["analyze", str(folder), "--ranks", "sample:4", "--store", str(store), "-q", "--format", form]
            assert main(command) == 0
            output = capsys.readouterr().out
            assert "mean step of 4 ranks" in output
            assert "mean rank step goes" not in output

    def test_without_a_selection_the_mean_covers_all_ranks(self, folder: Path, store: Path) -> None:
        report = open_run(folder, cache_dir=store).report()
        assert "Where the mean rank step goes" in report.text()
        assert "only" not in report.summary.sentence

    def test_before_an_answer_in_python(self, folder: Path, store: Path) -> None:
        run = open_run(folder, ranks="sample:4", cache_dir=store)
        assert run.breakdown().sentence.startswith("4 of 16 ranks (")
        assert run.breakdown(ranks=[run.ranks[0]]).sentence.startswith("1 of 16 ranks (")


class TestWrongWords:
    """Each is refused with a hint."""

    @pytest.mark.parametrize(
        ("words", "hint"),
        [("outlier", "outliers"), ("sample", "sample:16"), ("sample:0", "sample:16"), ("sample:-1", "sample:16")],
    )
    def test_a_choice(self, words: str, hint: str, folder: Path) -> None:
        with pytest.raises(UsageError) as refused:
            open_run(folder, ranks=words)
        assert hint in refused.value.hint

    def test_following_reads_all_ranks(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", "--follow", str(folder), "--ranks", "outliers"]) == 2
        assert "reads all ranks" in capsys.readouterr().err
