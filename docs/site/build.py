"""Build the site: python docs/site/build.py [FOLDER]. Every warning is an error; nothing is loaded from elsewhere."""

import shutil
import sys
from pathlib import Path

from pages import ROOT, write_pages
from sphinx.cmd.build import main

FOLDER = ROOT / "build" / "site"
# Where there is room, lines of code are seen whole, and lines of text are no longer for it.
WIDE = "@media (min-width: 107em) { .content { width: 61em } .content :is(p, li) { max-width: 46em } }"
# What the theme leaves out: parts of a page that cannot be named or reached on the keyboard, and an icon, which the
# browser asks for in vain.
MENDS = {
    "</head>": f'<link rel="icon" href="data:,"><style>{WIDE}</style></head>',
    'class="caption" role="heading"': 'class="caption" role="heading" aria-level="2"',
    "<pre>": '<pre tabindex="0">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    'class="table-wrapper docutils container"': 'class="table-wrapper docutils container" tabindex="0"',
    'class="math-wrapper docutils container"': 'class="math-wrapper docutils container" tabindex="0"',
    '<img alt="../_images': '<img alt="What the code above draws: ../_images',
}


def build(folder: Path) -> int:
    """Write the pages and the site into a folder; Sphinx's exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"
    source.mkdir(parents=True)
    write_pages(source)
    here = str(Path(__file__).resolve().parent)
    code = main(["-W", "--keep-going", "-q", "-b", "html", "-c", here, str(source), str(folder / "html")])
    for path in (folder / "html").rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for old, new in MENDS.items():
            page = page.replace(old, new)
        path.write_text(page, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if sys.argv[1:] else FOLDER))
