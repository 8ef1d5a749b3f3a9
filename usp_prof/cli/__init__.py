"""Commands: each parses its options, calls the library, and passes the result to a writer."""
