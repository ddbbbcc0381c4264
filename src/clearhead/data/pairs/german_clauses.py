"""The German of a sentence.

A main clause has its finite verb second and the rest of the verb at its end; a question has the finite verb first, a
subordinate clause last. Between them, in this order: subject (if not before), pronouns, time, how often, gladly,
recipient, object, 'nicht', company, manner, benefit, conveyance, place, prepositional object, predicate. 'Sich' comes
before a subject that is a noun, after one that is a pronoun. Whatever is a clause itself comes after all.
"""

import re

from clearhead.data.pairs.entries import ACCUSATIVE, DATIVE, NOMINATIVE, PLURAL, Phrase, Verb
from clearhead.data.pairs.german_nouns import (
    RELATIVE,
    contracted,
    gender,
    has_article,
    is_indefinite,
    is_pronoun,
    noun_phrase,
    prepositional,
)
from clearhead.data.pairs.tree import NOTHING_BEFORE, Before, Node, after, agreement, pronoun_of
from clearhead.data.pairs.vocabulary import lexicon

HAVE = ("habe", "hat", "haben")
BE = ("bin", "ist", "sind")
WILL = ("werde", "wird", "werden")
THERE_IS = {"present": "gibt", "past": "gab"}
OWN = {"I": "mich", "we": "uns"}  # the reflexive pronoun; sich of all others


def german(sentence: Node) -> str:
    """The sentence in German."""
    written = _sentence(sentence) + ("?" if sentence["form"] == "question" else ".")
    written = re.sub(r",+(?=[.?,])", "", written)  # the comma that closes a relative clause gives way to the next sign
    return written[0].upper() + written[1:]


def _sentence(node: Node) -> str:
    form = node["form"]
    if form == "linked":
        first, link, second = node["opening"], node["link"].german, node["follower"]
        if "inverted" in node:
            return f"{link} {subordinate(first)}, {_finite_first(second, after(first))}"
        return f"{main_clause(first)}, {link} {subordinate(second, after(first))}"
    if form == "joined":
        comma = "," if node["conjunction"].english == "but" else ""
        return f"{main_clause(node['first'])}{comma} {node['conjunction'].german} {main_clause(node['second'])}"
    if form == "shared":
        also = {**node["also"], "tense": node["tense"], "subject": node["subject"]}
        finite, rest = _verb(also)
        return f"{main_clause(node)} und {_join(finite, _reflexive(also, NOTHING_BEFORE), *_middle(also), rest)}"
    if "asking" in node:
        return _inquiry(node)
    return _finite_first(node) if form == "question" else main_clause(node)


def main_clause(node: Node, before: Before = NOTHING_BEFORE) -> str:
    """A clause with its finite verb second, after the subject or what stands in front instead."""
    if "fronted" in node:
        first = phrase(node["time"]) if node["fronted"] == "time" else prepositional(node["place"])
        rest = {key: value for key, value in node.items() if key != node["fronted"]}
        return f"{first} {_finite_first(rest, before)}"
    finite, rest_of_verb = _verb(node, before)
    words = (_subject(node, before), finite, _reflexive(node, before), *_middle(node, before), rest_of_verb)
    return _join(*words) + _content(node, before)


def subordinate(node: Node, before: Before = NOTHING_BEFORE, *, subject: str | None = None) -> str:
    """A clause with its finite verb last; `subject` is what stands for it in a relative clause."""
    first = _subject_and_reflexive(node, before) if subject is None else f"{subject} {_reflexive(node, before)}".strip()
    return _join(first, *_middle(node, before), _verb_last(node, before)) + _content(node, before)


def relative(node: Node, head: Node) -> str:
    """The relative clause of a noun phrase: der, dem, dessen..., in the case that its own verb asks for."""
    verb: Verb = node["verb"]
    forms = RELATIVE[gender(head)]
    if node["role"] == "owner":
        return subordinate(node, subject=f"{forms[3]} {noun_phrase(node['subject'], NOMINATIVE)}")
    if node["role"] == "subject":
        return subordinate({**node, "subject": head}, subject=forms[NOMINATIVE])
    if verb.preposition:
        return f"{verb.preposition} {forms[verb.case]} {subordinate(node)}"
    return f"{forms[_case(node)]} {subordinate(node)}"


def _finite_first(node: Node, before: Before = NOTHING_BEFORE) -> str:
    if "existing" in node:
        phrase = noun_phrase(node["object"], ACCUSATIVE, none="negated" in node)
        return _join(THERE_IS[node["tense"]], "es", phrase)
    finite, rest = _verb(node, before)
    return _join(finite, _subject_and_reflexive(node, before), *_middle(node, before), rest) + _content(node, before)


def _inquiry(node: Node) -> str:
    """A question with a question word, which stands first; what it asks for is missing in its place."""
    asking, verb = node["asking"], node["verb"]
    if asking == "subject":
        return main_clause(node)
    rest = {key: value for key, value in node.items() if key != asking}
    if asking == "predicate":
        first = f"wie {node['predicate'].german}"
    elif asking == "price":
        first = "wie viel"
    elif "question" in node:
        first = node["question"].german
    elif asking == "object":
        first = noun_phrase(node["object"], _case(node))
    elif node["about"] == "what":
        first = f"wo{'r' if verb.preposition[0] in 'aäouü' else ''}{verb.preposition}"
    else:
        first = f"{verb.preposition} {noun_phrase(node['about'], verb.case)}"
    return f"{first} {_finite_first(rest)}"


