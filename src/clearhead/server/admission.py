"""What is refused before anything of a request is read, because there is no room for it."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from clearhead.server.http.errors import error_response
from clearhead.server.loaded_runs import LoadedRuns


class Admission:
    """ASGI middleware that refuses texts where every run's queue is full.

    Under ten times as many requests as a server can take, nine of ten are refused: what that costs decides how long
    a refusal takes, and what is left for those that are served. To read a body and find out what is wrong with it costs
    several times as much as to refuse it.
    """

    def __init__(self, app: ASGIApp, runs: LoadedRuns, endpoints: Mapping[str, object]) -> None:
        """
        Args:
            app: answers everything else.
            runs: all that are served.
            endpoints: by their paths, what writes texts.
        """
        self.app, self.runs, self.endpoints = app, runs, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self.endpoints:
            refusal = self.runs.refusal()
            if refusal is not None:
                scope["endpoint"] = self.endpoints[scope["path"]]  # for whoever counts
                await error_response(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)
