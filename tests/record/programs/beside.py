"""Process with a disturbance during a session; the argument selects the disturbance."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

from usp_prof import record

case, folder = sys.argv[1], Path(sys.argv[2])
CPU = [ProfilerActivity.CPU]
STEPS = 8


def session(name: str = "ours", **options: Any) -> record.Session:
    return record.session(folder / name, **{"peak_flops": 1e9, "wait": 0, "warmup": 1, "active": 3, **options})


def work() -> None:
    with record.phase("forward"):
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))


def train(ours: record.Session, theirs: profile | None = None, steps: int = STEPS) -> None:
    for _ in range(steps):
        with ours.step():
            work()
        if theirs is not None:
            theirs.step()


def export(theirs: Any) -> None:
    theirs.export_chrome_trace(str(folder / "theirs.json"))


folder.mkdir(parents=True, exist_ok=True)
warnings.simplefilter("always", record.RecordingWarning)

if case == "theirs_around":
    with profile(activities=CPU) as theirs, session() as ours:
        train(ours)
    export(theirs)
elif case == "theirs_scheduled_around":
    with profile(activities=CPU, schedule=schedule(wait=2, warmup=1, active=2, repeat=1)) as theirs, session() as ours:
        train(ours, theirs)
    export(theirs)
elif case == "theirs_scheduled_within":
    with session() as ours, profile(activities=CPU, schedule=schedule(wait=2, warmup=1, active=2, repeat=1)) as theirs:
        train(ours, theirs)
    export(theirs)
elif case == "theirs_warming_within":
    with session() as ours:
        train(ours, steps=2)
        with profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=2, repeat=1)) as theirs:
            train(ours, theirs)
    export(theirs)
elif case == "theirs_in_a_window":
    with session() as ours:
        train(ours, steps=2)
        with profile(activities=CPU) as theirs:
            train(ours)
    export(theirs)
elif case == "theirs_in_a_step":
    with session() as ours:
        train(ours, steps=2)
        with ours.step(), profile(activities=CPU) as theirs:
            work()
        train(ours)
    export(theirs)
elif case == "theirs_past_the_session":
    with session() as ours:
        train(ours, steps=2)
        theirs = profile(activities=CPU)
        theirs.start()
        work()
    theirs.stop()
    export(theirs)
elif case == "theirs_legacy_in_a_window":
    with session() as ours:
        train(ours, steps=2)
        with torch.autograd.profiler.profile() as theirs:
            train(ours)
    export(theirs)
elif case == "theirs_in_many_windows":
    # Sixty times, because a write to freed memory crashes only sometimes.
    for window in range(60):
        with session(f"ours-{window}", warmup=0) as ours:
            train(ours, steps=1)
            with ours.step(), record.phase("backward"):
                theirs = profile(activities=CPU)
                theirs.__enter__()
                work()
        theirs.__exit__(None, None, None)
    export(theirs)
elif case == "theirs_before":
    with profile(activities=CPU) as theirs:
        work()
    export(theirs)
    with session() as ours:
        train(ours)
elif case == "theirs_after":
    with session() as ours:
        train(ours)
        with profile(activities=CPU) as theirs:
            work()
    export(theirs)
elif case == "two_sessions":
    with session() as ours, session("second") as second:
        for _ in range(STEPS):
            with ours.step(), second.step():
                work()
elif case == "never_entered":
    train(session())
elif case == "entered_twice":
    ours = session()
    with ours:
        with ours:
            train(ours, steps=2)
        train(ours)
    with ours:
        train(ours)
elif case == "a_step_raises_and_the_loop_goes_on":
    with session() as ours:
        for step in range(STEPS):
            try:
                with ours.step():
                    work()
                    if step == 2:
                        raise MemoryError("injected")  # noqa: TRY301
            except MemoryError:
                pass
elif case == "forked_loader":
    loader = DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=2, num_workers=2, multiprocessing_context="fork")
    with session() as ours:
        for _ in loader:
            with ours.step():
                work()
elif case == "forked_child_ends":
    ours = session(active=6).__enter__()
    train(ours, steps=3)
    if os.fork() == 0:
        ours.advance()
        ours.__exit__(None, None, None)
        os._exit(0)
    os.wait()
    train(ours)
    ours.close()
elif case == "forked_children_leave":
    # Twenty times, to find a process that hangs only sometimes.
    with session(active=24) as ours:
        train(ours, steps=3)
        for status in range(20):
            if (child := os.fork()) == 0:
                with ours.step():
                    work()
                if status % 2:
                    with session(f"child-{status}") as own:
                        train(own, steps=2)
                sys.exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
            with ours.step():
                work()
    if os.fork() == 0:
        sys.exit("after the session")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
elif case == "forked_workers":
    loader = DataLoader(
        TensorDataset(torch.ones(16, 2)), batch_size=2, num_workers=2, multiprocessing_context="fork",
        worker_init_fn=lambda _: atexit.register(print, "worker ends", flush=True),
    )  # fmt: skip
    with session() as ours:
        for _ in range(2):
            for _ in loader:
                with ours.step():
                    work()
    fork = multiprocessing.get_context("fork")
    for child in [fork.Process(target=sys.exit, args=(status,)) for status in (0, 7)]:
        child.start()
        child.join()
        assert child.exitcode in {0, 7}
elif case == "interrupted":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell of a background job may ignore it
    with session(active=6) as ours:
        train(ours, steps=4)
        with ours.step():
            os.kill(os.getpid(), signal.SIGINT)
            work()
elif case == "ended_on_another_thread":
    with session() as ours:
        thread = threading.Thread(target=train, args=(ours,), kwargs={"steps": 3}, name="loop")
        thread.start()
        thread.join()
    with profile(activities=CPU) as theirs:
        work()
    export(theirs)
    with session("second") as second:
        train(second)
elif case == "ended_beside_a_thread_that_goes_on":
    recording, ended = threading.Event(), threading.Event()
    with session() as ours:

        def loop() -> None:
            train(ours, steps=3)
            recording.set()
            ended.wait()
            assert torch.autograd._profiler_enabled()
            train(ours, steps=1)
            assert not torch.autograd._profiler_enabled()

        thread = threading.Thread(target=loop, name="loop")
        thread.start()
        recording.wait()
    with session("early") as early:
        train(early)
    ended.set()
    thread.join()
    with session("second") as second:
        train(second)
elif case == "steps_on_another_thread_than_the_window":
    with session(warmup=0) as ours:
        thread = threading.Thread(target=train, args=(ours,), name="loop")
        thread.start()
        thread.join()
    assert not torch.autograd._profiler_enabled()
    with session("second") as second:
        train(second)
elif case == "our_failure":

    class Unprintable:
        def __str__(self) -> str:
            raise ZeroDivisionError

    with session(options={"value": Unprintable()}) as ours:
        train(ours)
sys.stdout.write("trained\n")
