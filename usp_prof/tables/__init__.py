"""Tables built from the events, one per module: its schema and its `build`."""
