"""The corpus `pairs`: simple sentences translated by hand: cases, endings, word order, places, numbers, verbs."""

import pytest
from pairs_trees import at, clause, fronted, np, task, when, word, written

from clearhead.data.pairs.tree import Node

MAN, WOMAN, BOY, ANNA, SHE, WE = (np(text) for text in ("the man", "the woman", "the boy", "Anna", "she", "we"))

CASES_AND_ENDINGS = [
    (
        clause("see", subject=np("the old man"), object=np("the young woman")),
        "The old man sees the young woman.",
        "Der alte Mann sieht die junge Frau.",
    ),
    (
        clause("buy", "past", subject=np("a rich farmer"), object=np("a small red car")),
        "A rich farmer bought a small red car.",
        "Ein reicher Bauer kaufte ein kleines rotes Auto.",
    ),
    (
        clause("visit", subject=np("the girl"), object=np("every lazy prince")),
        "The girl visits every lazy prince.",
        "Das Mädchen besucht jeden faulen Prinzen.",
    ),
    (
        clause("thank", "past", subject=WOMAN, object=np("the brave boy*"), case="dative"),
        "The woman thanked the brave boys.",
        "Die Frau dankte den mutigen Jungen.",
    ),
    (
        clause("give", subject=np("my mother"), object=np("a beautiful cup"), recipient=np("the hungry child")),
        "My mother gives a beautiful cup to the hungry child.",
        "Meine Mutter gibt dem hungrigen Kind eine schöne Tasse.",
    ),
    (clause("drink", subject=SHE, object=np("cold milk")), "She drinks cold milk.", "Sie trinkt kalte Milch."),
    (clause("drink", subject=SHE, object=np("sour wine")), "She drinks sour wine.", "Sie trinkt sauren Wein."),
    (
        clause("cut", subject=np("I"), object=np("many fresh onion*"), modal="must"),
        "I must cut many fresh onions.",
        "Ich muss viele frische Zwiebeln schneiden.",
    ),
    (
        clause("feed", "past", subject=np("the king"), object=np("wild horse", owner=ANNA)),
        "The king fed Anna's wild horse.",
        "Der König fütterte Annas wildes Pferd.",
    ),
    (
        clause("argue with", subject=WE, about=np("old uncle", owner=np("Paul"))),
        "We argue with Paul's old uncle.",
        "Wir streiten mit Pauls altem Onkel.",
    ),
    (
        clause("find", "past", subject=np("the neighbour"), object=np("fat cat", owner=np("the old fisherman"))),
        "The neighbour found the old fisherman's fat cat.",
        "Der Nachbar fand die dicke Katze des alten Fischers.",
    ),
    (
        clause("paint", "future", subject=WE, object=np("the door", of=np("the old house"))),
        "We will paint the door of the old house.",
        "Wir werden die Tür des alten Hauses streichen.",
    ),
    (
        clause("wear", subject=np("our aunt"), object=np("this expensive black hat")),
        "Our aunt wears this expensive black hat.",
        "Unsere Tante trägt diesen teuren schwarzen Hut.",
    ),
]

WORD_ORDER = [
    (
        fronted(clause("call", "past", subject=MAN, object=SHE, time=when("yesterday"))),
        "Yesterday the man called her.",
        "Gestern rief der Mann sie an.",
    ),
    (
        clause("invite", "perfect", subject=ANNA, object=np("the funny teacher"), time=when("today")),
        "Anna has invited the funny teacher today.",
        "Anna hat heute den lustigen Lehrer eingeladen.",
    ),
    (
        clause("work", subject=WOMAN, manner="quietly", place=at("in", np("the garden")), time=when("every day")),
        "The woman works quietly in the garden every day.",
        "Die Frau arbeitet jeden Tag leise im Garten.",
    ),
    (
        fronted(clause("sing", subject=np("the bird*"), place=at("on", np("the roof"))), "place"),
        "On the roof the birds sing.",
        "Auf dem Dach singen die Vögel.",
    ),
    (
        clause("travel", "perfect", subject=np("Paul"), place=at("to/city", "Vienna"), conveyance=word("by train")),
        "Paul has travelled to Vienna by train.",
        "Paul ist mit dem Zug nach Wien gereist.",
    ),
    (
        clause("send", "past", subject=MAN, object=np("the letter"), recipient=SHE, time=when("last {}", "Monday")),
        "The man sent the letter to her last Monday.",
        "Der Mann schickte ihr letzten Montag den Brief.",
    ),
    (
        fronted(clause("remember", "past", subject=np("the child*"), about=np("the lake"), time=when("yesterday"))),
        "Yesterday the children remembered the lake.",
        "Gestern erinnerten sich die Kinder an den See.",
    ),
    (
        clause("look forward to", subject=WE, about=np("a long letter")),
        "We look forward to a long letter.",
        "Wir freuen uns auf einen langen Brief.",
    ),
]

