"""The words of `mini`: lexicon.tsv with inflected forms, and lists of words to draw from.

Regular forms follow the rules below; irregular ones are in the table. The classes in its last
column determine which words go together: what can be red, eaten or waited for.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

# ---- Regular forms ------------------------------------------------------------------------------


def portuguese_plural(word: str) -> str:
    """Form the plural of a noun or an adjective: flor → flores, lição → lições."""
    for ending, plural in (("ão", "ões"), ("m", "ns"), ("al", "ais"), ("el", "éis")):
        if word.endswith(ending):
            return word.removesuffix(ending) + plural
    return word + ("es" if word[-1] in "rz" else "s")


def adjective_forms(words: str) -> list[str]:
    """Return masculine, feminine, and their plurals."""
    masculine, *irregular = words.split("/")
    if irregular:
        return [masculine, *irregular]
    feminine = masculine[:-1] + "a" if masculine.endswith("o") else masculine
    return [masculine, feminine, portuguese_plural(masculine), portuguese_plural(feminine)]


def portuguese_verb(words: str) -> list[str]:
    """Return infinitive, present and past (each for eu, ele, eles), and participle."""
    infinitive, *irregular = words.split("/")
    if irregular:
        return [infinitive, *irregular]
    stem, theme, last = infinitive[:-2], infinitive[-2], infinitive[-3]
    # The spelling of the last consonant changes so that its sound does not: dançar, dancei.
    if theme == "a":
        soft = stem[:-1] + {"c": "qu", "ç": "c", "g": "gu"}.get(last, last)
        forms = f"{stem}o {stem}a {stem}am {soft}ei {stem}ou {stem}aram {stem}ado"
    else:
        hard = stem[:-1] + {"c": "ç", "g": "j"}.get(last, last)
        forms = f"{hard}o {stem}e {stem}em {stem}i {stem}{theme}u {stem}{theme}ram {stem}ido"
    return [infinitive, *forms.split()]


def english_s(word: str) -> str:
    """Form the plural of a noun, or the third person of a verb."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh|o)$", word) else "s")


def english_verb(words: str) -> list[str]:
    """Return base, third person, past, participle, and -ing form."""
    head, _, particle = words.partition(" ")
    base, *irregular = head.split("/")
    # A short closed syllable doubles its consonant: hug, hugged.
    stem = base + base[-1] if re.search("^[^aeiou]*[aeiou][^aeiouwxy]$", base) else base
    past = re.sub("(?<=[^aeiou])y$", "i", stem).removesuffix("e") + "ed"
    ing = re.sub("(?<=[^e])e$", "", stem) + "ing"
    forms = [base, english_s(base), *(irregular or [past, past]), ing]
    return [f"{form} {particle}".rstrip() for form in forms]


# ---- Words --------------------------------------------------------------------------------------


class Adjective(NamedTuple):
    """An adjective, as an attribute or a predicate."""

    lemma: str
    pt: list[str]  # masculine, feminine, their plurals
    en: str
    grammar: set[str]  # its position at the noun (pre, post, colour), its copula
    classes: set[str]  # the nouns it suits


class Noun(NamedTuple):
    """A noun, with the adjectives that suit it, by their position in Portuguese."""

    lemma: str
    pt: list[str]  # singular, plural
    en: list[str]
    gender: int  # 0 masculine, 1 feminine
    classes: set[str]
    preposition: str  # of a location: in, on, at
    before: list[Adjective]
    after: list[Adjective]
    colours: list[Adjective]
    states: list[tuple[str, Adjective]]  # (copula, predicate)
    cues: list[tuple[str, str]]  # the purposes that select this sense

    @property
    def ownable(self) -> bool:
        """Whether it can have an owner. Not a place; "a minha mulher" would mean "my wife"."""
        return not self.classes & {"place", "unowned"}


class Verb(NamedTuple):
    """A verb, with the nouns that can be its object."""

    lemma: str
    infinitive: str
    finite: dict[str, list[str]]  # tense → forms for eu, ele, eles
    gerund: str
    participle: list[str]  # as an adjective's four forms
    en: list[str]  # base, third person, past, participle, -ing
    preposition: str  # before its object in Portuguese
    grammar: set[str]
    objects: list[Noun]
    moving: bool  # its object is a destination or an origin


class Determiner(NamedTuple):
    """An article, a demonstrative or a possessive."""

    pt: list[str]  # as an adjective's four forms
    en: list[str]  # singular, plural


def make_adjective(words: str, grammar: str, english: str, classes: str) -> Adjective:
    """Make an Adjective from its line of the table."""
    forms = adjective_forms(words)
    return Adjective(forms[0], forms, english, set(grammar.split()), set(classes.split()))


def make_noun(words: str, gender: str, english: str, classes: str, cues: str = "") -> Noun:
    """Make a Noun from its line of the table."""
    singular, *plural = words.split("/")
    base, *irregular = english.split("/")
    kinds = {singular, *classes.split()}
    suits = [a for a in ADJECTIVES if a.classes & kinds]
    return Noun(
        singular,
        [singular, *(plural or [portuguese_plural(singular)])],
        [base, *(irregular or [english_s(base)])],
        int(gender == "f"),
        kinds,
        "".join(kinds & {"in", "on", "at"}),
        [a for a in suits if "pre" in a.grammar],
        [a for a in suits if "post" in a.grammar],
        [a for a in suits if "colour" in a.grammar],
        [(copula, a) for a in suits for copula in ("ser", "estar", "look") if copula in a.grammar],
        [tuple(cue.split(" = ")) for cue in cues.split("; ") if cue],
    )


