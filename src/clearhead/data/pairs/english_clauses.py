"""The English of a sentence.

Order of a clause: [when or where] subject auxiliary [not] [how often] verb, then what the verb takes, company, manner,
place and time. Questions put the auxiliary first, and 'do' stands in where there is none.
"""

from clearhead.data.pairs.english_nouns import noun_phrase, object_phrase, prepositional
from clearhead.data.pairs.entries import PLURAL, THIRD, Phrase, Verb
from clearhead.data.pairs.tree import NOTHING_BEFORE, Before, Node, after, agreement

MODALS = {"now": 0, "denied": 1, "once": 2}
DO = {"present": ("do", "does", "do"), "past": ("did", "did", "did")}
HAVE = ("have", "has", "have")
TAKES_TO = {  # verbs in the place of a modal: present and past, in the order of the agreements
    "want": (("want", "wants", "want"), "wanted"),
    "have": (HAVE, "had"),
    "like": (("like", "likes", "like"), "liked"),
}


class UnclearTenseError(Exception):
    """A verb form would leave open whether it is present or past: they read."""


def english(sentence: Node) -> str:
    """The sentence in English.

    Raises:
        UnclearTenseError: it could be read in two tenses.
    """
    written = _sentence(sentence)
    return written[0].upper() + written[1:] + ("?" if sentence["form"] == "question" else ".")


def _sentence(node: Node) -> str:
    form = node["form"]
    if form == "linked":
        first, link, second = node["opening"], node["link"].english, node["follower"]
        opening, follower = clause(first), clause(second, after(first))
        return f"{link} {opening}, {follower}" if "inverted" in node else f"{opening} {link} {follower}"
    if form == "joined":
        comma = "," if node["conjunction"].english == "but" else ""
        return f"{clause(node['first'])}{comma} {node['conjunction'].english} {clause(node['second'])}"
    if form == "shared":
        also = {**node["also"], "tense": node["tense"], "subject": node["subject"]}
        return f"{clause(node)} and {_join(_predicate(also, NOTHING_BEFORE, question=False))}"
    if "asking" in node:
        return _inquiry(node)
    return _question(node) if form == "question" else clause(node)


def clause(node: Node, before: Before = NOTHING_BEFORE) -> str:
    """A clause that states something."""
    if "existing" in node:
        verb = _join(_predicate(node, before, question=False))
        return f"{_front(node)} there {verb}"
    subject = noun_phrase(node["subject"], before, relative=relative)
    return _join((_front(node), subject, *_predicate(node, before, question=False)))


def relative(node: Node, head: Node) -> str:
    """The relative clause of a noun phrase: who, whom, whose; that of a thing."""
    person, role = head["noun"].person, node["role"]
    if role == "owner":
        return "whose " + _join((noun_phrase(node["subject"]), *_predicate(node, NOTHING_BEFORE, question=False)))
    if role == "subject":
        words = _predicate({**node, "subject": head}, NOTHING_BEFORE, question=False)
        return _join(("who" if person else "that", *words))
    words = (noun_phrase(node["subject"]), *_predicate(node, NOTHING_BEFORE, question=False))
    return _join(("whom" if person else "that", *words))


def _front(node: Node) -> str:
    if "fronted" not in node:
        return ""
    return phrase(node["time"]) if node["fronted"] == "time" else prepositional(node["place"])


def _question(node: Node) -> str:
    auxiliary, *rest = _predicate(node, NOTHING_BEFORE, question=True)
    return _join((auxiliary, noun_phrase(node["subject"], relative=relative), *rest))


def _inquiry(node: Node) -> str:
    """A question with a question word, which stands first; what it asks for is missing in its place."""
    asking = node["asking"]
    if asking == "subject":
        return clause(node)
    rest = {key: value for key, value in node.items() if key != asking}
    if asking == "predicate":
        first = f"how {node['predicate'].english}"
    elif asking == "price":
        first = "how much"
    elif "question" in node:
        first = node["question"].english
    else:
        first = noun_phrase(node[asking])
    return f"{first} {_question(rest)}"


