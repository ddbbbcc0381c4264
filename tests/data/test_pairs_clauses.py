"""The corpus `pairs`: denials, questions and sentences of several clauses, translated by hand."""

import pytest
from pairs_trees import asked, at, clause, denied, linked, np, related, task, word, written

from clearhead.data.pairs.tree import Node

MAN, WOMAN, BOY, ANNA, SHE, HE, WE = (
    np(text) for text in ("the man", "the woman", "the boy", "Anna", "she", "he", "we")
)

DENIALS = [
    (
        denied(clause("read", subject=MAN, object=np("a book"))),
        "The man does not read a book.",
        "Der Mann liest kein Buch.",
    ),
    (
        denied(clause("read", subject=MAN, object=np("the book"))),
        "The man does not read the book.",
        "Der Mann liest das Buch nicht.",
    ),
    (
        denied(clause("buy", "past", subject=MAN, object=np("sour apple*"))),
        "The man did not buy sour apples.",
        "Der Mann kaufte keine sauren Äpfel.",
    ),
    (
        denied(clause("sleep", "perfect", subject=SHE, place=at("in", np("the hotel")))),
        "She has not slept in the hotel.",
        "Sie hat nicht im Hotel geschlafen.",
    ),
    (
        denied(clause("open", subject=BOY, object=np("the box"), modal="must")),
        "The boy must not open the box.",
        "Der Junge darf die Kiste nicht öffnen.",
    ),
    (
        denied(clause("open", "past", subject=BOY, object=np("the box"), modal="must")),
        "The boy did not have to open the box.",
        "Der Junge musste die Kiste nicht öffnen.",
    ),
    (
        denied(clause("swim", subject=np("the pig*"), modal="can")),
        "The pigs cannot swim.",
        "Die Schweine können nicht schwimmen.",
    ),
    (
        clause("lie", "perfect", subject=np("the dog"), often="never", place=at("on", np("the sofa"))),
        "The dog has never lain on the sofa.",
        "Der Hund hat nie auf dem Sofa gelegen.",
    ),
]
QUESTIONS = [
    (
        asked(clause("bake", subject=np("the baker"), object=np("a tart"))),
        "Does the baker bake a tart?",
        "Backt der Bäcker eine Torte?",
    ),
    (
        asked(clause("get up", "perfect", subject=np("they")), "time", "why"),
        "Why have they got up?",
        "Warum sind sie aufgestanden?",
    ),
    (
        asked(clause("understand", subject="who", object=np("the witch"), modal="can"), "subject"),
        "Who can understand the witch?",
        "Wer kann die Hexe verstehen?",
    ),
    (
        asked(clause("understand", subject=np("the witch"), object="who"), "object"),
        "Who does the witch understand?",
        "Wen versteht die Hexe?",
    ),
    (
        asked(clause("listen to", "past", subject=WOMAN, object="who", case="dative"), "object"),
        "Who did the woman listen to?",
        "Wem hörte die Frau zu?",
    ),
    (
        asked(clause("wait for", subject=WOMAN, about="who"), "about"),
        "Who does the woman wait for?",
        "Auf wen wartet die Frau?",
    ),
    (
        asked(clause("think of", subject=WOMAN, about="what"), "about"),
        "What does the woman think of?",
        "Woran denkt die Frau?",
    ),
    (
        asked(clause("buy", "past", subject=HE, object=np("which beautiful dress*")), "object"),
        "Which beautiful dresses did he buy?",
        "Welche schönen Kleider kaufte er?",
    ),
    (
        asked(clause("peel", subject=HE, object=np("how_many potato*")), "object"),
        "How many potatoes does he peel?",
        "Wie viele Kartoffeln schält er?",
    ),
    (
        asked(clause("fly", "future", subject=np("the owl")), "place", "whither"),
        "Where will the owl fly?",
        "Wohin wird die Eule fliegen?",
    ),
    (
        asked(clause("be", subject=np("our friend"), predicate="old"), "predicate"),
        "How old is our friend?",
        "Wie alt ist unser Freund?",
    ),
    (
        asked(clause("cost", "past", subject=np("the carpet")), "price"),
        "How much did the carpet cost?",
        "Wie viel kostete der Teppich?",
    ),
]
RELATIVE_CLAUSES = [
    (
        clause("sleep", subject=related("the man", "subject", clause("bake", subject="", object=np("the cake")))),
        "The man who bakes the cake sleeps.",
        "Der Mann, der den Kuchen backt, schläft.",
    ),
    (
        clause(
            "read", "perfect", subject=SHE, object=related("the letter", "object", clause("write", "past", subject=HE))
        ),
        "She has read the letter that he wrote.",
        "Sie hat den Brief gelesen, den er schrieb.",
    ),
    (
        clause(
            "be", subject=related("the woman*", "object", clause("help", subject=ANNA, case="dative")), predicate="old"
        ),
        "The women whom Anna helps are old.",
        "Die Frauen, denen Anna hilft, sind alt.",
    ),
    (
        clause("greet", subject=WE, object=related("the girl", "object", clause("dance with", subject=BOY))),
        "We greet the girl whom the boy dances with.",
        "Wir grüßen das Mädchen, mit dem der Junge tanzt.",
    ),
    (
        asked(
            clause(
                "laugh about",
                subject=related("the king", "owner", clause("be", subject=np("whose hat"), predicate="new")),
                about=ANNA,
            )
        ),
        "Does the king whose hat is new laugh about Anna?",
        "Lacht der König, dessen Hut neu ist, über Anna?",
    ),
]
LINKED_CLAUSES = [
    (
        linked(
            clause("sell", "past", subject=WOMAN, object=np("the carriage")),
            "because",
            clause("be", "past", subject="object", predicate="old"),
        ),
        "The woman sold the carriage because it was old.",
        "Die Frau verkaufte die Kutsche, weil sie alt war.",
    ),
    (
        linked(
            clause("choose", subject=np("the girl"), object=np("the ball")),
            "because",
            clause("need", subject="same", object="object"),
        ),
        "The girl chooses the ball because she needs it.",
        "Das Mädchen wählt den Ball aus, weil sie ihn braucht.",
    ),
    (
        linked(
            clause("be", subject=HE, predicate="sad"),
            "although",
            clause("try on", subject="same", object=np("the boot*"), modal="can"),
        ),
        "He is sad although he can try on the boots.",
        "Er ist traurig, obwohl er die Stiefel anprobieren kann.",
    ),
    (
        linked(
            clause("come back", "past", subject=np("my uncle")),
            "when",
            clause("cry", "past", subject="same"),
            inverted=True,
        ),
        "When my uncle came back, he cried.",
        "Als mein Onkel zurückkam, weinte er.",
    ),
    (
        linked(
            {"verb": word("rain", "verb"), "tense": "present", "subject": "it"},
            "if",
            clause("take off", subject=np("the princess"), object=np("the shoe*")),
            inverted=True,
        ),
        "If it rains, the princess takes off the shoes.",
        "Wenn es regnet, zieht die Prinzessin die Schuhe aus.",
    ),
    (
        {
            "form": "joined",
            "conjunction": word("but"),
            "first": clause("rest", subject=ANNA),
            "second": denied(clause("fall asleep", subject=np("the mouse*"))),
        },
        "Anna rests, but the mice do not fall asleep.",
        "Anna ruht sich aus, aber die Mäuse schlafen nicht ein.",
    ),
    (
        {
            **clause("switch on", "past", subject=np("the painter*"), object=np("the oven")),
            "form": "shared",
            "also": task("cook", object=np("two egg*")),
        },
        "The painters switched on the oven and cooked two eggs.",
        "Die Maler schalteten den Ofen ein und kochten zwei Eier.",
    ),
]


@pytest.mark.parametrize(
    ("tree", "english", "german"),
    [*DENIALS, *QUESTIONS, *RELATIVE_CLAUSES, *LINKED_CLAUSES],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_translation_made_by_hand(tree: Node, english: str, german: str) -> None:
    assert written(tree) == (english, german)
