"""What the verbs that serve share: the options of a server, and how it ends."""

import argparse
import os
import signal

from clearhead.cli.arguments import settings_of
from clearhead.cli.output import notice
from clearhead.config.serving import ServerConfig
from clearhead.errors import InterruptedRunError
from clearhead.server.first_calls import TOKEN_VARIABLE


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The options of a server; the environment's token where none was typed."""
    options = settings_of(args, ServerConfig)
    if token := os.environ.get(TOKEN_VARIABLE):
        options.setdefault("token", token)
    return ServerConfig.read(options)


def exit_code(ended_by: signal.Signals | None, args: argparse.Namespace) -> int:
    """The code of a server that has ended, and a word of an interruption."""
    if ended_by is not signal.SIGINT:
        return 0
    if not args.json:  # the object has been printed
        notice("interrupted")
    return InterruptedRunError.exit_code
