"""Whether the parts of German sentences agree, told from their text alone, with tables of the tests' own.

The corpus makes each form from a stem and an ending; here a school grammar's paradigms are written out and looked up
the other way: which gender, number and case can this determiner, this ending, this noun have? They must share one.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

Reading = tuple[str, str]  # gender (m f n, or p for plural), case (1 nominative, 2 genitive, 3 dative, 4 accusative)

# Nouns, as a dictionary gives them: gender, nominative, genitive, plural
NOUNS = """
m Mann Mannes Männer; m Junge Jungen Jungen; m Lehrer Lehrers Lehrer; m Bauer Bauern Bauern; m König Königs Könige
m Prinz Prinzen Prinzen; m Soldat Soldaten Soldaten; m Arzt Arztes Ärzte; m Dieb Diebes Diebe; m Riese Riesen Riesen
f Frau Frau Frauen; n Mädchen Mädchens Mädchen; f Königin Königin Königinnen; f Hexe Hexe Hexen; n Kind Kindes Kinder
m Vater Vaters Väter; f Mutter Mutter Mütter; m Sohn Sohnes Söhne; f Tochter Tochter Töchter; m Onkel Onkels Onkel
m Hund Hundes Hunde; f Katze Katze Katzen; n Pferd Pferdes Pferde; m Vogel Vogels Vögel; f Kuh Kuh Kühe
m Bär Bären Bären; m Löwe Löwen Löwen; m Affe Affen Affen; m Fuchs Fuchses Füchse; f Maus Maus Mäuse
m Apfel Apfels Äpfel; n Ei Eies Eier; f Nuss Nuss Nüsse; m Kuchen Kuchens Kuchen; n Brötchen Brötchens Brötchen
n Buch Buches Bücher; m Brief Briefes Briefe; f Zeitung Zeitung Zeitungen; m Hut Hutes Hüte; n Hemd Hemdes Hemden
n Messer Messers Messer; m Löffel Löffels Löffel; f Gabel Gabel Gabeln; n Bild Bildes Bilder; m Ball Balles Bälle
n Auto Autos Autos; n Fahrrad Fahrrads Fahrräder; f Tür Tür Türen; n Fenster Fensters Fenster; m Tisch Tisches Tische
m Stuhl Stuhls Stühle; n Bett Bettes Betten; n Sofa Sofas Sofas; m Garten Gartens Gärten; f Küche Küche Küchen
f Stadt Stadt Städte; n Haus Hauses Häuser; n Museum Museums Museen; f Brücke Brücke Brücken; m Berg Berges Berge
m See Sees Seen; m Fluss Flusses Flüsse; m Bahnhof Bahnhofs Bahnhöfe; m Turm Turmes Türme; m Wald Waldes Wälder
"""

# Determiner, ending of the adjective after it: in each gender, for the cases 1 4 3 2
PARADIGMS = {
    "d": "m der/e den/en dem/en des/en; f die/e die/e der/en der/en; n das/e das/e dem/en des/en; "
    "p die/en die/en den/en der/en",
    "dies jed welch": "m er/e en/en em/en es/en; f e/e e/e er/en er/en; n es/e es/e em/en es/en; "
    "p e/en e/en en/en er/en",
    "all": "p e/en e/en en/en er/en",
    "ein kein mein sein ihr unser": "m -/er en/en em/en es/en; f e/e e/e er/en er/en; n -/es -/es em/en es/en; "
    "p e/en e/en en/en er/en",
    "viel einig": "p e/e e/e en/en er/er",
    "": "m -/er -/en -/em -/en; f -/e -/e -/er -/er; n -/es -/es -/em -/en; p -/e -/e -/en -/er",
}
ENDINGS = ("e", "em", "en", "er", "es")
CONTRACTIONS = {"im": "dem", "am": "dem", "zum": "dem", "vom": "dem", "zur": "der", "ins": "das", "ans": "das"}
GOVERN = {  # prepositions, and contractions, with the cases they can take
    "3": "mit aus zu von nach zum zur vom im am",
    "4": "für ohne durch um ins ans",
    "34": "in an auf unter über hinter vor neben zwischen",
}
NUMBER = re.compile(r"zwei|drei|vier|fünf|sechs|sieben|acht|neun|elf|zwölf|\w*(zehn|zig|ßig)")


def _noun_readings() -> dict[str, set[Reading]]:
    """Every form of every noun -> what it can be."""
    readings: dict[str, set[Reading]] = {}
    for entry in re.split(r"[;\n]", NOUNS.strip()):
        gender, singular, genitive, plural = entry.split()
        weak = gender == "m" and genitive[-1] == "n"
        dative_plural = plural if plural[-1] in "ns" else plural + "n"
        forms = {"1": singular, "2": genitive, "3": genitive if weak else singular, "4": genitive if weak else singular}
        for case, form in forms.items():
            readings.setdefault(form, set()).add((gender, case))
        for case in "1234":
            readings.setdefault(dative_plural if case == "3" else plural, set()).add(("p", case))
    return readings


def _determiner_readings() -> dict[str, set[tuple[Reading, str]]]:
    """Every determiner, or none -> what it can be, with the ending of the adjective after it."""
    readings: dict[str, set[tuple[Reading, str]]] = {}
    for stems, paradigm in PARADIGMS.items():
        for row, stem in itertools.product(paradigm.split("; "), stems.split() or [""]):
            gender, *cells = row.split()
            for case, cell in zip("1432", cells, strict=True):
                ending, adjective = cell.split("/")
                form = ending if stem == "d" else stem + ending.strip("-")
                readings.setdefault(form, set()).add(((gender, case), adjective))
    return readings


NOUN_READINGS, DETERMINER_READINGS = _noun_readings(), _determiner_readings()
PREPOSITIONS = {word: cases for cases, words in GOVERN.items() for word in words.split()}


@dataclass(frozen=True)
class Found:
    """A noun with what stands before it; `endings` are those of its adjectives.

    `first` says that it opens a statement, `bare` that the determiner may be a pronoun of its own (sie gibt ihr Äpfel).
    """

    preposition: str
    determiner: str
    endings: tuple[str, ...]
    noun: str
    first: bool
    bare: bool

    @property
    def cases(self) -> str:
        """The cases that its place allows."""
        if self.preposition:
            return PREPOSITIONS[self.preposition]
        return "1" if self.first else "1234"

    def agrees(self) -> bool:
        """Whether some gender, number and case fits everything."""
        readings = DETERMINER_READINGS[self.determiner] | (DETERMINER_READINGS[""] if self.bare else set())
        return any(
            reading in NOUN_READINGS[self.noun] and reading[1] in self.cases and set(self.endings) <= {ending}
            for reading, ending in readings
        )


def nouns_in(sentence: str, adjectives: set[str]) -> Iterator[Found]:
    """The nouns of the table in a German sentence; `adjectives` are the stems that may be declined before them."""
    declined = {stem + ending: ending for stem in adjectives for ending in ENDINGS}
    words = ["", "", *re.findall(r"[\wäöüß]+|[.,?]", sentence[0].lower() + sentence[1:])]
    for index, noun in enumerate(words):
        if noun not in NOUN_READINGS:
            continue
        start = index
        while words[start - 1] in declined:
            start -= 1
        endings = tuple(declined[word] for word in words[start:index])
        start -= words[start - 1] == "sehr"
        start -= NUMBER.fullmatch(words[start - 1]) is not None
        determiner = words[start - 1]
        preposition = determiner
        if determiner in CONTRACTIONS:
            determiner = CONTRACTIONS[determiner]
        elif determiner in DETERMINER_READINGS and determiner:
            start -= 1
            preposition = words[start - 1]
        else:
            determiner = ""
        bare = determiner == "ihr" or preposition == ","  # a relative pronoun follows a comma
        first = start == 2 and not sentence.endswith("?")
        yield Found(preposition if preposition in PREPOSITIONS else "", determiner, endings, noun, first, bare)
