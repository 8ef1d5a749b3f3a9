"""TraceAnalysis: HolisticTraceAnalysis' methods, answered from our tables. Times are microseconds, as in HTA."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from usp_prof.charts.inputs import BreakdownRows, ChartInput, Part
from usp_prof.extras.hta import breakdowns, launches
from usp_prof.extras.hta.breakdowns import CriticalPath
from usp_prof.extras.hta.window import Window
from usp_prof.model.errors import UsageError
from usp_prof.run import Run, open_run

MAX_QUEUE = 1024
"""Maximum number of launches in a CUDA stream's queue before the host blocks, as in HTA."""
_EXPORT = "usp-prof export PATH -o merged.json.gz writes all ranks into one file for Perfetto"
NOT_HERE = {
    "generate_trace_with_counters": _EXPORT,
    "get_cupti_counter_data_with_operators": "counters are not read; analyzer.run.to_hta() asks HTA itself",
    "get_frequent_cuda_kernel_sequences": "analyzer.run.kernels() lists ops and their kernels",
    "overlay_critical_path_analysis": _EXPORT,
}
"""Methods of HTA that are not available, and what to use instead."""


class TraceAnalysis:
    """HTA's methods for one run: `TraceAnalysis(trace_dir="traces/run")`.

    `visualize=True` shows a picture in a notebook and has no effect elsewhere. All other parameters and the columns are
    HTA's.
    """

    def __init__(
        self,
        trace_files: Mapping[int, str] | Sequence[str] | None = None,
        trace_dir: str | Path = "",
        include_last_profiler_step: bool | None = False,
        *,
        run: Run | None = None,
    ) -> None:
        self.run = run if run is not None else _opened(trace_files, trace_dir)
        self.window = Window(self.run.tables, with_last_step=bool(include_last_profiler_step))

    if not TYPE_CHECKING:  # type checkers must reject unknown names

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError; for a method of HTA that is not available, name the replacement."""
            message = f"{type(self).__name__} has no {name}"
            raise AttributeError(f"{message}: {NOT_HERE[name]}" if name in NOT_HERE else message)

    def get_profiler_steps(self) -> list[int]:
        """Return the selected steps."""
        return sorted({step for rank in self.window.ranks for step in self.window.steps(rank)})

    def get_temporal_breakdown(self, visualize: bool = True) -> pd.DataFrame:
        """Split each rank's time into idle, compute and other device work."""
        frame = breakdowns.temporal(self.window)
        names = (("compute", "compute"), ("non_compute", "comm"), ("idle", "idle"))
        _show(visualize, lambda: _bars(frame, [(f"{name}_time(us)", role) for name, role in names]))
        return frame

    def get_comm_comp_overlap(self, visualize: bool = True) -> pd.DataFrame:
        """Return the share of communication that overlaps compute."""
        frame = breakdowns.overlap(self.window)
        _show(visualize, lambda: self.run.overlap().picture)
        return frame

    def get_gpu_kernel_breakdown(
        self,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 10,
        include_memory_kernels: bool = True,
        image_renderer: str = "",
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return time by type of kernel over all ranks, and each rank's kernels by name."""
        del image_renderer
        frames = breakdowns.kernels(self.window, duration_ratio, num_kernels, memory=include_memory_kernels)
        _show(visualize, lambda: self.run.kernels().picture)
        return frames

    def get_idle_time_breakdown(
        self,
        ranks: list[int] | None = None,
        streams: list[int] | None = None,
        visualize: bool = True,
        visualize_pctg: bool = True,
        show_idle_interval_stats: bool = False,
        consecutive_kernel_delay: int = 30,
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Split the idle time of each stream into waiting for the host, for the previous kernel, and other reasons."""
        del visualize, visualize_pctg
        delay, with_statistics = consecutive_kernel_delay, show_idle_interval_stats
        idle_of_rank = [
            breakdowns.idle(self.window, rank, streams, delay, statistics=with_statistics)
            for rank in self._chosen(ranks)
        ]
        times = pd.concat([times for times, _ in idle_of_rank], ignore_index=True)
        statistics = [described for _, described in idle_of_rank if described is not None]
        return times, pd.concat(statistics) if statistics else None

    def get_potential_stragglers(
        self, profiler_steps: list[int] | None = None, num_candidates: int = 2, visualize: bool = False
    ) -> list[int]:
        """Return the ranks that make the others wait, costliest first; empty if no rank is late by its own cause."""
        steps = profiler_steps or self.get_profiler_steps()
        answer = self.run.stragglers(steps=(min(steps), max(steps)) if steps else None)
        table = answer.metric_table
        cost = table[(table["metric"] == "straggler_cost") & (table["value"] > 0)]
        if "rank" not in table or not len(cost):
            return []
        by_rank = cost[cost["rank"].notna() & (cost["step"].isna() if "step" in cost else True)]
        _show(visualize, lambda: answer.picture)
        return by_rank.sort_values("value", ascending=False)["rank"].astype(int).tolist()[: max(1, num_candidates)]

    def get_queue_length_time_series(self, ranks: list[int] | None = None) -> dict[int, pd.DataFrame]:
        """Return each stream's queue length over time, by rank."""
        series = {rank: launches.queue_length(self.window, rank) for rank in self._chosen(ranks)}
        return {rank: frame for rank, frame in series.items() if frame is not None}

    def get_queue_length_summary(self, ranks: list[int] | None = None) -> pd.DataFrame | None:
        """Describe the queue lengths of each rank and stream."""
        return launches.queue_summary(self.get_queue_length_time_series(ranks))

    def get_queue_length_summary_from_time_series(
        self, queue_length_dict: Mapping[int, pd.DataFrame]
    ) -> pd.DataFrame | None:
        """Describe time series that `get_queue_length_time_series` returned."""
        return launches.queue_summary(queue_length_dict)

    def get_time_spent_blocked_on_full_queue(
        self, queue_length_dict: Mapping[int, pd.DataFrame], max_queue_length: int = MAX_QUEUE
    ) -> pd.DataFrame:
        """Sum the time with a full queue, by rank and stream."""
        return launches.blocked(self.window, queue_length_dict, max_queue_length)

    def get_memory_bw_time_series(self, ranks: list[int] | None = None) -> dict[int, pd.DataFrame]:
        """Return the bandwidth of copies over time, by rank and kind of copy."""
        series = {rank: launches.bandwidth(self.window, rank) for rank in self._chosen(ranks)}
        return {rank: frame for rank, frame in series.items() if frame is not None}

    def get_memory_bw_summary(self, ranks: list[int] | None = None) -> pd.DataFrame | None:
        """Describe the bandwidth while anything is copied, weighted by time."""
        return launches.bandwidth_summary(self.get_memory_bw_time_series(ranks))

    def get_cuda_kernel_launch_stats(
        self,
        ranks: list[int] | None = None,
        runtime_cutoff: int = 50,
        launch_delay_cutoff: int = 100,
        include_memory_events: bool = True,
        visualize: bool = True,
    ) -> dict[int, pd.DataFrame]:
        """Return each launch with its call's duration, its kernel's, and the delay between them."""
        del runtime_cutoff, launch_delay_cutoff, visualize  # they only affect HTA's histograms
        chosen = self._chosen(ranks)
        return {rank: launches.launch_stats(self.window, rank, memory=include_memory_events) for rank in chosen}

    def get_aten_op_kernels_and_delay(
        self, ranks: list[int] | None = None, sort_by: list[str] | None = None
    ) -> dict[int, pd.DataFrame]:
        """Count the kernel sequences of each ATen op, with the delays of their first kernel."""
        keys = sort_by or ["occurrence_count"]
        return {rank: launches.kernels_of_ops(self.window, rank, keys) for rank in self._chosen(ranks)}

    def get_gpu_kernels_with_user_annotations(
        self, rank: int, expand_names: bool = True, shortern_names: bool = True
    ) -> pd.DataFrame | None:
        """Return every kernel with the innermost device annotation around it, or None if none was recorded."""
        del expand_names, shortern_names  # names are always complete texts here
        return launches.annotated_kernels(self.window, self._chosen([rank])[0])

    def get_gpu_user_annotation_breakdown(
        self,
        use_gpu_annotation: bool = True,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 1000,
        allowlist_patterns: list[str] | None = None,
        image_renderer: str | None = None,
    ) -> pd.DataFrame | None:
        """Sum user annotations by name on each rank; return None if none was recorded."""
        del visualize, image_renderer
        return launches.annotations_by_time(
            self.window, duration_ratio, num_kernels, allowlist_patterns or [], on_device=use_gpu_annotation
        )

    def critical_path_analysis(
        self,
        rank: int,
        annotation: str = "ProfilerStep",
        instance_id: int | tuple[int, int] | None = None,
        *,
        with_hta: bool = False,
    ) -> tuple[Any, bool]:
        """Return the path that bounds the selected steps, over all ranks, traced back from the rank's end.

        Only steps can be selected: `annotation` is "ProfilerStep", or "" for the complete trace. The second value is
        whether a path was found. `with_hta=True` returns HTA's own `CPGraph` of one rank under HTA's rules, from the
        same events; it needs HTA.
        """
        if with_hta:
            chosen = self._chosen([rank])
            if self.run.tables.columns("ranks", chosen[0]).matches("device_kind", "cpu", "unrecorded").any():
                raise UsageError(
                    f"rank {rank} has no device work, which HTA's graph needs", hint="leave out with_hta=True"
                )
            hta = self.run.to_hta(ranks=chosen, synchronisation=True)
            graph, is_found = hta.critical_path_analysis(rank, annotation, instance_id)
            return graph, bool(is_found)
        return CriticalPath.from_run(self.run, self.window, self._chosen([rank])[0], annotation, instance_id)

    def _chosen(self, ranks: Iterable[int] | None) -> list[int]:
        """Return the ranks to look at: HTA's default is rank 0, ours is the first available rank."""
        wanted = list(ranks or [])
        missing = sorted(set(wanted) - set(self.window.ranks))
        if missing:
            raise UsageError(f"the run has no rank {missing}", hint=f"recorded ranks: {self.window.ranks}")
        return wanted or [self.window.ranks[0]]


def _opened(trace_files: Mapping[int, str] | Sequence[str] | None, trace_dir: str | Path) -> Run:
    """Open a folder, or files in one folder; the ranks come from the files."""
    if not trace_files:
        return open_run(trace_dir)
    files = list(trace_files.values()) if hasattr(trace_files, "values") else list(trace_files)
    paths = {(Path(trace_dir) / file).resolve() for file in files}
    folders = {path.parent for path in paths}
    if len(folders) > 1:
        raise UsageError("the files are in several folders", hint="set trace_dir= to their common folder")
    if len(paths) == 1:
        return open_run(paths.pop())
    everything = open_run(folders.pop())
    chosen = [file.rank for file in everything.files if file.path.resolve() in paths]
    if len(chosen) < len(paths):
        raise UsageError(
            f"{len(paths) - len(chosen)} of the files do not belong to run {everything.name}", hint="leave them out"
        )
    return everything if len(chosen) == len(everything.ranks) else open_run(everything.path, ranks=chosen)


def _bars(frame: pd.DataFrame, columns: Sequence[tuple[str, str]]) -> ChartInput:
    parts = (Part(name.removesuffix("(us)"), role, tuple(1000 * frame[name].astype(float))) for name, role in columns)
    return BreakdownRows(tuple(f"rank {rank}" for rank in frame["rank"]), tuple(parts))


def _show(visualize: bool, make: Any) -> None:  # noqa: ANN401 - a function that returns a chart's input
    """Show a picture in a notebook; do nothing outside of one."""
    notebook = sys.modules.get("IPython")
    if not visualize or notebook is None or notebook.get_ipython() is None:
        return
    from usp_prof.charts.svg import as_svg  # noqa: PLC0415 - loaded only for notebooks

    picture = make()
    if picture is not None:
        notebook.display.display(notebook.display.HTML(as_svg(picture)))
