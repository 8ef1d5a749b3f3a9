"""Which tables are derived from the events? One table a module: its schema and its `build`."""
