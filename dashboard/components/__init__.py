"""Which pieces does the browser run? Each component is a Python wrapper beside its JavaScript."""