def _predicate(node: Node, before: Before, *, question: bool) -> tuple[str, ...]:
    """The auxiliary, 'not', how often, and all else after the subject; some of them empty."""
    if "existing" in node:
        number = PLURAL if "plural" in node["object"] else THIRD
        present = node["tense"] == "present"
        verb = ("is" if present else "was") if number == THIRD else ("are" if present else "were")
        return verb, noun_phrase(node["object"], none="negated" in node)
    denied = "negated" in node
    auxiliary, main = _verb(node, agreement(node["subject"], before), helped=denied or question)
    often = node["often"].english if "often" in node else ""
    if auxiliary == "can" and denied and not question:
        return "cannot", main, *_after_verb(node, before)
    return auxiliary, "not" if denied else "", often, main, *_after_verb(node, before)


def _verb(node: Node, number: int, *, helped: bool) -> tuple[str, str]:
    """The auxiliary and the verb after it; `helped` says that there must be one, if need be a form of 'do'."""
    verb: Verb = node["verb"]
    tense, base = node["tense"], verb.english
    if "gladly" in node or "modal" in node:
        use = "once" if tense == "past" else "denied" if "negated" in node else "now"
        first, *others = ("do", "like", "to") if "gladly" in node else node["modal"].english[MODALS[use]]
        if first != "do":
            return first, " ".join((*others, base))
        stem, past = TAKES_TO[others[0]]
        if helped:
            return DO[tense][number], f"{others[0]} to {base}"
        return "", f"{stem[number] if tense == 'present' else past} to {base}"
    if tense == "future":
        return "will", base
    if tense == "perfect":
        return HAVE[number], verb.participle
    finite = (verb.present if tense == "present" else verb.past)[number]
    if base == "be":
        return finite, ""
    if helped:
        return DO[tense][number], base
    if tense == "past" and finite == verb.present[number]:
        raise UnclearTenseError
    return "", finite


def _after_verb(node: Node, before: Before) -> tuple[str, ...]:
    verb: Verb = node["verb"]
    words = [verb.particle]
    if "predicate" in node:
        words.append(_comparison(node))
    if "age" in node:
        words.append(f"{node['age'].english} years old")
    if "sky" in node:
        words.append(node["sky"].english)
    if "object" in node:
        words.append(object_phrase(node["object"], before, relative=relative))
    if "recipient" in node:
        words.append("to " + object_phrase(node["recipient"], before))
    if "about" in node:
        words.append(object_phrase(node["about"], before, relative=relative))
    words += [prepositional(node[key]) for key in ("benefit", "company") if key in node]
    words += [node["manner"].english] if "manner" in node else []
    words += [prepositional(node["place"])] if "place" in node and node.get("fronted") != "place" else []
    words += [node["conveyance"].english] if "conveyance" in node else []
    words += [f"{node['price'].english} euros"] if "price" in node else []
    words += [phrase(node["time"])] if "time" in node and "fronted" not in node else []
    return (*words, *_content(node))


def _content(node: Node) -> tuple[str, ...]:
    """A clause in the place of an object."""
    if "task" in node:
        return "to", node["task"]["verb"].english, *_after_verb(node["task"], NOTHING_BEFORE)
    return tuple(f"{link} {clause(node[link])}" for link in ("that", "whether") if link in node)


def _comparison(node: Node) -> str:
    adjective = node["predicate"]
    if "than" in node:
        return f"{adjective.comparative} than {noun_phrase(node['than'])}"
    if "as" in node:
        return f"as {adjective.english} as {noun_phrase(node['as'])}"
    return _join((node.get("grade", ""), adjective.english))


def phrase(node: Node) -> str:
    """A time, whose hole may be filled by a day, a month, a number."""
    fixed: Phrase = node["phrase"]
    return fixed.english.replace("{}", node["slot"].english) if "slot" in node else fixed.english


def _join(words: tuple[str, ...]) -> str:
    return " ".join(filter(None, words))
