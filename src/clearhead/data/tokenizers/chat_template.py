"""Chat templates: how a model wants the messages of a chat to be written, as its makers publish it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from clearhead.data.tokenizers.render_process import PROCESS, Rendering
from clearhead.errors import DataError
from clearhead.files import read_bytes, read_json, write_json, write_text

FILE, KEY = "chat_template.jinja", "chat_template"
MAX_BYTES = 256 << 10  # of a template; the largest published ones have 20 kB
MAX_CONFIG = 16 << 20
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatMessage(NamedTuple):
    """One message of a chat; its role is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatTemplate:
    """A template in jinja2's language, as `tokenizer.apply_chat_template` of transformers takes it.

    Args:
        source: the template.
        special_tokens: what its variables `bos_token`, `eos_token`... stand for.
    """

    source: str
    special_tokens: Mapping[str, str]

    def __post_init__(self) -> None:
        if len(self.source) > MAX_BYTES:
            raise DataError(f"the chat template has more than {MAX_BYTES:,} characters, which no published one has")

    @classmethod
    def beside(cls, config: Path, file: Path) -> Self | None:
        """The template that comes with a tokenizer; None where there is none.

        Args:
            config: its tokenizer_config.json.
            file: its chat_template.jinja, which need not be there.

        Raises:
            DataError: there is one, which cannot be read.
        """
        settings = _settings(config)
        source = read_chat_template(file) if file.exists() else _default(settings.get(KEY))
        return None if source is None else cls(source, _special_tokens(settings))

    @classmethod
    def with_tokens_of(cls, source: str, config: Path) -> Self:
        """A template for the tokenizer that this tokenizer_config.json belongs to."""
        return cls(source, _special_tokens(_settings(config)))

    def save(self, config: Path) -> None:
        """Write it beside a tokenizer whose files are there, with what transformers needs to render it alike."""
        write_text(config.with_name(FILE), self.source)
        # its special tokens are in the rendered text, where transformers is to recognize them
        write_json(config, {**self.special_tokens, **_settings(config), "split_special_tokens": False})

    def render(
        self,
        conversations: Sequence[Sequence[ChatMessage]],
        *,
        marks: Sequence[Mapping[str, str]] = (),
        reply: bool = True,
    ) -> list[str]:
        """The text of each conversation.

        Args:
            conversations: their messages.
            marks: for each of them, texts of the template's own that are to be replaced by others.
            reply: begin the answer of the model.

        Raises:
            UsageError: the template refuses these messages.
            ChatTemplateError: the template is wrong, or takes too much time or memory.
        """
        renderings = [
            Rendering(self._variables(messages, own, reply), own)
            for messages, own in zip(conversations, marks or [{}] * len(conversations), strict=True)
        ]
        return PROCESS.render(self.source, renderings)

    def _variables(self, messages: Sequence[ChatMessage], marks: Mapping[str, str], reply: bool) -> dict[str, object]:
        tokens = {name: marks.get(token, token) for name, token in self.special_tokens.items()}
        listed = [message._asdict() for message in messages]
        return {**tokens, "messages": listed, "tools": None, "documents": None, "add_generation_prompt": reply}


def read_chat_template(path: Path) -> str:
    """The template in a file.

    Raises:
        DataError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        return read_bytes(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; write the chat template in it") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"the chat template {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _settings(config: Path) -> dict[str, object]:
    try:
        settings = read_json(config, MAX_CONFIG)
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _default(value: object) -> str | None:
    """The template under the key: a text, or a list of several by their names, of which one is the default."""
    for template in value if isinstance(value, list) else ():
        if isinstance(template, dict) and template.get("name") == "default":
            value = template.get("template")
    return value if isinstance(value, str) and value else None


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    tokens = dict[str, str]()
    for name in NAMES:
        token = settings.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            tokens[name] = content
    return tokens
