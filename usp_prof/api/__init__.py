"""What a `Run` answers in Python: questions, answers with a table and a picture, and predictions."""
