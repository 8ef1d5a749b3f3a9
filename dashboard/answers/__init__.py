"""Answers of the pages with choices, as sections of the report: page, download and report say the same.

One module a page. Nothing here computes: what was compared, replayed or planned comes in, blocks of the report go out.
"""
