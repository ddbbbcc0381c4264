"""What the pages for people point at is there: files, the headings in them, and papers by ids that can be."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py")),
]
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)
ADDRESS = re.compile(r"https?://[^\s)>\"'`]+")
NEW_PAPER = re.compile(r"https://arxiv\.org/abs/(\d\d)(0[1-9]|1[0-2])\.(\d{4,5})(v[1-9]\d*)?")
OLD_PAPER = re.compile(r"https://arxiv\.org/abs/[a-z-]+(\.[A-Z]{2})?/\d\d(0[1-9]|1[0-2])\d{3}(v[1-9]\d*)?")
DOI = re.compile(r"https://doi\.org/10\.\d{4,9}/\S*[^\s.,;]")


def prose(path: Path) -> str:
    """The text of a page, or of a lesson's cells that are text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    cells = [cell.partition("\n")[2] for cell in text.split("\n# %%") if cell.startswith(" [markdown]")]
    return "\n".join(line[2:] for cell in cells for line in cell.splitlines() if line.startswith("#"))


def anchors(path: Path) -> set[str]:
    """What `#...` may be behind a link to a page: its headings, written as GitHub and the site write them."""
    names: list[str] = []
    for heading in HEADING.findall(re.sub(r"^```.*?^```", "", prose(path), flags=re.DOTALL | re.MULTILINE)):
        shown = LINK.sub("]", heading).lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        repeated = sum(re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in names)
        names.append(f"{name}-{repeated}" if repeated else name)
    return set(names)


def problem(page: Path, link: str) -> str:
    """What is wrong with a link to a file, or nothing."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{link}: there is no such file"
    if not target.is_relative_to(ROOT):
        return f"{link}: outside the repository"
    if anchor and anchor not in anchors(target):
        return f"{link}: no such heading"
    return ""


def is_paper(address: str) -> bool:
    return re.match(r"https?://([\w.]*\.)?(arxiv|doi)\.org\b", address) is not None


def is_well_formed(address: str) -> bool:
    """Whether a link to a paper has an id that can be: a month of the year, as many digits as its years have."""
    if paper := NEW_PAPER.fullmatch(address):
        year, month, number, _ = paper.groups()
        return "0704" <= year + month < "5000" and len(number) == (4 if year + month < "1501" else 5)
    return bool(OLD_PAPER.fullmatch(address) or DOI.fullmatch(address))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_it_and_to_a_heading_that_it_has(page: Path) -> None:
    links = [link for link in LINK.findall(CODE.sub("", prose(page))) if "://" not in link]
    assert [fault for link in links if (fault := problem(page, link))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_papers_have_ids_that_can_be(page: Path) -> None:
    papers = filter(is_paper, ADDRESS.findall(prose(page)))
    assert [paper for paper in papers if not is_well_formed(paper.rstrip(".,;:"))] == []


def test_ids_of_papers_are_told_apart() -> None:
    good = ("abs/1706.03762", "abs/1706.03762v7", "abs/0704.0001", "abs/cs/0701001", "abs/math.GT/0309136")
    bad = ("abs/1706.3762", "abs/1713.03762", "abs/0704.00011", "abs/0612.0001", "pdf/1706.03762", "abs/170603762")
    assert all(is_well_formed(f"https://arxiv.org/{name}") for name in good)
    assert not any(is_well_formed(f"https://arxiv.org/{name}") for name in bad)
    assert is_well_formed("https://doi.org/10.1162/tacl_a_00306")
    assert not is_well_formed("https://doi.org/1162/tacl")
    assert is_paper("https://www.arxiv.org/abs/1")
    assert not is_paper("https://github.com/arxiv.org")
