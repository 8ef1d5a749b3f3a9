"""Settings of the documentation's site: Sphinx over the Markdown of this folder, built by scripts/docs.

Sphinx with MyST was chosen as the generator that will still be kept in three years: Material for MkDocs ended its
support in November 2026, MkDocs itself has had no maintainer since 2024, and Zensical, their successor, is below 1.0.
Search is Sphinx's own: an index in the site, no network.
"""

from usp_prof._version import __version__

project = "usp-prof"
author = "The usp-prof authors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "html_admonition"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
smartquotes = False  # else `--help` in a sentence becomes a dash and help
nitpicky = True  # a reference that leads nowhere is an error; scripts/docs makes warnings errors

html_theme = "furo"
html_title = f"usp-prof {version}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["report.schema.json"]