PLACES_AND_NUMBERS = [
    (
        clause("put", subject=SHE, object=np("the key*"), place=at("under", np("the bed"), moved="yes")),
        "She puts the keys under the bed.",
        "Sie legt die Schlüssel unter das Bett.",
    ),
    (
        clause("lie", "past", subject=np("the key*"), place=at("under", np("the bed"))),
        "The keys lay under the bed.",
        "Die Schlüssel lagen unter dem Bett.",
    ),
    (
        clause(
            "stand", subject=np("the lamp"), place=at("between", {"first": np("the table"), "second": np("the sofa")})
        ),
        "The lamp stands between the table and the sofa.",
        "Die Lampe steht zwischen dem Tisch und dem Sofa.",
    ),
    (
        clause("go", "past", subject=np("the soldier"), place=at("to", np("the old bridge"))),
        "The soldier went to the old bridge.",
        "Der Soldat ging zur alten Brücke.",
    ),
    (
        clause("run", "perfect", subject=np("the thief"), place=at("into", np("the museum"))),
        "The thief has run into the museum.",
        "Der Dieb ist ins Museum gelaufen.",
    ),
    (
        clause("dream of", subject=BOY, about=np("the harbour")),
        "The boy dreams of the harbour.",
        "Der Junge träumt vom Hafen.",
    ),
    (
        clause("meet", "past", subject=WE, object=np("the three queen*"), time=when("{} days ago", "twelve")),
        "We met the three queens twelve days ago.",
        "Wir trafen vor zwölf Tagen die drei Königinnen.",
    ),
    (
        clause("steal", "past", subject=np("the monkey"), object=np("twenty-one banana*")),
        "The monkey stole twenty-one bananas.",
        "Der Affe stahl einundzwanzig Bananen.",
    ),
    (
        clause("be", subject=np("his grandmother"), age="ninety-six"),
        "His grandmother is ninety-six years old.",
        "Seine Großmutter ist sechsundneunzig Jahre alt.",
    ),
    (
        clause("be", subject=np("the dog"), predicate="old", than=np("the cat")),
        "The dog is older than the cat.",
        "Der Hund ist älter als die Katze.",
    ),
    (
        {**clause("be", subject=np("the cup"), predicate="expensive"), "as": np("the lamp")},
        "The cup is as expensive as the lamp.",
        "Die Tasse ist so teuer wie die Lampe.",
    ),
    (
        fronted(
            {"existing": "yes", "tense": "past", "object": np("some old church*"), "place": at("in", "Cologne")},
            "place",
        ),
        "In Cologne there were some old churches.",
        "In Köln gab es einige alte Kirchen.",
    ),
]
VERBS = [
    (
        clause("read", subject=np("the student*"), object=np("the book"), modal="want"),
        "The students want to read the book.",
        "Die Studenten wollen das Buch lesen.",
    ),
    (
        clause("close", "past", subject=np("the nurse"), object=np("the window"), modal="must"),
        "The nurse had to close the window.",
        "Die Krankenschwester musste das Fenster zumachen.",
    ),
    (
        clause("eat", subject=BOY, object=np("sweet cake*"), gladly="yes"),
        "The boy likes to eat sweet cakes.",
        "Der Junge isst gern süße Kuchen.",
    ),
    (
        clause("try", subject=np("the giant"), task=task("switch off", object=np("the radio"))),
        "The giant tries to switch off the radio.",
        "Der Riese versucht, das Radio auszuschalten.",
    ),
    (
        clause("promise", "perfect", subject=WE, task=task("remember", about=np("the queen"))),
        "We have promised to remember the queen.",
        "Wir haben versprochen, uns an die Königin zu erinnern.",
    ),
    (
        clause("know", subject=np("the judge"), that=clause("lose", "past", subject=np("she"), object=np("a ring"))),
        "The judge knows that she lost a ring.",
        "Der Richter weiß, dass sie einen Ring verlor.",
    ),
    (
        clause("ask", "past", subject=SHE, whether=clause("arrive", "past", subject=np("the captain"))),
        "She asked whether the captain arrived.",
        "Sie fragte, ob der Kapitän ankam.",
    ),
]


@pytest.mark.parametrize(
    ("tree", "english", "german"),
    [*CASES_AND_ENDINGS, *WORD_ORDER, *PLACES_AND_NUMBERS, *VERBS],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_translation_made_by_hand(tree: Node, english: str, german: str) -> None:
    assert written(tree) == (english, german)
