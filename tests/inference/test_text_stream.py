"""Text that is shown token by token is the text, cut nowhere it must not be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.inference.text_stream import CONTEXT, RENEW, PieceCache, TextStream


def decode_bytes(ids: list[int]) -> str:
    """A byte-level tokenizer at its worst: one byte per token."""
    return bytes(ids).decode("utf-8", errors="replace")


def pieces(text: str, stop: tuple[str, ...] = (), prompt: str = "") -> list[str]:
    stream = TextStream(decode_bytes, list(prompt.encode()), stop)  # type: ignore[arg-type]
    shown = []
    for byte in text.encode():
        shown.append(stream.add(byte))
        if stream.stopped:
            break
    return [*shown, stream.close()]


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=80)
few_letters = st.text("aβ🙂", max_size=60)


@given(any_text, any_text)
def test_pieces_add_up_to_the_text_and_hold_whole_characters(text: str, prompt: str) -> None:
    parts = pieces(text, prompt=prompt)
    assert "".join(parts) == text
    assert not any("\ufffd" in piece for piece in parts)
    assert max(map(len, parts)) <= 1


@given(few_letters, st.lists(st.text("aβ🙂", min_size=1, max_size=5), min_size=1, max_size=3))
def test_a_text_ends_before_the_first_stop_string_to_be_completed(text: str, stop: list[str]) -> None:
    parts = pieces(text, tuple(stop))
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert "".join(parts) == (text[: min(ends)[1]] if ends else text)
    shown = ""
    for piece in parts:  # at no moment was any of it shown that the end had to take back
        shown += piece
        assert "".join(parts).startswith(shown)
        assert not any(s in shown for s in stop)


@given(few_letters, st.lists(st.text("aβ🙂", min_size=1, max_size=4), min_size=1, max_size=3), st.integers(1, 60))
def test_where_a_text_ends_does_not_depend_on_its_tokens(text: str, stop: list[str], width: int) -> None:
    parts = [text[start : start + width] for start in range(0, len(text), width)]
    stream = TextStream(lambda ids: "".join(parts[index] for index in ids), [], stop)
    shown = ""
    for index in range(len(parts)):
        shown += "" if stream.stopped else stream.add(index)
    assert shown + stream.close() == "".join(pieces(text, tuple(stop)))


odd_bytes = st.lists(st.sampled_from([*"aβ漢🙂".encode(), 0xFF, 0x80]), max_size=40)


@given(st.lists(odd_bytes, max_size=4), st.binary(max_size=9))
def test_what_other_streams_have_learned_changes_nothing(texts: list[list[int]], prompt: bytes) -> None:
    shared = PieceCache()
    for ids in texts * 2:
        own, other = (TextStream(decode_bytes, [*prompt], (), cache) for cache in (None, shared))  # type: ignore[arg-type]
        assert [own.add(token) for token in ids] == [other.add(token) for token in ids]
        assert own.close() == other.close()


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    assert pieces("abab!", stop=("ab!",)) == ["", "", "ab", "", "", ""]
    assert pieces("abc", stop=("b!",)) == ["a", "", "bc", ""]


def test_what_was_held_back_is_shown_at_the_end() -> None:
    assert pieces("one\n", stop=("\n\n",)) == ["o", "n", "e", "", "\n"]


def test_a_character_that_is_never_completed_is_left_out() -> None:
    stream = TextStream(decode_bytes, [])  # type: ignore[arg-type]
    shown = [stream.add(byte) for byte in "a🙂".encode()[:-1]]
    assert "".join([*shown, stream.close()]) == "a"


@pytest.mark.parametrize("byte", [0xFF, 0x80, 0xF0])
def test_bytes_that_are_no_text_do_not_hold_up_the_rest(byte: int) -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes(ids)

    stream = TextStream(decode, [])  # type: ignore[arg-type]
    shown = "".join(stream.add(token) for token in [byte] * 100 + list(b"ok"))
    assert shown == "\ufffd" * 100 + "ok"
    assert longest <= RENEW + 1


@given(st.lists(st.sampled_from(["wor", "ld", "he", "re", "ab"]), min_size=1, max_size=60), st.integers(0, 9))
def test_spacing_that_depends_on_the_token_before_is_kept(tokens: list[str], start: int) -> None:
    """A decoder that joins words by spaces, but puts none before the first."""
    vocabulary = ["wor", "ld", "he", "re", "ab"]
    prompt = [0] * (start + 1)
    stream = TextStream(lambda ids: " ".join(vocabulary[token] for token in ids), prompt)
    text = "".join(stream.add(vocabulary.index(word)) for word in tokens)
    assert text == "".join(f" {word}" for word in tokens)
    assert CONTEXT < RENEW


def decode_fallback(ids: list[int]) -> str:
    """A decoder for which a run of bytes is text as a whole or not at all, as `tokenizers.decoders.ByteFallback`."""
    try:
        return bytes(ids).decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(ids)


@given(st.text("aβ漢🙂", max_size=40), st.text("aβ漢🙂", max_size=5))
def test_runs_of_bytes_that_are_text_only_as_a_whole_come_out_whole(text: str, prompt: str) -> None:
    stream = TextStream(decode_fallback, list(prompt.encode()))  # type: ignore[arg-type]
    shown = [stream.add(byte) for byte in text.encode()]
    if len(prompt.encode()) > CONTEXT:
        return  # its last bytes may be no text
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)
