"""Executors of clusters: each file connects to one kind of scheduler, named by the option `--executor NAME:ADDRESS`."""
