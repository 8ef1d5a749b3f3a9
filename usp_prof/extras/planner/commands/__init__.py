"""Commands of the planner; `usp_prof.cli.command_files` finds them."""
