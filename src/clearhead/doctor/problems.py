"""What a stranger's code raised, as a part of a sentence."""


def message_of(error: BaseException, length: int = 160) -> str:
    """What it says, in one line of at most so many characters."""
    return " ".join(str(error).split())[:length]


def sentence_of(error: BaseException, length: int = 160) -> str:
    """The same behind its class."""
    return f"{type(error).__name__}: {message_of(error, length)}"
