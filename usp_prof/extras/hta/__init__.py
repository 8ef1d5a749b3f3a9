"""HolisticTraceAnalysis' methods under their own names: `from usp_prof.hta import TraceAnalysis`.

Methods, parameters and columns are those of HTA 0.5; the answers come from our tables, and HTA is not required. Where
HTA is wrong, the answer differs on purpose; docs/reference/hta.md lists each difference with its reason.
"""

from usp_prof.extras.hta.diff import DeviceType, TraceDiff
from usp_prof.extras.hta.trace_analysis import TraceAnalysis

__all__ = ["DeviceType", "TraceAnalysis", "TraceDiff"]
