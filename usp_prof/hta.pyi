from usp_prof.extras.hta import DeviceType, TraceAnalysis, TraceDiff

__all__ = ["DeviceType", "TraceAnalysis", "TraceDiff"]
