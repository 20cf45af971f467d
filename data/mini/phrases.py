"""Noun phrases in both languages, and the state of a sentence being generated."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from data.mini import lexicon
from data.mini.lexicon import Adjective, Determiner, Noun, Verb

Text = tuple[str, str]  # Portuguese, English
EMPTY = ("", "")


class Draft:
    """State of a sentence being generated: random choices and the features so far."""

    def __init__(self, rng: Random):
        self.random = rng.random
        self.features: list[tuple[str, ...]] = []
        self.adjectives = 1  # how many more attributive adjectives are allowed
        self.eager = False  # use as many as are allowed
        self.relative = False  # inside a relative clause
        self.negated = False  # "some" would have to be "any"

    def pick(self, options: Sequence[Any]) -> Any:
        """Draw one of the options, with equal probabilities."""
        return options[int(self.random() * len(options))]

    def pick_where(self, suits: Callable[[Any], Any], options: Sequence[Any]) -> Any:
        """Draw one of the options for which `suits` is true."""
        while not suits(option := self.pick(options)):
            pass
        return option

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def note(self, *feature: str) -> None:
        """Record a feature of the sentence: its kind, and then its parts."""
        self.features.append(feature)


class NP(NamedTuple):
    """A noun phrase and its agreement features."""

    pt: str
    en: str
    gender: int
    plural: bool
    pronoun: str  # the English pronoun for it
    noun: Noun | None = None

    @property
    def person(self) -> int:
        """Index into the Portuguese forms for eu, ele, eles."""
        return 2 if self.plural else int(self.pronoun != "I")

    @property
    def en_person(self) -> int:
        """Index into am, is, are."""
        return 2 if self.plural or self.pronoun == "you" else int(self.pronoun != "I")

    @property
    def agreement(self) -> int:
        """Index into the four forms of an adjective."""
        return self.gender + 2 * self.plural


# ---- Pronouns -----------------------------------------------------------------------------------

EU, EU_FEMALE = NP("eu", "I", 0, False, "I"), NP("eu", "I", 1, False, "I")
VOCE, VOCE_FEMALE = NP("você", "you", 0, False, "you"), NP("você", "you", 1, False, "you")
ELE, ELA = NP("ele", "he", 0, False, "he"), NP("ela", "she", 1, False, "she")
ELES, ELAS = NP("eles", "they", 0, True, "they"), NP("elas", "they", 1, True, "they")
THIRD_PERSON = (ELE, ELA, ELES, ELAS)  # in the order of NP.agreement
SINGULAR = (EU, EU_FEMALE, VOCE, VOCE_FEMALE, ELE, ELA)
SUBJECTS = [EU] * 6 + [VOCE, *THIRD_PERSON]

THEM = {"I": "me", "you": "you", "he": "him", "she": "her", "it": "it", "they": "them"}
THEIR = {"I": "my", "you": "your", "he": "his", "she": "her", "it": "its", "they": "their"}

# ---- Text ---------------------------------------------------------------------------------------

CONTRACTIONS = {("a", "o"): "ao", ("a", "os"): "aos", ("a", "a"): "à", ("a", "as"): "às"}
ARTICLES, THOSE = ["o", "os", "a", "as"], ["aquele", "aqueles", "aquela", "aquelas"]
for word in ARTICLES:
    CONTRACTIONS["por", word] = "pel" + word
for word in THOSE:
    CONTRACTIONS["a", word] = "à" + word[1:]
for word in [*ARTICLES, *THOSE, *"este estes esta estas ele eles ela elas".split()]:
    CONTRACTIONS |= {("de", word): "d" + word, ("em", word): "n" + word}


def contract(preposition: str, phrase: str) -> str:
    """Put a preposition before a phrase: de + o menino → do menino."""
    head, space, rest = phrase.partition(" ")
    contracted = CONTRACTIONS.get((preposition, head))
    return contracted + space + rest if contracted else f"{preposition} {phrase}"


def with_article(determiner: str, phrase: str) -> str:
    """Put an English determiner before a phrase: a + apple → an apple."""
    n = "n" if determiner == "a" and phrase[0] in "aeiou" else ""
    return f"{determiner}{n} {phrase}"


def join(*words: str) -> str:
    """Join the words that are not empty with spaces."""
    return " ".join(filter(None, words))


def both(*texts: Text) -> Text:
    """Concatenate texts in both languages."""
    pt, en = zip(*texts, strict=True)
    return join(*pt), join(*en)


# ---- Noun phrases -------------------------------------------------------------------------------

CONTRADICTIONS = {("rico", "pobre"), ("velho", "novo")}


def attributes(d: Draft, noun: Noun) -> list[Adjective]:
    """Draw up to two adjectives: one before and one after the noun, or colour and quality."""
    if not d.adjectives or not (d.eager or d.chance(0.25)):
        return []
    chosen = []
    after = noun.after + noun.colours
    if d.adjectives > 1 and d.chance(0.5):
        if noun.colours and noun.after and d.chance(0.7):
            chosen = [d.pick(noun.colours), d.pick(noun.after)]
        elif noun.before and after:
            chosen = [d.pick(after), d.pick(noun.before)]
    if after and not chosen:
        chosen = [d.pick(noun.before if noun.before and d.chance(0.3) else after)]
    if tuple(adjective.lemma for adjective in chosen) in CONTRADICTIONS:
        chosen.pop()
    d.adjectives -= len(chosen)
    return chosen


def nominal(d: Draft, noun: Noun, plural: bool) -> Text:
    """Draw a noun's adjectives. English reverses the order of those after a Portuguese noun."""
    pt, en = noun.pt[plural], noun.en[plural]
    for adjective in attributes(d, noun):
        d.note("adjective+noun", adjective.lemma, noun.lemma)
        if d.relative:
            d.note("adjective in relative", noun.lemma)
        form = adjective.pt[noun.gender + 2 * plural]
        pt = f"{form} {pt}" if "pre" in adjective.grammar else f"{pt} {form}"
        en = f"{adjective.en} {en}"
    return pt, en


