from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from usp_prof import record
from usp_prof.contract import Manifest
from usp_prof.record.export import enrich
from usp_prof.record.join import recorded_entries
from usp_prof.record.options import resolve
from usp_prof.record.rank_record import RankRecord
from usp_prof.record.surroundings import survey
from usp_prof.record.trace_text import ENCODING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Reader = Callable[[Path], dict[str, Any]]

QUICK: dict[str, Any] = {"peak_flops": 1e9, "wait": 0, "warmup": 1, "active": 2}


def train(session: record.Session, steps: int = 3) -> None:
    for _ in range(steps):
        with session.step(), record.phase("forward"):
            torch.mm(torch.ones(8, 8), torch.ones(8, 8))


def manifest_of(folder: Path) -> Manifest:
    return Manifest.from_dict(json.loads((folder / "run.json").read_text()))


def test_a_single_process_writes_a_trace_that_describes_it(tmp_path: Path, read_trace: Reader) -> None:
    with record.session(tmp_path, name="lone", schedule="gpipe", **QUICK) as session:
        train(session)
    trace = read_trace(tmp_path / "rank0.json.gz")
    assert trace["usp_prof"]["name"] == "lone"
    assert trace["usp_prof"]["schedule"] == "gpipe"
    names = [event["name"] for event in trace["traceEvents"]]
    assert [name for name in names if name.startswith("ProfilerStep")] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert names.count("train::forward") == 2
    manifest = manifest_of(tmp_path)
    assert manifest.join_rate == {"0": 1.0}
    assert manifest.notes == []
    assert manifest.software["torch"] == torch.__version__
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["rank0.json.gz", "run.json"]


def test_a_loop_that_ends_within_the_window_leaves_no_empty_step(tmp_path: Path, read_trace: Reader) -> None:
    with record.session(tmp_path, **{**QUICK, "active": 5}) as session:
        train(session, steps=3)
    names = [event["name"] for event in read_trace(tmp_path / "rank0.json.gz")["traceEvents"]]
    assert [name for name in names if name.startswith("ProfilerStep")] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_the_peak_is_measured_in_the_dtype_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("usp_prof.record.peak._SIZES", (64,))
    with record.session(tmp_path, dtype=torch.float64) as session:
        assert session.manifest.peak_flops > 0
        assert "float64" in session.manifest.peak_source
        train(session, steps=4)


def test_each_repeated_window_has_its_own_folder(tmp_path: Path) -> None:
    with record.session(tmp_path, repeat=2, **QUICK) as session:
        train(session, steps=6)
    for window in ("window-0", "window-1"):
        assert sorted(path.name for path in (tmp_path / window).iterdir()) == ["rank0.json.gz", "run.json"]


@pytest.mark.usefixtures("alone")
def test_gloo_collectives_get_their_group(tmp_path: Path, read_trace: Reader) -> None:
    log = dist.new_group([0], group_desc="log")
    with record.session(tmp_path, groups={"dp": dist.group.WORLD}, **QUICK) as session:
        for step in range(3):
            with session.step():
                dist.all_reduce(torch.ones(4 + step))
                dist.all_reduce(torch.ones(4 + step), group=log)
    events = read_trace(tmp_path / "rank0.json.gz")["traceEvents"]
    arguments = [event["args"] for event in events if event["name"] == "gloo:all_reduce"]
    assert [args["Process Group Description"] for args in arguments].count("log") == 2
    assert {args["Process Group Name"] for args in arguments} == {dist.group.WORLD.group_name, log.group_name}
    assert {(args["Collective name"], args["dtype"], args["Process Group Ranks"]) for args in arguments} == {
        ("allreduce", "Float", "[0]")
    }
    assert sorted(args["In msg nelems"] for args in arguments) == [5, 5, 6, 6]
    manifest = manifest_of(tmp_path)
    assert manifest.join_rate == {"0": 1.0}
    assert {group.name: group.axes for group in manifest.groups} == {
        dist.group.WORLD.group_name: ["dp"],
        log.group_name: [],
    }


