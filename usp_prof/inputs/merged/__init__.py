"""Merged Chrome traces: one file with the processes of several ranks, as viewers and other tools write them."""
