"""Answers of pages: sentences and pictures, from the report and the tables."""
