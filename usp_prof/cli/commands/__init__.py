"""Commands of the core, one per file: each parses its options, calls the library, and passes the result to a writer."""
