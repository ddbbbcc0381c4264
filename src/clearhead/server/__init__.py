"""Runs over HTTP: a server of texts, translations and vectors that speaks OpenAI's protocol. Needs the extra `serve`.

Importing this loads neither torch nor starlette; a name that needs them loads them when it is first touched.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.server.app import create_app as create_app
    from clearhead.server.serving import Listening as Listening
    from clearhead.server.serving import serve as serve
    from clearhead.server.studio.opening import open_studio as open_studio

__getattr__, __dir__, __all__ = attach(
    __name__, {"app": ("create_app",), "serving": ("Listening", "serve"), "studio.opening": ("open_studio",)}
)
