"""Reports: every answer as one document, formatted by several writers."""
