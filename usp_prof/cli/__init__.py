"""Command line: entry point, options that commands share, and the commands of the core."""
