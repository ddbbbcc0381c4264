"""Sphinx's options for the site; `docs/site/build.py` runs it on the pages that `pages.py` puts together."""

project = "Clearhead"
author = "The Clearhead authors"
extensions = ["myst_nb", "mathml"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"
html_math_renderer = "mathml"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
html_theme = "furo"
html_title = "Clearhead"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
highlight_language = "text"
