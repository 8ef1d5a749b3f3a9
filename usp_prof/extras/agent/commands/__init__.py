"""Commands of the agent's server; `usp_prof.cli.command_files` finds them."""
