"""Reports: every answer as one document, set by several writers."""
