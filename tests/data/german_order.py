"""Whether the verbs of German sentences stand where they must, told from their text alone."""

import re

AUXILIARIES = re.compile(
    "bin|ist|sind|waren?|habe|hat|haben|werden?|wird|kann|können|konnten?|muss|müssen|mussten?|darf|dürfen|sollten?"
    "|will|wollen|wollten?|möchten?"
)
SEPARABLE = {  # finite forms that no verb without a prefix has, and the prefixes that must follow
    "ruft rief rufen riefen": "an",
    "lädt lud laden luden": "ein",
    "holt holte holen holten": "ab",
    "schaltet schaltete schalten schalteten": "(ein|aus)",
    "macht machte machen machten": "zu",
    "schließt schloss schließen schlossen": "ab",
    "wählt wählte wählen wählten": "aus",
    "lehnt lehnte lehnen lehnten": "ab",
    "zieht zog ziehen zogen": "aus",
    "wacht wachte wachen wachten": "auf",
    "ruht ruhte ruhen ruhten": "aus",
}
LINKS = "weil|obwohl|dass|ob|wenn|als|bevor|während"
TIMES = (
    r"(Gestern|Heute|Morgen)( Abend)?|(Mon|Diens|Donners|Frei|Sams|Sonn)tags|Mittwochs|(Im|Am|Jede[nsr]?|Letzte[ns]?"
    r"|Nächste[ns]?|Diese[ns]?) (Jahr|Woche|Tag|Abend|Morgen|Monat|\w+(tag|woch)|Frühling|Sommer|Herbst|Winter"
    r"|\w+uar|März|April|Mai|Juni|Juli|August|\w+ber)|Um \w+ Uhr|(Vor|In) \w+ (Tagen|Wochen|Monaten|Jahren)"
)
PARTICIPLE = re.compile(r"\w*ge\w+(t|en)|(be|ver|er|emp|ent|über|um)\w+(t|en)|\w+iert")


def misplaced(sentence: str, finite: set[str], prefixes: set[str]) -> str:
    """What is wrong with the order of a German sentence's verbs; empty if nothing is.

    `finite` are the finite forms of the verbs, without their prefixes.
    """
    return (
        _not_last(sentence, finite | {prefix + form for prefix in prefixes for form in finite})
        or _not_second(sentence, finite)
        or _without_prefix(sentence)
        or _open_bracket(sentence)
    )


def _is_finite(word: str, finite: set[str]) -> bool:
    return word in finite or AUXILIARIES.fullmatch(word) is not None


def _not_last(sentence: str, finite: set[str]) -> str:
    """Subordinate clauses end in their finite verb."""
    for clause in re.findall(rf"(?:, (?:{LINKS})|^(?:Wenn|Als|Obwohl)) ([^,.?]*)", sentence):
        if not _is_finite(clause.split()[-1], finite):
            return f"the verb is not last in '{clause}'"
    return ""


def _not_second(sentence: str, finite: set[str]) -> str:
    """The finite verb follows the first phrase, which may be a whole clause; known phrases are pronouns and times."""
    if sentence.endswith("?"):
        return ""
    if re.match("Wenn|Als|Obwohl", sentence):
        rest = sentence.split(", ", 1)[1]
    elif opening := re.match(rf"(Er|Sie|Wir|Ich|{TIMES}) ", sentence):
        rest = sentence[opening.end() :]
    else:
        return ""
    return "" if _is_finite(re.findall(r"\w+", rest)[0], finite) else f"the verb is not first in '{rest}'"


def _without_prefix(sentence: str) -> str:
    """A finite verb that has parted from its prefix has it at the clause's end."""
    if re.search(rf" ({LINKS}|werden|kann|können) ", sentence):  # here the verb is whole, or only looks finite
        return ""
    for forms, prefix in SEPARABLE.items():
        if re.search(rf" ({forms.replace(' ', '|')}) (?!(.* )?{prefix}([.,?]| und ))", sentence):
            return f"the prefix {prefix} is missing"
    return ""


def _open_bracket(sentence: str) -> str:
    """The participle of a perfect ends the clause."""
    perfect = re.fullmatch(r"[^,?]* (?:hat|haben|habe) ([^,?]*)\.", sentence)
    if perfect is None or " und " in perfect[1] or PARTICIPLE.fullmatch(perfect[1].split()[-1]):
        return ""
    return "the participle is not last"
