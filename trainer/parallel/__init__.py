"""The parallel axes, one technique per module; `mesh` has the process groups of a rank."""
