"""Events of one rank as arrays: their arguments, streams, launches and kinds of work."""
