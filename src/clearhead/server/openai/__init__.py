"""OpenAI's protocol, as its official client speaks it: models, completions, chats, embeddings.

As there, an unknown field is refused by its name: a misspelled option that is ignored is a wrong answer.
"""

__all__: list[str] = []