def headed(noun: Noun, plural: bool, pt: str, en: str) -> NP:
    """Make a noun phrase from its texts and its head."""
    pronoun = ("he", "she")[noun.gender] if "person" in noun.classes else "it"
    return NP(pt, en, noun.gender, plural, "they" if plural else pronoun, noun)


def noun_phrase(
    d: Draft,
    noun: Noun,
    determiners: Sequence[Determiner] = lexicon.FREQUENT,
    plural: bool | None = None,
) -> NP:
    """Draw determiner and adjectives of a noun: o carro vermelho novo → the new red car."""
    mass = "mass" in noun.classes
    if plural is None:
        plural = not mass and d.chance(0.3)
    determiner = d.pick(determiners)
    if determiner is lexicon.INDEFINITE and (mass or (plural and d.negated)):
        determiner = lexicon.DEFINITE
    if determiner in lexicon.POSSESSIVE and "unowned" in noun.classes:
        determiner = lexicon.DEFINITE
    pt, en = nominal(d, noun, plural)
    pt = f"{determiner.pt[noun.gender + 2 * plural]} {pt}"
    return headed(noun, plural, pt, with_article(determiner.en[plural], en))


def genitive(d: Draft, noun: Noun) -> NP:
    """Draw the owner of a noun: o livro vermelho do menino → the boy's red book."""
    plural = "mass" not in noun.classes and d.chance(0.3)
    pt, en = nominal(d, noun, plural)
    if d.chance(0.3):
        owner = d.pick(THIRD_PERSON)
        possessor = THEIR[owner.pronoun]
    else:
        owner = noun_phrase(d, other_person(d, noun), lexicon.SPECIFIC)
        if owner.en.startswith(("my ", "our ")):
            d.note("possessive owner", owner.noun.lemma)
        possessor = owner.en + ("'" if owner.en.endswith("s") and owner.plural else "'s")
    pt = f"{lexicon.DEFINITE.pt[noun.gender + 2 * plural]} {pt} {contract('de', owner.pt)}"
    return headed(noun, plural, pt, f"{possessor} {en}")


def other_person(d: Draft, noun: Noun) -> Noun:
    """Draw a person who is not `noun`."""
    return d.pick_where(lambda someone: someone is not noun, lexicon.PEOPLE)


def two_people(d: Draft) -> NP:
    """Draw two people as one noun phrase: o menino e a menina → the boy and the girl."""
    one = noun_phrase(d, d.pick(lexicon.PEOPLE), lexicon.SPECIFIC)
    two = noun_phrase(d, other_person(d, one.noun), lexicon.SPECIFIC)
    gender = one.gender & two.gender  # masculine if one of them is
    return NP(f"{one.pt} e {two.pt}", f"{one.en} and {two.en}", gender, True, "they")


def person(d: Draft) -> NP:
    """Draw a human subject: a noun phrase or a pronoun."""
    if d.chance(0.35) and not d.eager:
        return d.pick(SUBJECTS)
    return noun_phrase(d, d.pick(lexicon.PEOPLE))


def subject_of(d: Draft, verb: Verb) -> NP:
    """Draw a subject of the verb: a person or, if the verb allows it, an animal."""
    animal = "animal" in verb.grammar and d.chance(0.3)
    return noun_phrase(d, d.pick(lexicon.ANIMALS)) if animal else person(d)


def place(d: Draft, spots: list[Noun]) -> Text:
    """Draw a place from these nouns: no parque → in the park."""
    noun = d.pick(spots)
    np = noun_phrase(d, noun, lexicon.SPECIFIC, plural=d.chance(0.1))
    return contract("em", np.pt), f"{noun.preposition} {np.en}"