def make_verb(words: str, grammar: str, english: str, classes: str = "") -> Verb:
    """Make a Verb from its line of the table."""
    name, _, forms = words.rpartition(":")
    infinitive, *finite, participle = portuguese_verb(forms)
    tags, kinds = set(grammar.split()), set(classes.split())
    objects = [noun for noun in NOUNS if noun.classes & kinds]
    return Verb(
        name or infinitive,
        infinitive,
        {"present": finite[:3], "past": finite[3:]},
        infinitive[:-1] + "ndo",
        adjective_forms(participle),
        english_verb(english),
        "".join(tags & {"de", "com", "em", "para", "por", "a"}),
        tags,
        objects,
        bool(objects) and all("place" in noun.classes for noun in objects),
    )


def read_table() -> dict[str, list[list[str]]]:
    """Read the lines of lexicon.tsv: category → the other columns of each line."""
    table = defaultdict(list)
    for line in Path(__file__).with_name("lexicon.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            category, *columns = line.split("\t")
            table[category].append(columns)
    return table


TABLE = read_table()
ADJECTIVES = [make_adjective(*columns) for columns in TABLE["adjective"]]
NOUNS = [make_noun(*columns) for columns in TABLE["noun"]]
SENSES = [make_noun(words, gender, en, "", cues) for words, gender, en, cues in TABLE["sense"]]
VERBS = [make_verb(*columns) for columns in TABLE["verb"]]
CUSTAR = make_verb("custar", "", "cost/cost/cost")
DETERMINERS = [Determiner(pt.split("/"), en.split("/")) for pt, _, en in TABLE["determiner"]]
NUMBERS = {int(n): (pt.split("/"), en) for pt, n, en in TABLE["number"]}
MONTHS = [(pt, en) for pt, _, en in TABLE["month"]]
BY_LEMMA = {verb.lemma: verb for verb in VERBS}
COPULAS = {verb.lemma: verb for verb in (make_verb(*columns) for columns in TABLE["copula"])}
ADVERBS = defaultdict(list)
for pt, tense, en in TABLE["adverb"]:
    ADVERBS[tense].append((pt, en))

# ---- Lists to draw from -------------------------------------------------------------------------

DEFINITE, INDEFINITE, POSSESSIVE = DETERMINERS[0], DETERMINERS[1], DETERMINERS[4:]
# Articles are the most common determiners, as in real text.
FREQUENT = [DEFINITE] * 6 + [INDEFINITE] * 3 + DETERMINERS[2:]
SPECIFIC = [DEFINITE] * 5 + DETERMINERS[2:]


def nouns(*classes: str) -> list[Noun]:
    """Return the nouns in at least one of these classes."""
    return [noun for noun in NOUNS if noun.classes & set(classes)]


PEOPLE, ADULTS, ANIMALS, JOBS = nouns("person"), nouns("adult"), nouns("animal"), nouns("job")
PLACES, SPOTS, THINGS = nouns("place"), nouns("in", "on", "at"), nouns("thing", "clothing")
PARTS, BUILDINGS, PRICED = nouns("part"), nouns("building"), nouns("thing", "clothing", "machine")
RELATIONS = [noun for noun in ADULTS if noun.ownable]
MOVABLE = ANIMALS + [noun for noun in THINGS if not noun.preposition]
DESCRIBED = [noun for noun in NOUNS if noun.states]
COUNTED = [noun for noun in DESCRIBED if "mass" not in noun.classes]
# Adjectives such as "jovem" and "feliz" suit every person.
PERSONAL_STATES = next(noun for noun in NOUNS if noun.lemma == "menino").states

INTRANSITIVE = [v for v in VERBS if not v.objects]
PREPOSITIONAL = [v for v in VERBS if v.preposition]
DITRANSITIVE = [v for v in VERBS if "to" in v.grammar]
DIRECT = [v for v in VERBS if v.objects and v not in PREPOSITIONAL + DITRANSITIVE]
TRANSITIVE = DIRECT + PREPOSITIONAL
PASSIVE = [v for v in VERBS if "passive" in v.grammar]
NOT_MOVING = [v for v in VERBS if not v.moving]
OWNING = [v for v in TRANSITIVE if not v.moving and v.lemma not in ("dirigir", "fechar")]


def takers(noun: Noun) -> list[Verb]:
    """Return the verbs that can have this object in a relative clause."""
    verbs = [v for v in TRANSITIVE if noun in v.objects and not v.moving]
    # "para quem" is possible for people, "para que" is not for things.
    return [v for v in verbs if "person" in noun.classes or v.preposition in ("", "de")]


def following(noun: Noun) -> list[Verb]:
    """Return what can be done with a thing after it is bought, found, seen or made."""
    done = (
        "ler comer beber cortar vender fechar abrir lavar pintar consertar dirigir usar esconder "
        "desenhar visitar ajudar abraçar chamar convidar seguir perder quebrar"
    )
    return [v for v in DIRECT if noun in v.objects and v.lemma in done.split()]


TAKERS = {noun.lemma: takers(noun) for noun in NOUNS}
FOLLOWING = {noun.lemma: following(noun) for noun in NOUNS}
