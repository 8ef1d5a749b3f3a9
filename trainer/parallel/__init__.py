"""The parallel axes, one module each; `mesh` says which rank stands where."""
