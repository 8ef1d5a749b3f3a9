"""Command that writes synthetic runs; `usp_prof.cli.command_files` finds it."""
