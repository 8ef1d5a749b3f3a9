"""What if the run were different? The run as a graph, its replay, edits, schedules."""
