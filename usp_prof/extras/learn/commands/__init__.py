"""Commands of the course; `usp_prof.cli.command_files` finds them."""
