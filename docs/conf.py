"""Sphinx configuration. Build: `sphinx-build -n -W --keep-going -b html docs docs/_build/html`."""

import tomllib
from pathlib import Path

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "Duplex"
author = "the Duplex authors"
project_copyright = author
release = version = _project["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# anchors on headings, so that a link to a section is checked like a link to a page
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "deflist"]

html_theme = "furo"
html_title = f"Duplex {release}"
html_copy_source = False
html_show_sphinx = False
