"""The command `clearhead`: parse, call the workflow, print. Verbs load when they are called, and torch with them.

This file imports next to nothing: Ctrl-C is heard as soon as it is loaded, before everything else is.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clearhead.cli.command import VERBS as VERBS
    from clearhead.cli.command import module_of as module_of
    from clearhead.cli.command import run as run

__all__ = ["VERBS", "main", "module_of", "run"]


def main() -> None:
    """The entry point: runs the verb and exits with its code. SIGTERM asks to stop as Ctrl-C does."""
    from clearhead.cli import interrupts

    interrupts.listen()
    try:
        from clearhead.cli.command import run_process

        run_process()
    except KeyboardInterrupt:  # a second one, while the first was being told of
        interrupts.leave_at_once()


def __getattr__(name: str) -> "Any":
    if name in __all__:
        from clearhead.cli import command

        return getattr(command, name)
    raise AttributeError(f"module 'clearhead.cli' has no attribute '{name}'")
