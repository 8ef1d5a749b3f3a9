"""The script that Streamlit runs for each visitor: draws the chosen page in its frame.

Streamlit runs it by its path, outside any package. The folder above is the package: `dashboard` in a clone,
`usp_prof_dashboard` where the wheel is installed. It has a folder of its own, since Streamlit would take `pages` beside
it for pages of its older kind.
"""

from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1].name

import_module(f"{PACKAGE}.frame").main()