@pytest.mark.usefixtures("alone")
def test_events_change_only_by_added_arguments(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        with record.phase("forward"):
            dist.all_reduce(torch.ones(3))
            dist.barrier()
        torch.ones(2) + 1
    profiler.export_chrome_trace(str(tmp_path / "raw.json"))
    text = (tmp_path / "raw.json").read_text(ENCODING)
    enriched = enrich(text, recorded_entries() or [], survey(None, None, None, 0, 1).groups, 0)
    assert (enriched.collectives, enriched.recognized, enriched.rate) == (2, 2, 1.0)
    before, after = json.loads(text), json.loads("".join(enriched.pieces))
    events = zip(before.pop("traceEvents"), after.pop("traceEvents"), strict=True)
    assert before == after
    changed = 0
    for old, new in events:
        old_args, new_args = old.pop("args", {}), new.pop("args", {})
        assert old == new
        assert {key: new_args[key] for key in old_args} == old_args
        changed += new_args != old_args
    assert changed == 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("entries", "reason"),
    [(None, "no flight recorder"), ([], r"prepare\(\) before"), ([{}], "join of groups failed")],
)
def test_a_failed_join_is_reported_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, Any]] | None, reason: str
) -> None:
    monkeypatch.setattr("usp_prof.record._torch_private.flight_entries", lambda: entries)

    def reduce() -> None:
        with record.session(tmp_path, **QUICK) as session:
            for _ in range(3):
                with session.step():
                    dist.all_reduce(torch.ones(4))

    with pytest.warns(record.RecordingWarning, match=reason):
        reduce()
    manifest = manifest_of(tmp_path)
    assert manifest.join_rate == {"0": 0.0}
    assert len(manifest.notes) == 1
    assert (tmp_path / "rank0.json.gz").exists()


def test_a_trace_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").mkdir()
    with (
        pytest.warns(record.RecordingWarning, match="writing the trace failed"),
        record.session(tmp_path, **QUICK) as session,
    ):
        train(session, steps=5)
    (note,) = manifest_of(tmp_path).notes
    assert note.startswith("rank 0: writing the trace failed: IsADirectoryError")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("prepare_trace", "beginning the recording failed"),
        ("start_trace", "recording a step failed"),
        ("stop_trace", "recording a step failed"),
        ("export_chrome_trace", "writing the trace failed"),
    ],
)
def test_errors_of_the_profiler_are_reported_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, message: str
) -> None:
    original = getattr(torch.profiler.profile, method)

    def fail(profile: torch.profiler.profile, *arguments: str) -> None:
        if method == "stop_trace":
            original(profile, *arguments)  # or it would continue during the next tests
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS")

    monkeypatch.setattr(torch.profiler.profile, method, fail)
    with (
        pytest.warns(record.RecordingWarning, match=message),
        record.session(tmp_path, **QUICK) as session,
    ):
        train(session, steps=5)
    assert not list(tmp_path.glob("rank*"))
    assert f"rank 0: {message}: RuntimeError: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS" in manifest_of(tmp_path).notes


def test_a_failed_window_stops_its_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = torch.profiler.record_function.__enter__

    def fail_late(annotation: torch.profiler.record_function) -> object:
        if annotation.name == "ProfilerStep#2":
            raise RuntimeError("no annotation")
        return opened(annotation)

    def go_on() -> None:
        with record.session(tmp_path, **QUICK) as session:
            train(session)
            assert not torch.autograd._profiler_enabled()

    monkeypatch.setattr(torch.profiler.record_function, "__enter__", fail_late)
    with pytest.warns(record.RecordingWarning, match="recording a step failed: RuntimeError: no annotation"):
        go_on()
    assert manifest_of(tmp_path).notes == ["rank 0: recording a step failed: RuntimeError: no annotation"]


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_ending_the_program_is_not_a_recording_failure(tmp_path: Path, ending: type[BaseException]) -> None:
    with pytest.raises(ending), RankRecord(tmp_path, resolve({})).surviving("anything"):
        raise ending


