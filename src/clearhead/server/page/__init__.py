"""The page at `/`: write, chat or translate with a run, in a browser."""

from functools import cache
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.pages import STYLE

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
SECTIONS = "<!-- sections -->"  # where a page has the forms to write, chat and translate


@cache
def page_files(package: str = __name__) -> dict[str, Response]:
    """What a browser may ask for of a package's files, by name."""
    sections = resources.files(__name__).joinpath("sections.html").read_text(encoding="utf-8")
    answers = dict[str, Response]()
    for path in resources.files(package).iterdir():
        suffix = path.name[path.name.rfind(".") :]
        if suffix in TYPES:
            content = path.read_text(encoding="utf-8").replace(SECTIONS, sections)
            style = STYLE if suffix == ".css" else ""
            answers[path.name] = Response(style + content, media_type=TYPES[suffix])
    return answers


def page_file(name: str, package: str = __name__) -> Response:
    """A file of a page; its name is looked up, and no path is made of it.

    Raises:
        HTTPException: 404, there is none.
    """
    response = page_files(package).get(name)
    if response is None:
        raise HTTPException(404)
    return response


async def index(request: Request) -> Response:
    return page_file("index.html")


async def named_file(request: Request) -> Response:
    return page_file(request.path_params["name"])


ROUTES = [Route("/", index), Route("/page/{name}", named_file)]
