"""Merged Chrome traces: one file with the processes of several ranks, as written by viewers and other tools."""
