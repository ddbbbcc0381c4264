"""The studio on a model that transformers made and saved, and that was imported: its numbers are transformers' own."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from playwright.sync_api import Browser, expect
from real_browser import TIMEOUT, Opened, opened
from running_server import running_app
from tokenizers import decoders, models, pre_tokenizers, processors

from clearhead.config.serving import ServerConfig
from clearhead.server.studio.app import create_studio
from clearhead.workflows import import_model
from clearhead.workflows.prompts import read_prompt

pytestmark = pytest.mark.browser

PIECES = ["<s>", "</s>", "<unk>", "▁once", "▁upon", "▁", *"abcdefghijklmnopqrstuvwxyz.,;\n"]
TEXT = "once upon"
SCREENS = {  # and what stands there once the numbers have arrived
    "runs": "table.runs tbody tr",
    "architecture": "iframe",
    "xray": ".steps",
    "attention": ".wall button",
    "next": ".odds li",
    "write": "form",
    "doctor": "iframe",
}
expect.set_options(timeout=TIMEOUT)


def save_llama(folder: Path) -> Any:
    """A small Llama with grouped queries, and a tokenizer that begins every text with a token of its own."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(PIECES), num_key_value_heads=2, tie_word_embeddings=False, **sizes)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    vocab = [(piece, -float(number)) for number, piece in enumerate(PIECES)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The model as transformers has it; in the current folder it is the run `llama`."""
    folder, before = tmp_path_factory.mktemp("imported"), Path.cwd()
    os.chdir(folder)
    model = save_llama(Path("theirs"))
    import_model("theirs", out="runs/llama")
    yield model
    os.chdir(before)


@pytest.fixture
def show(chromium: Browser, llama: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a view of the run, and holds at the end that nothing went wrong in it."""
    with ExitStack() as stack:
        url = stack.enter_context(running_app(create_studio(ServerConfig(device="cpu", engine="eager"))))
        pages = list[Opened]()

        def shown(**state: object) -> Opened:
            fields = "&".join(f"{name}={value}" for name, value in state.items())
            pages.append(stack.enter_context(opened(chromium, f"{url}/#run=llama&text={TEXT}&{fields}")))
            expect(pages[-1].page.locator("#summary")).to_contain_text("llama (causal)")
            return pages[-1]

        yield shown
        for page in pages:
            page.assert_quiet()


@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_shows_the_imported_model(show: Callable[..., Opened], screen: str) -> None:
    shown = show(screen=screen)
    expect(shown.page.locator(f"#screen-{screen} {SCREENS[screen]}").first).to_be_visible(timeout=3 * TIMEOUT)
    shown.assert_accessible()


def ids_and_output(llama: Any) -> tuple[torch.Tensor, Any]:
    """The text's ids, and what transformers computes of them."""
    llama.set_attn_implementation("eager")  # the only one that returns its weights
    ids = read_prompt("llama", TEXT).inputs[-1]
    with torch.no_grad():
        return ids, llama(ids, output_attentions=True)


def test_odds_are_those_of_transformers(show: Callable[..., Opened], llama: Any) -> None:
    shown = show(screen="next")
    _, output = ids_and_output(llama)
    shares = output.logits[0, -1].softmax(-1)
    rows = shown.page.locator(".odds li")
    expect(rows).to_have_count(20)
    for row, token in zip(rows.all()[:5], shares.argsort(descending=True).tolist(), strict=False):
        assert int(row.get_attribute("data-id") or "") == token
        shown_share = float((row.locator("b").text_content() or "").partition(" ")[0])
        assert shown_share == pytest.approx(100 * float(shares[token]), abs=0.01)


def test_a_weight_is_that_of_transformers(show: Callable[..., Opened], llama: Any) -> None:
    ids, output = ids_and_output(llama)
    query, key = ids.shape[-1] - 1, 0
    shown = show(screen="attention", layer=1, head=3, query=query, key=key)
    weight = shown.page.locator("#weight")
    expect(weight).to_be_visible()
    expected = float(output.attentions[1][0, 3, query, key])
    assert float(weight.text_content() or "") == pytest.approx(expected, abs=1e-6)
