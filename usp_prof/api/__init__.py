"""The answers of a `Run` in Python: questions, answers with a table and a picture, and predictions."""