def test_a_failing_loop_keeps_the_complete_steps(tmp_path: Path, read_trace: Reader) -> None:
    session = record.session(tmp_path, **QUICK)

    def fail() -> None:
        with session:
            train(session, steps=2)
            raise ZeroDivisionError("by design")

    with pytest.raises(ZeroDivisionError):
        fail()
    names = [event["name"] for event in read_trace(tmp_path / "rank0.json.gz")["traceEvents"]]
    assert [name for name in names if name.startswith(("ProfilerStep", "train::cut"))] == [
        "ProfilerStep#1",
        "train::cut step=2",
    ]
    assert manifest_of(tmp_path).notes == ["rank 0: step 2 counts as none, it ended with ZeroDivisionError: by design"]


def test_a_failing_loop_without_a_complete_step_writes_no_trace(tmp_path: Path) -> None:
    session = record.session(tmp_path, **QUICK)

    def fail() -> None:
        with session:
            train(session, steps=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not (tmp_path / "rank0.json.gz").exists()
    assert (tmp_path / "run.json").exists()


def test_a_session_that_is_never_closed_is_saved_at_exit(tmp_path: Path, read_trace: Reader) -> None:
    program = (
        "import sys, torch\nfrom usp_prof import record\n"
        "session = record.session(sys.argv[1], peak_flops=1e9, wait=0, warmup=1, active=9).__enter__()\n"
        "for _ in range(3):\n    torch.ones(3) + 1\n    session.advance()\nraise ZeroDivisionError\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    names = [event["name"] for event in read_trace(tmp_path / "rank0.json.gz")["traceEvents"]]
    assert [name for name in names if name.startswith("ProfilerStep")] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert manifest_of(tmp_path).notes


def test_a_step_that_fails_is_not_counted(tmp_path: Path) -> None:
    session = record.session(tmp_path, **QUICK)

    def fail() -> None:
        with session, session.step():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_loop_that_ends_too_early_gets_the_required_length(tmp_path: Path) -> None:
    with (
        pytest.warns(record.RecordingWarning, match="takes 9 steps"),
        record.session(tmp_path, skip=5, wait=1, warmup=1, active=2, peak_flops=1.0) as session,
    ):
        train(session)
    assert manifest_of(tmp_path).notes


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    session = record.session(tmp_path, **QUICK)
    with session:
        train(session)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.__exit__(None, None, None)
        session.advance()


def test_prepare_keeps_what_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    record.prepare()
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "7"
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    record.prepare(entries=50)
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "50"
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")


def test_an_unknown_option_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean active"):
        record.session(tmp_path, activ=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "given",
    [
        {"mesh": "x"},
        {"mesh": [1]},
        {"mesh": {"dp": "2"}},
        {"mesh": {"dp": True}},
        {"mesh": {"": 1}},
        {"groups": "x"},
        {"groups": {"dp": "x"}},
        {"groups": {3: None}},
        {"model": 3},
        {"model": "llama"},
    ],
)
def test_an_invalid_mesh_model_or_group_is_refused_before_recording(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(given))} is a "):
        record.session(tmp_path, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"mesh": {"dp": 0}},
        {"mesh": {"dp": -1, "tp": -1}},
        {"mesh": {"dp": 2}, "coordinates": {"dp": 2}},
        {"coordinates": {"dp": -1}},
        {"zero_stage": 9},
    ],
)
def test_a_size_or_place_that_cannot_exist_is_refused_before_recording(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=list(given)[-1]):
        record.session(tmp_path, **given)


def test_a_model_that_cannot_be_read_costs_its_description_alone(tmp_path: Path) -> None:
    class Unreadable:
        def to_dict(self) -> dict[str, Any]:
            raise ZeroDivisionError

    with (
        pytest.warns(record.RecordingWarning, match="reading the model failed: ZeroDivisionError"),
        record.session(tmp_path, model=Unreadable(), **QUICK) as session,
    ):
        train(session)
    assert (tmp_path / "rank0.json.gz").exists()
    manifest = manifest_of(tmp_path)
    assert manifest.model is None
    assert any("reading the model failed" in note for note in manifest.notes)


