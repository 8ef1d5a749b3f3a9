"""Export: a run in the format of another program (Chrome trace, Perfetto, HolisticTraceAnalysis)."""
