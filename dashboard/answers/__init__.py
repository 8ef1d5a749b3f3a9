"""What do the pages with choices say? Their answers as sections of the report: page, download and report say the same.

One module a page. Nothing here computes: what was compared, replayed or planned comes in, blocks of the report go out.
"""
