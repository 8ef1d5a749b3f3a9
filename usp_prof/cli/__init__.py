"""What can be typed? A command parses, calls the run, hands a document to a writer."""
