"""Tables made from the events, one a module: its schema and its `build`."""
