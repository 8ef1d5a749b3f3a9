"""Store: where the tables of a run are kept, and who reads its files (cache, jobs, executors)."""
