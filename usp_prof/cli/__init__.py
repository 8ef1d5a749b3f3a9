"""Commands: each parses its options, asks the library, and hands the answer to a writer."""
