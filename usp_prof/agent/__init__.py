"""Tools for agents: an MCP server that answers from the public Python API, of runs in given folders alone."""