def _subject(node: Node, before: Before) -> str:
    return noun_phrase(node["subject"], NOMINATIVE, before, relative=relative)


def _reflexive(node: Node, before: Before) -> str:
    if not node["verb"].reflexive:
        return ""
    return OWN.get(pronoun_of(before.resolve(node["subject"])), "sich")


def _subject_and_reflexive(node: Node, before: Before) -> str:
    subject, reflexive = _subject(node, before), _reflexive(node, before)
    if is_pronoun(node["subject"]) or reflexive != "sich":
        return _join(subject, reflexive)
    return _join(reflexive, subject)


def _case(node: Node) -> int:
    """The case of the verb's object."""
    return DATIVE if node.get("case") == "dative" else ACCUSATIVE


def _verb(node: Node, before: Before = NOTHING_BEFORE) -> tuple[str, str]:
    """The finite verb, and what stands at the end of a main clause: a prefix, a participle, an infinitive."""
    verb: Verb = node["verb"]
    number, tense = agreement(node["subject"], before), node["tense"]
    if "modal" in node:
        return _modal(node, number), verb.prefix + verb.infinitive
    if tense == "future":
        return WILL[number], verb.prefix + verb.infinitive
    if tense == "perfect":
        return (BE if verb.perfect_sein else HAVE)[number], verb.german_participle
    return (verb.german_present if tense == "present" else verb.german_past)[number], verb.prefix


def _verb_last(node: Node, before: Before) -> str:
    finite, rest = _verb(node, before)
    return rest + finite if rest == node["verb"].prefix else f"{rest} {finite}"


def _modal(node: Node, number: int) -> str:
    use = 2 if node["tense"] == "past" else 1 if "negated" in node else 0
    singular, plural = node["modal"].german[use]
    return str(plural if number == PLURAL else singular)


def _middle(node: Node, before: Before = NOTHING_BEFORE) -> list[str]:
    """What stands between subject and final verb, in order."""
    pronouns: list[str] = []
    objects: list[str] = []
    denied = "negated" in node
    if "recipient" in node:
        (pronouns if is_pronoun(node["recipient"]) else objects).append(noun_phrase(node["recipient"], DATIVE))
    if "object" in node:
        none = denied and is_indefinite(node["object"])
        written = noun_phrase(node["object"], _case(node), before, none=none)
        (pronouns if is_pronoun(node["object"]) else objects).append(written)
        denied = denied and not none
    words = [*pronouns]
    words += [phrase(node["time"])] if "time" in node else []
    words += [node["often"].german] if "often" in node else []
    words += ["gern"] if "gladly" in node else []
    words += objects
    words += ["nicht"] if denied else []
    words += [prepositional(node["company"])] if "company" in node else []
    words += [node["manner"].german] if "manner" in node else []
    words += [prepositional(node["benefit"])] if "benefit" in node else []
    words += [node["conveyance"].german] if "conveyance" in node else []
    words += [prepositional(node["place"])] if "place" in node else []
    words += [_about(node["about"], node["verb"])] if "about" in node else []
    return [*words, *_predicate(node)]


def _about(about: Node, verb: Verb) -> str:
    """A prepositional object: auf den Bus, vom Meer; an and in keep apart from das (an das Kind)."""
    written = noun_phrase(about, verb.case)
    if has_article(about) and verb.case == DATIVE:
        return contracted(verb.preposition, written)
    return f"{verb.preposition} {written}"


def _predicate(node: Node) -> list[str]:
    if "age" in node:
        return [f"{node['age'].german} Jahre alt"]
    if "price" in node:
        return [f"{node['price'].german} Euro"]
    if "sky" in node:
        return [node["sky"].german]
    if "predicate" not in node:
        return []
    adjective = node["predicate"]
    if "than" in node:
        return [f"{adjective.german_comparative} als {noun_phrase(node['than'], NOMINATIVE)}"]
    if "as" in node:
        return [f"so {adjective.german} wie {noun_phrase(node['as'], NOMINATIVE)}"]
    grade = [lexicon().phrases[node["grade"]].german] if "grade" in node else []
    return [*grade, adjective.german]


def _content(node: Node, before: Before) -> str:
    """What is a clause itself, and stands after the whole verb: a relative clause, a task, what is said."""
    for key in ("object", "about"):
        if key in node and "relative" in node[key]:
            return f", {relative(node[key]['relative'], node[key])},"
    if "task" in node:
        task = {**node["task"], "subject": node["subject"]}
        verb: Verb = task["verb"]
        infinitive = f"{verb.prefix}zu{verb.infinitive}" if verb.prefix else f"zu {verb.infinitive}"
        return f", {_join(_reflexive(task, before), *_middle(task), infinitive)}"
    for key, link in (("that", "dass"), ("whether", "ob")):
        if key in node:
            return f", {link} {subordinate(node[key])}"
    return ""


def phrase(node: Node) -> str:
    """A time, whose hole may be filled by a day, a month, a number."""
    fixed: Phrase = node["phrase"]
    return fixed.german.replace("{}", node["slot"].german) if "slot" in node else fixed.german


def _join(*words: str) -> str:
    return " ".join(filter(None, words))