def test_a_step_that_a_break_left_empty_does_not_count(tmp_path: Path) -> None:
    with record.session(tmp_path, **{**QUICK, "active": 3}) as session:
        for number in range(5):
            with session.step():
                if number == 2:
                    break
                torch.ones(4).sum()
    events = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("name", "").startswith(("ProfilerStep", "train::cut"))}
    assert names == {"ProfilerStep#1", "train::cut step=2", "train::cut step=3"}
    assert "rank 0: step 2 counts as none, nothing ran in it" in manifest_of(tmp_path).notes


def test_events_are_not_parsed_into_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object, **__: object) -> None:
        raise AssertionError("it takes minutes for large traces, during which a stopped rank is killed")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", parse)
    with warnings.catch_warnings(), record.session(tmp_path, repeat=2, **QUICK) as session:
        warnings.simplefilter("error")
        train(session, steps=6)
    assert len(list(tmp_path.glob("window-*/rank0.json.gz"))) == 2


def test_a_callback_whose_training_raised_does_not_block_the_next_session(tmp_path: Path) -> None:
    abandoned = record.session(tmp_path / "first", **QUICK)
    abandoned.on_superseded = lambda: abandoned.abandon("the training raised")
    abandoned.__enter__()
    for _ in range(2):
        torch.ones(4).sum()
        abandoned.advance()
    with record.session(tmp_path / "second", **QUICK) as session:
        train(session)
    assert (tmp_path / "first" / "rank0.json.gz").exists()
    assert (tmp_path / "second" / "rank0.json.gz").exists()


def test_a_mesh_larger_than_the_job_is_noted_and_left_out(tmp_path: Path) -> None:
    with (
        pytest.warns(record.RecordingWarning, match="the mesh dp=8 does not fit a job of 1 process"),
        record.session(tmp_path, mesh={"dp": 8}, **QUICK) as session,
    ):
        train(session)
    assert manifest_of(tmp_path).mesh == {}


def test_a_loop_that_ends_where_the_window_begins_leaves_no_empty_step(tmp_path: Path) -> None:
    with (
        pytest.warns(record.RecordingWarning, match="takes 5 steps"),
        record.session(tmp_path, **{**QUICK, "skip": 1, "wait": 1}) as session,
    ):
        train(session, steps=3)
    assert not list(tmp_path.glob("rank*"))


LOOP = """
import os, signal, sys
import torch
from usp_prof import record

export = torch.profiler.profile.export_chrome_trace

number = signal.Signals[sys.argv[4]]

def end_while_writing(profile, path):
    os.kill(os.getpid(), number)
    export(profile, path)

with record.session(sys.argv[1], peak_flops=1e9, wait=0, warmup=1, active=int(sys.argv[2])) as session:
    for step in range(4):
        with session.step():
            torch.ones(3) + 1
            if sys.argv[3] == "in the window" and step == 3:
                os.kill(os.getpid(), number)
            if sys.argv[3] == "while writing":
                torch.profiler.profile.export_chrome_trace = end_while_writing
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("active", "when"), [(9, "in the window"), (2, "while writing"), (9, "while writing")])
def test_a_signal_ends_the_process_after_its_trace_is_written(
    tmp_path: Path, read_trace: Reader, active: int, when: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", LOOP, str(tmp_path), str(active), when, number.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -number, done.stderr
    names = [event["name"] for event in read_trace(tmp_path / "rank0.json.gz")["traceEvents"]]
    steps = [name for name in names if name.startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{step}" for step in range(1, 3 if active == 2 or when == "in the window" else 4)]


def test_a_signal_handler_of_the_program_stays_installed(tmp_path: Path) -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: handled.append(number))
    try:
        with record.session(tmp_path, **QUICK) as session:
            train(session)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handled == [signal.SIGTERM]


def test_a_loop_prints_no_messages_of_kineto(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    command = [sys.executable, "-c", LOOP, str(tmp_path), "2", "never", "SIGTERM"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
