"""Everything that the dashboard imports from usp_prof; import-linter forbids it in other files of this package.

Names that are unclear without their module are renamed.
"""

from __future__ import annotations

from usp_prof import Run, UspProfError, __version__, charts, open_run
from usp_prof.analyses.kernels import compute as kernels_of
from usp_prof.analyses.measures.op_work import of_rank as op_work_of
from usp_prof.api import sentences
from usp_prof.charts.inputs import (
    AxisCommunication,
    BreakdownRows,
    ChartInput,
    Ground,
    HeatMap,
    LaunchLine,
    LaunchLines,
    MemoryLines,
    Part,
    PipelineSchedule,
    RankBars,
    RankGrid,
    RooflinePoints,
    TimelineSlices,
)
from usp_prof.charts.svg import as_svg
from usp_prof.charts.theme import DARK, LIGHT, PATTERNS, Theme, ink_on
from usp_prof.checking import measured
from usp_prof.columns.table import Columns
from usp_prof.contract import ModelEntry
from usp_prof.export.merged_trace import beginning as trace_beginning
from usp_prof.export.merged_trace import export as export_trace
from usp_prof.extras.learn import course
from usp_prof.extras.learn.comparison import outcome as outcome_of_lesson
from usp_prof.extras.learn.course import commands as commands_of_lesson
from usp_prof.extras.learn.course import comparison as comparison_of_lesson
from usp_prof.extras.learn.lessons import Lesson
from usp_prof.extras.learn.lessons import lesson as lesson_named
from usp_prof.extras.learn.lessons import lessons as all_lessons
from usp_prof.extras.planner.answers import one_plan as one_plan_answer
from usp_prof.extras.planner.answers import plan as plan_answer
from usp_prof.extras.planner.answers import plan_map as plan_map_answer
from usp_prof.extras.planner.answers import sweep as sweep_answer
from usp_prof.extras.planner.calibration import Calibration, calibrate
from usp_prof.extras.planner.cluster import cluster_of as cluster_of_device
from usp_prof.extras.planner.launch import TRAINERS, refusal
from usp_prof.extras.planner.memory import footprints_of_ranks as memory_of_ranks
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.extras.planner.predict import predict as predict_plan
from usp_prof.extras.planner.profiles import DEFAULT_PROFILE, DEFAULT_TRAINER, PROFILES
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import GRID_AXES, Plans
from usp_prof.extras.planner.search import search_both as search_plans
from usp_prof.extras.planner.sweep import runner as sweep_runner
from usp_prof.extras.planner.sweep.published import Published
from usp_prof.extras.planner.sweep.published import read as read_published_sweep
from usp_prof.extras.planner.sweep.rows import Row as SweepRow
from usp_prof.extras.planner.sweep.rows import rows_of_folder as rows_of_sweep
from usp_prof.extras.planner.sweep.score import score as score_of_sweep
from usp_prof.findings.causes import Cause, causes_of
from usp_prof.gate.comparison import Comparison, Pair
from usp_prof.gate.comparison import compare as compare_runs
from usp_prof.gate.measured import Measured
from usp_prof.inputs.discovery import discover
from usp_prof.inputs.remote import Location
from usp_prof.model.configuration import Configuration, Recompute, broken_rule
from usp_prof.model.edit import Edit, parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis, Finding
from usp_prof.model.hardware import DEVICES
from usp_prof.model.hardware import find as device_named
from usp_prof.model.health import Severity, gathered, spans
from usp_prof.model.known_models import model_named, model_names
from usp_prof.model.metric import Unit
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import PARALLEL_AXES, Topology
from usp_prof.replay.graph import events_of
from usp_prof.report import stored_document
from usp_prof.report.answers import comparison as comparison_answer
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.build import analyze
from usp_prof.report.build import build as build_report
from usp_prof.report.document import (
    Block,
    Chart,
    DataTable,
    Document,
    Findings,
    Health,
    KeyFigure,
    KeyFigures,
    Section,
    Stack,
    StackPart,
    TableColumn,
    Text,
)
from usp_prof.report.figures import Figures, Key, Number, axis_words
from usp_prof.report.figures import parts as step_parts
from usp_prof.report.format import Cell, column_scale, head_text, quantity, share
from usp_prof.report.run_facts import RunFacts, run_facts
from usp_prof.report.sections.summary import worst_ranks
from usp_prof.report.verdict import NOTABLE, LateRank, certain_gain, saving
from usp_prof.report.words import REST as REST_OF_FINDINGS
from usp_prof.report.words import further_place, left_out
from usp_prof.report.writers.markdown import sections_text as write_markdown
from usp_prof.report.writers.webpage import write as write_webpage
from usp_prof.schedule import Schedule
from usp_prof.store.rank_jobs import stamp_of
from usp_prof.tables.catalogue import SCHEMAS as TABLE_SCHEMAS
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.sql_cells import Cells
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline import overlays, store
from usp_prof.timeline.area import by_kind, contents
from usp_prof.timeline.assets import CANVAS as TIMELINE_CANVAS
from usp_prof.timeline.assets import category_colors, category_inks
from usp_prof.timeline.assets import script as timeline_script
from usp_prof.timeline.assets import style as timeline_style
from usp_prof.timeline.opened import open_timeline
from usp_prof.timeline.page import assets as timeline_assets
from usp_prof.timeline.page import embedded as embedded_timeline
from usp_prof.timeline.queries import (
    MOST_PATTERN,
    Call,
    Place,
    call_of,
    launch_of,
    launched_by,
    literal,
    matching,
    op_of,
    place,
    search,
)
from usp_prof.timeline.rows import CATEGORIES, HOST_CATEGORIES, category_number
from usp_prof.timeline.store import JobStep, TimelineStore
from usp_prof.timeline.tiles import encode, longest_of_groups, pack
from usp_prof.whatif.edits import EDITS
from usp_prof.whatif.predict import Prediction, predict_on
from usp_prof.whatif.replayed_ranks import replayed_ranks
from usp_prof.whatif.rescheduled import Rescheduled, reschedule
