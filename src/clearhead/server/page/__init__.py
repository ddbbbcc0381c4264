"""The page at `/`: write, chat or translate with a run, in a browser."""

from functools import cache
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.pages import STYLE

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


@cache
def page_files() -> dict[str, Response]:
    """What a browser may ask for, by name."""
    answers = dict[str, Response]()
    for path in resources.files(__name__).iterdir():
        suffix = path.name[path.name.rfind(".") :]
        if suffix in TYPES:
            content = path.read_text(encoding="utf-8")
            style = STYLE if suffix == ".css" else ""
            answers[path.name] = Response(style + content, media_type=TYPES[suffix])
    return answers


async def index(request: Request) -> Response:
    return page_files()["index.html"]


async def page_file(request: Request) -> Response:
    """A file of the page; its name is looked up, and no path is made of it."""
    response = page_files().get(request.path_params["name"])
    if response is None:
        raise HTTPException(404)
    return response


ROUTES = [Route("/", index), Route("/page/{name}", page_file)]
