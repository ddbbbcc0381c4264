"""Errors as a client gets them: one envelope, one sentence, and nothing of the machine inside."""

import http
import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from clearhead.errors import ClearheadError, UsageError
from clearhead.pages import one_line

LOG = logging.getLogger(__name__)
TYPES = {429: "rate_limit_error", 401: "authentication_error", 403: "permission_error"}
FAILED = "the server could not finish this request; its own log says why"


class HttpError(Exception):
    """What is wrong with a request, for whoever sent it.

    Args:
        status: of HTTP, 400 to 599.
        message: one sentence: what, and what to do. No path, no name of a file.
        param: the field of the request that is wrong.
        code: a word that a program can compare.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


def error_body(error: BaseException) -> dict[str, object]:
    """The envelope: `{"error": {"message", "type", "param", "code"}}`."""
    known = as_http_error(error)
    usual = "server_error" if known.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": one_line(known.message),
            "type": TYPES.get(known.status, usual),
            "param": known.param,
            "code": known.code,
        }
    }


def as_http_error(error: BaseException) -> HttpError:
    """What a client may know of an error. Of one that is not its own fault: nothing."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, UsageError):  # of an option or of token ids: its sentence names no file
        return HttpError(400, str(error))
    if isinstance(error, HTTPException):
        return HttpError(error.status_code, _phrase(error.status_code))
    if isinstance(error, ClientDisconnect):
        return HttpError(400, "the client closed the connection before the whole request had arrived")
    return HttpError(500, FAILED)


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    """An error as a response."""
    known = as_http_error(error)
    return JSONResponse(error_body(known), status_code=known.status, headers={**(headers or {}), **known.headers})


def log_failure(error: BaseException) -> None:
    """Write down an error of which the client is told nothing."""
    if as_http_error(error).message == FAILED:
        LOG.error("a request could not be finished", exc_info=error)


async def handle_error(request: Request, error: Exception) -> Response:
    """For starlette: every exception becomes the envelope."""
    log_failure(error)
    return error_response(error, error.headers if isinstance(error, HTTPException) else None)


EXCEPTION_HANDLERS = dict.fromkeys(
    (HttpError, HTTPException, ClientDisconnect, ClearheadError, Exception), handle_error
)


def _phrase(status: int) -> str:
    usual = {
        404: "there is no such path here",
        405: "this path does not have that method; the Allow header has those that it has",
    }
    try:
        return usual.get(status, http.HTTPStatus(status).phrase.lower())
    except ValueError:
        return "the request was refused"
