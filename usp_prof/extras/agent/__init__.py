"""Tools for agents: an MCP server that answers from the public Python API, only for runs in given folders."""
