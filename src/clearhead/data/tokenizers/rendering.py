"""A program of its own: renders chat templates, which are programs of strangers, in bounded time and memory.

Each line of standard input is a JSON object: the template, and what to render it with, several times. Each is answered
with one line: the texts, or the fault as the end of a sentence, and whether it is the template's own refusal. Its
arguments are the seconds of processor time for one line, the bytes of memory, and folders to import jinja2 from. It
runs without the rest of Clearhead, and beside it, so that a rendering takes a millisecond.
"""

import json
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

MAX_REASON = 200  # characters of what the template or jinja2 says
MAX_KEPT = 8  # compiled templates


class FaultyTemplateError(Exception):
    """What is wrong with the template, as the end of a sentence."""


def main() -> None:
    """Answer line after line, until there are no more."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    sys.path += sys.argv[3:]
    renderer = Renderer()
    limit_memory(memory)
    for line in sys.stdin.buffer:
        limit_time(seconds)
        answer = json.dumps(answer_to(renderer, line))
        limit_time(0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def answer_to(renderer: "Renderer", line: bytes) -> dict[str, Any]:
    """The texts of one request, or what is wrong."""
    import jinja2

    request = json.loads(line)
    try:
        return {
            "texts": [
                renderer.render(request["template"], request["limit"], **rendering)
                for rendering in request["renderings"]
            ]
        }
    except RefusalError as error:
        return {"fault": in_short(error), "refused": True}
    except FaultyTemplateError as error:
        return {"fault": str(error), "refused": False}
    except MemoryError:
        return {"fault": "takes too much memory", "refused": False}
    except RecursionError:
        return {"fault": "is nested too deeply", "refused": False}
    except jinja2.TemplateSyntaxError as error:
        return {"fault": f"is no jinja template: {in_short(error)}, line {error.lineno}", "refused": False}
    except Exception as error:
        return {"fault": f"fails: {in_short(error)}", "refused": False}


class RefusalError(Exception):
    """What the template itself says against these messages."""


class Renderer:
    """Renders in the environment that templates of the ecosystem are written for, as `transformers` sets it up."""

    def __init__(self) -> None:
        import jinja2.ext
        import jinja2.sandbox

        self._environment = environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[generation_blocks(), jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = to_json
        del environment.globals["lipsum"]
        environment.globals |= {"raise_exception": refuse, "strftime_now": now, "dict": new_dict}
        environment.globals["namespace"] = plain_namespace()
        self._compiled = dict[tuple[str, str], jinja2.Template]()

    def render(self, template: str, limit: int, variables: dict[str, Any], marks: dict[str, str]) -> str:
        """The text, of at most `limit` characters; in what the template itself writes, `marks` replace texts."""
        pieces, length = list[str](), 0
        for piece in self._template(template, marks).generate(**variables):
            length += len(piece)
            if length > limit:
                raise FaultyTemplateError(f"writes more than {limit:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _template(self, source: str, marks: dict[str, str]) -> "jinja2.Template":
        import jinja2

        key = source, json.dumps(marks)
        if key not in self._compiled:
            if len(self._compiled) == MAX_KEPT:
                self._compiled.clear()
            tree = self._environment.parse(source)
            for node in tree.find_all((jinja2.nodes.TemplateData, jinja2.nodes.Const)):
                name = "data" if isinstance(node, jinja2.nodes.TemplateData) else "value"
                text = getattr(node, name)
                for old, new in marks.items() if isinstance(text, str) else ():
                    text = text.replace(old, new)
                setattr(node, name, text)
            code = self._environment.compile(tree)
            self._compiled[key] = jinja2.Template.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        return self._compiled[key]


def generation_blocks() -> type[Any]:
    """An extension: `{% generation %}` marks what a training counts, and is nothing else."""
    import jinja2
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (jinja2's own type)

        def parse(self, parser: Any) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return Generation


def plain_namespace() -> type[Any]:
    """jinja2's namespace, in which nothing is reached by an underscore."""
    from jinja2.utils import Namespace

    class PlainNamespace(Namespace):  # type: ignore[misc,unused-ignore]
        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise FaultyTemplateError("stores an attribute that begins with an underscore")
            super().__setitem__(name, value)

    return PlainNamespace


def new_dict(*items: Any, **values: Any) -> dict[Any, Any]:
    """A function and no type, of which a template could ask more."""
    return dict(*items, **values)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, where jinja2 has it escaped for a page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: object) -> None:
    """What templates call where they cannot render these messages."""
    raise RefusalError(str(message))


def now(form: str) -> str:
    """The date."""
    return datetime.now().strftime(form)


def limit_memory(memory: int) -> None:
    """The system refuses more, where it knows such a limit."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, AttributeError, ValueError, OSError):
        pass  # Windows has none of these, macOS not the last


def limit_time(seconds: float) -> None:
    """The system ends the process after so many more; 0: not at all. Elsewhere the caller's clock remains."""
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    except (AttributeError, ValueError, OSError):
        pass


def in_short(error: BaseException) -> str:
    """What it says, in one line that is not too long."""
    line = " ".join(str(error)[: 4 * MAX_REASON].split()) or type(error).__name__
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


if __name__ == "__main__":
    main()
