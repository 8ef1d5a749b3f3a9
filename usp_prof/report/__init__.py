"""How is an answer told? One document, several writers."""
