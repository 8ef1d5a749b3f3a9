"""Store of a run's tables, and the processes that read its files (cache, jobs, executors)."""
