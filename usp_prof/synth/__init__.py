"""Do the figures come out right? Traces of a declared run whose truth is known, for tests, teaching and scale."""
