"""A chat with a run's model."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from clearhead.config import GenerationConfig
from clearhead.data import ChatEncoder, ChatMessage, ChatTemplate, read_chat_template
from clearhead.errors import UsageError
from clearhead.inference import Engine, GenerationBatch, TextOptions
from clearhead.inference.constraints import ConstraintCompiler
from clearhead.inference.text_stream import TextStream
from clearhead.models import CausalLM
from clearhead.wording import call
from clearhead.workflows.generating import SMALL, Which, draft_model, writer_of
from clearhead.workflows.hardware import enough_memory, threads
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder

LEAST_SHARE = 4  # of the context, one in so many tokens is kept free for an answer


class Chat:
    """A conversation. Each answer reads only what is new: the rest is still in the model's cache.

        chat = ch.chat("runs/a", temperature=0.7)
        print(chat.say("Hello!"))

    Attributes:
        messages: what was said so far; a system message comes first.
        dropped: how many of the oldest messages no longer fit into the model's context, so it does not see them.
        config: how answers are drawn; may be replaced between two of them.
    """

    def __init__(
        self,
        run: RunFolder,
        encoder: ChatEncoder,
        model: CausalLM,
        config: GenerationConfig,
        *,
        draft: CausalLM | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self.run, self.config = run, config
        self.messages = list[ChatMessage]()
        self.dropped = 0
        self._encoder, self._model, self._draft, self._on_notice = encoder, model, draft, on_notice
        self._tokenizer, self._engine = run.tokenizer, Engine(model, config)
        self._context = model.config.block_size if model.receptive_field is None else None
        self._n_parameters = sum(p.numel() for p in model.parameters())
        self._batch: GenerationBatch | None = None
        self._compiler: ConstraintCompiler | None = None
        self._make_compiler()  # if it cannot be made, that is said before the first message

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[0] if self.messages else None
        return first.content if first is not None and first.role == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        self.messages = [ChatMessage("system", text), *rest] if text else rest

    def say(self, message: str, on_text: Callable[[str], None] | None = None) -> str:
        """Say something; the model's answer.

        Where it is interrupted, by Ctrl-C or by an error of `on_text`, what was answered so far is kept.

        Args:
            message: the person's.
            on_text: called with each new piece of the answer.

        Raises:
            UsageError: the message does not fit into the model's context, or the template refuses it.
            ClearheadError: one sentence on what else is wrong.
        """
        history = [*self.messages, ChatMessage("user", message)]
        prompt, new_tokens = self._prompt(history)
        text = TextStream(self._tokenizer.decode, prompt, self.config.stop)
        pieces = list[str]()

        def show(piece: str) -> None:
            if piece:
                pieces.append(piece)
                if on_text:
                    on_text(piece)

        few = self._n_parameters < SMALL
        try:
            with threads(1 if few else None), enough_memory("lower `max_new_tokens`"):
                self._write(prompt, new_tokens, text, show)
        except BaseException:
            self._batch = None  # it may have been left in the middle of a step
            if pieces:
                self.messages = [*history, ChatMessage("assistant", "".join(pieces))]
            raise
        answer = "".join(pieces)
        self.messages = [*history, ChatMessage("assistant", answer)]
        return answer

    def undo(self) -> bool:
        """Forget the last message and its answer; whether there was one."""
        last = next((i for i in range(len(self.messages) - 1, -1, -1) if self.messages[i].role == "user"), None)
        if last is None:
            return False
        del self.messages[last:]
        return True

    def _write(self, prompt: list[int], new_tokens: int, text: TextStream, show: Callable[[str], None]) -> None:
        if self._batch is None:
            self._batch = GenerationBatch(
                self._model, self._engine, draft=self._draft, on_notice=self._on_notice, slots=1
            )
        batch, end = self._batch, self._encoder.end_of_turn
        self._make_compiler()
        constraint = None if self._compiler is None else self._compiler.of(self.config)
        options = TextOptions(stop_ids=frozenset() if end is None else frozenset({end}), constraint=constraint)
        sampling = self.config.model_copy(update={"max_new_tokens": new_tokens})
        with ExitStack() as stack:
            stack.enter_context(batch)
            [name] = batch.add([prompt], sampling, self._tokenizer.end_of_document, options)
            while batch.live and not text.stopped:
                for token in batch.step().get(name, []):
                    show(text.add(token))
                    if text.stopped:
                        break
                for error in batch.failed.values():
                    raise error
            batch.cancel([name])
            batch.finish_reasons.clear()
        show("" if text.stopped else text.close())

    def _make_compiler(self) -> None:
        """Make what compiles forms where the config asks for one, which may have been replaced."""
        if self._compiler is None and self.config.is_constrained:
            self._compiler = ConstraintCompiler(self._tokenizer, self._model.config.vocab_size)

    def _prompt(self, messages: list[ChatMessage]) -> tuple[list[int], int]:
        """The ids of the chat, without its oldest messages where it is too long, and how long an answer may be.

        Raises:
            UsageError: the last message alone is too long.
        """
        prompt = self._encoder.encode(messages)
        if self._context is None:
            return prompt, self.config.max_new_tokens
        room = min(self.config.max_new_tokens, max(1, self._context // LEAST_SHARE))
        head = [message for message in messages[:1] if message.role == "system"]
        rest, n_dropped = messages[len(head) :], 0
        while len(prompt) + room > self._context:
            if len(rest) == 1:
                raise UsageError(
                    f"the message and its answer do not fit into the model's context: it has {self._context} tokens, "
                    f"and the message takes {len(prompt)}; shorten it"
                )
            n_turn = next((i for i in range(1, len(rest)) if rest[i].role == "user"), len(rest) - 1)
            rest, n_dropped = rest[n_turn:], n_dropped + n_turn
            prompt = self._encoder.encode([*head, *rest])
        if n_dropped > self.dropped and self._on_notice:
            self._on_notice(
                f"the chat has outgrown the model's context of {self._context} tokens: "
                f"the model no longer sees its {n_dropped} oldest messages"
            )
        self.dropped = n_dropped
        return prompt, min(self.config.max_new_tokens, self._context - len(prompt))


def chat(
    run: Which = None,
    *,
    system: str | None = None,
    template: str | Path | None = None,
    device: str = "auto",
    on_notice: Callable[[str], None] | None = None,
    **options: object,
) -> Chat:
    """Begin a chat with the run's model.

    Args:
        run: a folder, a name, or None for the newest.
        system: a message to begin with, which says how to answer.
        template: a file with a chat template in jinja2's language; by default the one that the run was imported with.
        device: where to compute.
        on_notice: called with sentences to show the user.
        options: as in `GenerationConfig`, for every answer: max_new_tokens=200, temperature=0.8, seed=1...

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    config = GenerationConfig.read(options)
    if config.num_samples != 1:
        raise UsageError("`num_samples`: a chat has one answer to each message; leave it out")
    if "" in config.stop:
        raise UsageError("stop: an empty stop string would end every text at once; leave it out")
    opened = open_folder(run)
    tokenizer = opened.tokenizer
    own = tokenizer.chat_template
    if template is not None:
        source = read_chat_template(Path(template))
        own = ChatTemplate.with_tokens_of(source, opened.folder / "tokenizer_config.json")
    if own is None:
        raise UsageError(
            f"{opened.folder} has no chat template: it was not trained for chats; continue a text with "
            f"{call('generate', opened.folder)}, or give a template of your own with `template='FILE'`"
        )
    model = writer_of(opened, device)
    draft = None if config.draft in (None, "ngrams") else draft_model(open_folder(config.draft), opened, device)
    conversation = Chat(opened, ChatEncoder(tokenizer, own), model, config, draft=draft, on_notice=on_notice)
    conversation.system = system
    return conversation
