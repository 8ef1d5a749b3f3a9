"""The parallel axes, one technique a module; `mesh` holds the groups that a rank talks in."""
