"""Sphinx's options for the site; `docs/site/build.py` runs it on the pages that `pages.py` puts together."""

project = "Clearhead"
author = "The Clearhead authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_title = "Clearhead"
html_show_sphinx = False
html_copy_source = False
highlight_language = "text"
