"""The page of the studio: what its browser loads, and nothing from elsewhere."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.server.page import page_file


async def index(request: Request) -> Response:
    return page_file("index.html", __name__)


async def named_file(request: Request) -> Response:
    return page_file(request.path_params["name"], __name__)


ROUTES = [Route("/", index), Route("/studio/page/{name}", named_file)]
