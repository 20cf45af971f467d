"""The built-in corpus `mini`: a small Portuguese-English grammar that writes its own parallel text.

Each function below builds one phrase in both languages at once, so every translation is correct by
construction, and each pair carries the tag of the phenomenon it is about (`TAGS`):

    order      o menino comprou o carro vermelho novo    the boy bought the new red car
    reference  a professora perdeu o seu livro           the teacher lost her book
    sense      para pagar a conta, ela procura o banco   to pay the bill, she looks for the bank

While it builds, the grammar notes the *features* of a sentence (this verb with that object, ...).
Some features are held out (`HELD_OUT`): the pairs that carry one make up the split `compositional`,
whose words are all known from training but were never combined in this way. A hash of the source
text sends every other pair to train, validation or test, so no pair can be in two splits.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

SIZES = {"train": 12000, "validation": 1000, "test": 1000, "compositional": 1000}
LIMITS = {"train": 1_000_000, "validation": 50_000, "test": 50_000, "compositional": 100_000}

# One in how many combinations of each kind never occurs outside `compositional`; 0 switches a kind
# off. A structure is held out as a whole when its name is listed.
HELD_OUT = {
    "adjective+noun": 16,
    "verb+object": 14,
    "verb+form": 6,
    "plural object": 14,
    "cue in front": 5,
}
HELD_OUT_STRUCTURES = {"relative in question", "adjective in relative", "negated relative"}


class Pair(NamedTuple):
    source: str
    target: str
    tag: str


@cache
def is_held_out(feature: tuple[str, ...]) -> bool:
    kind, *lemmas = feature
    if kind == "structure":
        return lemmas[0] in HELD_OUT_STRUCTURES
    return HELD_OUT[kind] > 0 and zlib.crc32(" ".join(feature).encode()) % HELD_OUT[kind] == 0


def held_out(features: list[tuple[str, ...]]) -> bool:
    """Does a sentence with these features belong to the compositional split?"""
    return any(map(is_held_out, features))


# --- morphology: regular forms; the irregular ones are written out in the lexicon ----------------


def portuguese_plural(word: str) -> str:
    for ending, plural in (("ão", "ões"), ("m", "ns"), ("al", "ais"), ("el", "éis")):
        if word.endswith(ending):
            return word.removesuffix(ending) + plural
    return word + ("es" if word[-1] in "rz" else "s")


def adjective_forms(words: str) -> list[str]:
    masculine, *rest = words.split("/")
    feminine = masculine[:-1] + "a" if masculine.endswith("o") else masculine
    return [masculine, *(rest or [feminine, *map(portuguese_plural, (masculine, feminine))])]


def portuguese_verb(words: str) -> list[str]:
    """Infinitive, present and past (each for eu, ele, eles), participle."""
    infinitive, *rest = words.split("/")
    stem, theme = infinitive[:-2], infinitive[-2]
    if theme == "a":
        # The consonant keeps its sound before e: brinquei, dancei.
        soft = re.sub("ç$", "c", re.sub("c$", "qu", re.sub("g$", "gu", stem)))
        regular = [stem + e for e in ("o", "a", "am")] + [soft + "ei", stem + "ou", stem + "aram"]
        return [infinitive, *(rest or [*regular, stem + "ado"])]
    first = re.sub("c$", "ç", re.sub("g$", "j", stem)) + "o"
    past = [stem + "i", stem + theme + "u", stem + theme + "ram"]
    return [infinitive, *(rest or [first, stem + "e", stem + "em", *past, stem + "ido"])]


def english_s(word: str) -> str:
    """The regular plural of a noun, and the third person of a verb."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh|o)$", word) else "s")


def english_stem(word: str) -> str:
    """The verb before -ed and -ing: a short closed syllable doubles its consonant (hug, hugged)."""
    return word + word[-1] if re.search("^[^aeiou]*[aeiou][^aeiouwxy]$", word) else word


def english_verb(words: str) -> list[str]:
    """Base, third person, past, participle, -ing."""
    head, _, particle = words.partition(" ")
    base, *rest = head.split("/")
    past = re.sub("[^aeiou]y$", lambda y: y[0][0] + "i", english_stem(base))
    past = past + "d" if past.endswith("e") else past + "ed"
    stem = english_stem(base)
    ing = (stem[:-1] if re.search("[^e]e$", stem) else stem) + "ing"
    forms = [base, english_s(base), *(rest or [past, past]), ing]
    return [f"{form} {particle}".rstrip() for form in forms]


# --- lexicon -------------------------------------------------------------------------------------


class Adjective(NamedTuple):
    lemma: str
    pt: list[str]  # masculine, feminine, their plurals
    en: str
    grammar: set[str]
    classes: set[str]


class Noun(NamedTuple):
    lemma: str
    pt: list[str]  # singular, plural
    en: list[str]
    gender: int  # 0 masculine, 1 feminine
    classes: set[str]
    preposition: str  # of a location: in, on, at
    before: list[Adjective]  # the adjectives that suit it, by their place in Portuguese
    after: list[Adjective]
    colours: list[Adjective]
    states: list[tuple[str, Adjective]]  # (copula, predicate)
    cues: list[tuple[str, str]]


class Verb(NamedTuple):
    lemma: str
    infinitive: str
    finite: dict[str, list[str]]  # tense -> forms for eu, ele, eles
    gerund: str
    participle: list[str]
    en: list[str]
    preposition: str
    grammar: set[str]
    objects: list[Noun]


def read_lexicon() -> dict[str, list[tuple[str, ...]]]:
    lexicon = defaultdict(list)
    for line in Path(__file__).with_name("mini.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            category, *columns = line.split("\t")
            lexicon[category].append(tuple(columns + [""] * (4 - len(columns))))
    return lexicon


def make_adjective(words: str, grammar: str, english: str, classes: str) -> Adjective:
    forms = adjective_forms(words)
    return Adjective(forms[0], forms, english, set(grammar.split()), set(classes.split()))


def make_noun(words: str, gender: str, english: str, classes: str, cues: str = "") -> Noun:
    singular, *plural = words.split("/")
    base, *irregular = english.split("/")
    kinds = set(classes.split()) | {singular}
    suits = [a for a in ADJECTIVES if a.classes & kinds]
    return Noun(
        singular,
        [singular, *(plural or [portuguese_plural(singular)])],
        [base, *(irregular or [english_s(base)])],
        int(gender == "f"),
        kinds,
        next((p for p in ("in", "on", "at") if p in kinds), ""),
        [a for a in suits if "pre" in a.grammar],
        [a for a in suits if "post" in a.grammar],
        [a for a in suits if "colour" in a.grammar],
        [(c, a) for a in suits for c in ("ser", "estar", "look") if c in a.grammar],
        [tuple(cue.split(" = ")) for cue in cues.split("; ")] if cues else [],
    )


def make_verb(words: str, grammar: str, english: str, classes: str) -> Verb:
    lemma, _, forms = words.rpartition(":")
    infinitive, *finite, participle = portuguese_verb(forms)
    tags, kinds = set(grammar.split()), set(classes.split())
    return Verb(
        lemma or infinitive,
        infinitive,
        {"present": finite[:3], "past": finite[3:]},
        infinitive[:-1] + "ndo",
        adjective_forms(participle),
        english_verb(english),
        next((p for p in ("de", "com", "em", "para", "por", "a") if p in tags), ""),
        tags,
        [noun for noun in NOUNS if noun.classes & kinds],
    )


LEXICON = read_lexicon()
ADJECTIVES = [make_adjective(*columns) for columns in LEXICON["adjective"]]
NOUNS = [make_noun(*columns) for columns in LEXICON["noun"]]
SENSES = [make_noun(w, g, e, "", cues) for w, g, e, cues in LEXICON["sense"]]
VERBS = [make_verb(*columns) for columns in LEXICON["verb"]]
COPULAS = {verb.lemma: verb for verb in (make_verb(*columns) for columns in LEXICON["copula"])}
DETERMINERS = [(pt.split("/"), en.split("/")) for pt, _, en, _ in LEXICON["determiner"]]
DEFINITE, INDEFINITE, POSSESSIVE = DETERMINERS[0], DETERMINERS[1], DETERMINERS[4:]
# The articles are the commonest determiners, as they are in real text.
FREQUENT = [DEFINITE] * 6 + [INDEFINITE] * 3 + DETERMINERS[2:]
SPECIFIC = [DEFINITE] * 5 + DETERMINERS[2:]
ADVERBS = defaultdict(list)
for pt, tense, en, _ in LEXICON["adverb"]:
    ADVERBS[tense].append((pt, en))
NUMBERS = {int(n): (pt.split("/"), en) for pt, n, en, _ in LEXICON["number"]}
MONTHS = [(pt, en) for pt, _, en, _ in LEXICON["month"]]


def nouns(*classes: str) -> list[Noun]:
    return [noun for noun in NOUNS if noun.classes & set(classes)]


PEOPLE, ADULTS, ANIMALS, JOBS = nouns("person"), nouns("adult"), nouns("animal"), nouns("job")
PLACES, SPOTS, THINGS = nouns("place"), nouns("in", "on", "at"), nouns("thing", "clothing")
PARTS, BUILDINGS, PRICED = nouns("part"), nouns("building"), nouns("thing", "clothing", "machine")
BY_LEMMA = {verb.lemma: verb for verb in VERBS}
INTRANSITIVE = [v for v in VERBS if not v.objects]
DIRECT = [v for v in VERBS if v.objects and not v.preposition and "to" not in v.grammar]
PREPOSITIONAL = [v for v in VERBS if v.preposition]
DITRANSITIVE = [v for v in VERBS if "to" in v.grammar]
NOT_OWNED = {"place", "unowned"}  # a minha mulher would be "my wife"
MOVING = [v for v in PREPOSITIONAL if all("place" in noun.classes for noun in v.objects)]
NOT_MOVING = [v for v in VERBS if v not in MOVING]
# The verbs a noun can be the object of in a relative clause: para que, com que are for people only.
TAKERS = {
    noun.lemma: [
        verb
        for verb in DIRECT + PREPOSITIONAL
        if noun in verb.objects
        and (verb.preposition in ("", "de") or "person" in noun.classes)
        and verb not in MOVING
    ]
    for noun in NOUNS
}
HEADS = [noun for noun in NOUNS if TAKERS[noun.lemma] and "place" not in noun.classes]
OWNING = [
    v for v in DIRECT + PREPOSITIONAL if v not in MOVING and v.lemma not in ("dirigir", "fechar")
]
# What may be done to a thing once it is bought, found, seen or made.
SECOND = set(
    "ler comer beber cortar vender fechar abrir lavar pintar consertar dirigir usar esconder "
    "desenhar visitar ajudar abraçar chamar convidar seguir perder quebrar".split()
)
FOLLOWING = {
    noun.lemma: [v for v in DIRECT if noun in v.objects and v.lemma in SECOND] for noun in NOUNS
}
RELATIONS = [noun for noun in ADULTS if "unowned" not in noun.classes]
DESCRIBED = [noun for noun in NOUNS if noun.states]
COUNTED = [noun for noun in DESCRIBED if "mass" not in noun.classes]
MOVABLE = ANIMALS + [noun for noun in THINGS if not noun.preposition]
# "jovem", "feliz" and the like suit every person.
PERSONAL_STATES = next(noun for noun in NOUNS if noun.lemma == "menino").states
CUSTAR = make_verb("custar", "", "cost/cost/cost", "")
PASSIVE = [v for v in VERBS if "passive" in v.grammar]


# --- phrases: each function returns both languages at once ---------------------------------------

Text = tuple[str, str]  # Portuguese, English
EMPTY = ("", "")

BE = ("am", "is", "are")
PRONOUNS = {  # subject, object, possessive
    "i": ("i", "me", "my"),
    "you": ("you", "you", "your"),
    "he": ("he", "him", "his"),
    "she": ("she", "her", "her"),
    "it": ("it", "it", "its"),
    "they": ("they", "them", "their"),
}
CONTRACTIONS = {
    **{("a", "o"): "ao", ("a", "a"): "à", ("a", "os"): "aos", ("a", "as"): "às"},
    **{("por", article): "pel" + article for article in ("o", "a", "os", "as")},
    **{("em", word): "n" + word for word in ("o", "a", "os", "as")},
    **{("de", word): "d" + word for word in ("o", "a", "os", "as", "ele", "ela", "eles", "elas")},
}
for este in (form for portuguese, _ in DETERMINERS[2:4] for form in portuguese):
    CONTRACTIONS |= {("de", este): "d" + este, ("em", este): "n" + este}
    if este.startswith("a"):
        CONTRACTIONS["a", este] = "à" + este[1:]


class NP(NamedTuple):
    """A noun phrase and what agrees with it."""

    pt: str
    en: str
    gender: int
    plural: bool
    pronoun: str  # the key of PRONOUNS that refers to it in English
    noun: Noun | None = None

    @property
    def person(self) -> int:
        """Index into the Portuguese forms for eu, ele, eles."""
        return 2 if self.plural else int(self.pronoun != "i")

    @property
    def en_person(self) -> int:
        """Index into am, is, are."""
        return 2 if self.plural or self.pronoun == "you" else int(self.pronoun != "i")

    @property
    def agreement(self) -> int:
        """Index into the four forms of an adjective."""
        return self.gender + 2 * self.plural


ELE, ELA = NP("ele", "he", 0, False, "he"), NP("ela", "she", 1, False, "she")
ELES, ELAS = NP("eles", "they", 0, True, "they"), NP("elas", "they", 1, True, "they")
EU, VOCE = NP("eu", "i", 0, False, "i"), NP("você", "you", 0, False, "you")


class Draft:
    """A sentence in the making: its random choices and the features noted so far."""

    def __init__(self, rng: Random):
        self.random = rng.random
        self.features: list[tuple[str, ...]] = []
        self.adjectives = 1  # how many attributive adjectives it may still take
        self.eager = False  # take as many as there are
        self.relative = False  # inside a relative clause
        self.negated = False  # where "some" would have to be "any"

    def pick(self, options):
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def note(self, *feature: str) -> None:
        self.features.append(feature)


def join(*words: str) -> str:
    return " ".join([word for word in words if word])


def contract(preposition: str, phrase: str) -> str:
    """de + o menino -> do menino"""
    head, space, rest = phrase.partition(" ")
    contracted = CONTRACTIONS.get((preposition, head))
    return contracted + space + rest if contracted else f"{preposition} {phrase}".strip()


def with_article(determiner: str, phrase: str) -> str:
    return (
        f"an {phrase}" if determiner == "a" and phrase[0] in "aeiou" else f"{determiner} {phrase}"
    )


def attributes(d: Draft, noun: Noun) -> list[Adjective]:
    """None, one, or two adjectives: before and after the noun, or colour and quality after it."""
    if not d.adjectives or not (d.eager or d.chance(0.25)):
        return []
    chosen = []
    after = noun.after + noun.colours
    if d.adjectives > 1 and d.chance(0.5):
        if noun.colours and noun.after and d.chance(0.7):
            chosen = [d.pick(noun.colours), d.pick(noun.after)]
        elif noun.before and after:
            chosen = [d.pick(after), d.pick(noun.before)]
    if not chosen and (after or noun.before):
        chosen = [d.pick(noun.before if noun.before and d.chance(0.3) else after)]
    d.adjectives -= len(chosen)
    return chosen


def nominal(d: Draft, noun: Noun, plural: bool) -> Text:
    """The noun with its adjectives: English turns their order around after the Portuguese noun."""
    pt, en = noun.pt[plural], noun.en[plural]
    for adjective in attributes(d, noun):
        d.note("adjective+noun", adjective.lemma, noun.lemma)
        if d.relative:
            d.note("structure", "adjective in relative")
        form = adjective.pt[noun.gender + 2 * plural]
        if "pre" in adjective.grammar:
            pt, en = f"{form} {pt}", f"{adjective.en} {en}"
        else:
            pt, en = f"{pt} {form}", f"{adjective.en} {en}"
    return pt, en


def other_than(d: Draft, noun: Noun, people: list[Noun]) -> Noun:
    while (someone := d.pick(people)).lemma == noun.lemma:
        pass
    return someone


def referent(noun: Noun, plural: bool) -> str:
    if plural:
        return "they"
    return ("he", "she")[noun.gender] if "person" in noun.classes else "it"


def noun_phrase(d: Draft, noun: Noun, determiners=FREQUENT, plural: bool | None = None) -> NP:
    mass = "mass" in noun.classes
    if plural is None:
        plural = not mass and d.chance(0.3)
    determiner = d.pick(determiners)
    if determiner is INDEFINITE and (mass or (plural and d.negated)):
        determiner = DEFINITE
    if determiner in POSSESSIVE and "unowned" in noun.classes:
        determiner = DEFINITE
    pt, en = nominal(d, noun, plural)
    return NP(
        f"{determiner[0][noun.gender + 2 * plural]} {pt}",
        with_article(determiner[1][plural], en),
        noun.gender,
        plural,
        referent(noun, plural),
        noun,
    )


def genitive(d: Draft, noun: Noun, plural: bool | None = None) -> NP:
    """o livro vermelho do menino -> the boy's red book; o livro dele -> his book"""
    plural = "mass" not in noun.classes and d.chance(0.3) if plural is None else plural
    pt, en = nominal(d, noun, plural)
    if d.chance(0.3):
        owner = d.pick((ELE, ELA, ELES, ELAS))
        possessor = PRONOUNS[owner.pronoun][2]
    else:
        owner = noun_phrase(d, other_than(d, noun, PEOPLE), SPECIFIC)
        possessor = owner.en + ("'" if owner.en.endswith("s") and owner.plural else "'s")
    pt = f"{DEFINITE[0][noun.gender + 2 * plural]} {pt} {contract('de', owner.pt)}"
    return NP(pt, f"{possessor} {en}", noun.gender, plural, referent(noun, plural), noun)


def coordinate(first: NP, second: NP) -> NP:
    gender = first.gender & second.gender  # one masculine member makes the whole masculine
    pt, en = f"{first.pt} e {second.pt}", f"{first.en} and {second.en}"
    return NP(pt, en, gender, True, "they")


def person(d: Draft) -> NP:
    """A human subject: a noun phrase or, now and then, a pronoun."""
    if d.chance(0.3) and not d.eager:
        return d.pick((EU, EU, EU, EU, EU, VOCE, ELE, ELA, ELES, ELAS))
    return noun_phrase(d, d.pick(PEOPLE))


def subject_of(d: Draft, verb: Verb) -> NP:
    animal = "animal" in verb.grammar and d.chance(0.3)
    return noun_phrase(d, d.pick(ANIMALS)) if animal else person(d)


def place(d: Draft, spots: list[Noun] = SPOTS) -> Text:
    noun = d.pick(spots)
    np = noun_phrase(d, noun, SPECIFIC, plural=d.chance(0.1))
    return contract("em", np.pt), f"{noun.preposition} {np.en}"


def time(d: Draft, tense: str) -> Text:
    return d.pick(ADVERBS[tense])


# --- clauses -------------------------------------------------------------------------------------

TENSES = ("present", "past", "past", "future", "progressive")


def tense_for(d: Draft, verb: Verb) -> str:
    tense = d.pick(TENSES)
    if tense == "progressive" and "stative" in verb.grammar:
        return "present"
    return "past" if tense == "future" and "nofuture" in verb.grammar else tense


def portuguese(verb: Verb, tense: str, np: NP) -> str:
    if tense == "future":
        return f"{BY_LEMMA['ir'].finite['present'][np.person]} {verb.infinitive}"
    if tense == "progressive":
        return f"{COPULAS['estar'].finite['present'][np.person]} {verb.gerund}"
    return verb.finite[tense][np.person]


def english(verb: Verb, tense: str, np: NP) -> tuple[str, str, str]:
    """(auxiliary, main verb, the two fused): did + buy = bought. Only the fused form differs."""
    base, third, past, _, ing = verb.en
    is_third = np.en_person == 1
    if tense == "future":
        return "will", base, f"will {base}"
    if base == "be":
        be = BE[np.en_person] if tense == "present" else ("was", "was", "were")[np.en_person]
        return be, "", be
    if tense == "progressive":
        return BE[np.en_person], ing, f"{BE[np.en_person]} {ing}"
    if tense == "past":
        return "did", base, past
    return ("does", base, third) if is_third else ("do", base, base)


def clause(verb: Verb, tense: str, form: str, subject: NP, rest: Text, wh: Text = EMPTY) -> Text:
    """One clause; `form` is statement, negative, never, or question, each question also negated."""
    pt = portuguese(verb, tense, subject)
    aux, main, fused = english(verb, tense, subject)
    negation = {"negative": "não", "negative question": "não", "never": "nunca"}.get(form, "")
    pt = join(wh[0], subject.pt, negation, pt, rest[0])
    if "question" in form:
        negation = "not" if negation else ""
        return pt + "?", join(wh[1], aux, subject.en, negation, main, rest[1]) + "?"
    if form == "negative":
        return pt, join(subject.en, aux, "not", main, rest[1])
    if form == "never":
        fused = f"never {fused}" if tense != "future" else f"will never {main}"
    return pt, join(subject.en, fused, rest[1])


def governed(verb: Verb, np: NP) -> Text:
    """The object after the preposition its verb demands; the English one is part of the verb."""
    return contract(verb.preposition, np.pt) if verb.preposition else np.pt, np.en


def note_object(d: Draft, verb: Verb, np: NP) -> None:
    d.note("verb+object", verb.lemma, np.noun.lemma)
    if np.plural:
        d.note("plural object", np.noun.lemma)


def complement(d: Draft, verb: Verb, owned: bool = False) -> Text:
    """What follows the verb: nothing, an object, or an object and a recipient."""
    if not verb.objects:
        return EMPTY
    noun = d.pick(verb.objects)
    while owned and noun.classes & NOT_OWNED:
        noun = d.pick(verb.objects)
    np = genitive(d, noun) if owned else noun_phrase(d, noun)
    note_object(d, verb, np)
    pt, en = governed(verb, np)
    if "to" in verb.grammar:
        recipient = noun_phrase(d, d.pick(PEOPLE), SPECIFIC)
        pt, en = f"{pt} {contract('a', recipient.pt)}", f"{en} to {recipient.en}"
    return pt, en


def both(*texts: Text) -> Text:
    return join(*[pt for pt, _ in texts]), join(*[en for _, en in texts])


def setting(d: Draft, verb: Verb, tense: str) -> Text:
    """Where and when, at the end of a clause; a verb of movement has its place already."""
    where = place(d, PLACES) if verb not in MOVING and d.chance(0.25) else EMPTY
    return both(where, time(d, tense)) if d.chance(0.35) else where


def simple(d: Draft, verbs: list[Verb], form: str = "statement") -> Text:
    """Subject, verb, complement, setting."""
    verb = d.pick(verbs)
    tense = tense_for(d, verb)
    if form == "never" and tense == "progressive":
        tense = "present"
    if form != "statement":
        d.negated = True
        d.note("verb+form", verb.lemma, tense, form)
    rest = complement(d, verb)
    if form != "never":
        rest = both(rest, setting(d, verb, tense))
    return clause(verb, tense, form, subject_of(d, verb), rest)


def relative_clause(d: Draft, np: NP) -> NP:
    """Subject relatives take who, or that for things; object relatives always take that."""
    outer, d.relative = d.relative, True
    noun = np.noun
    if "person" in noun.classes and d.chance(0.5):
        verb = d.pick(DIRECT + PREPOSITIONAL)
        tense = tense_for(d, verb)
        form = "statement"
        if d.chance(0.2):
            form = "negative"
            d.note("structure", "negated relative")
        gap = NP("que", "who", np.gender, np.plural, np.pronoun)
        pt, en = clause(verb, tense, form, gap, complement(d, verb))
    else:
        verb = d.pick(TAKERS[noun.lemma])
        note_object(d, verb, np)
        subject = noun_phrase(d, other_than(d, noun, PEOPLE), SPECIFIC)
        pt, en = clause(verb, tense_for(d, verb), "statement", subject, EMPTY)
        whom = "quem" if verb.preposition and "person" in noun.classes else "que"
        pt, en = join(verb.preposition, whom, pt), f"that {en}"
    d.relative = outer
    return np._replace(pt=f"{np.pt} {pt}", en=f"{np.en} {en}")


# --- sentences: one function for each tag --------------------------------------------------------


def order(d: Draft) -> Text:
    """At least two adjectives: nothing but their place tells which noun they belong to."""
    d.adjectives, d.eager = 4, True
    return simple(d, DIRECT)


def tense(d: Draft) -> Text:
    return simple(d, DIRECT + INTRANSITIVE)


def negation(d: Draft) -> Text:
    return simple(d, VERBS, d.pick(("negative", "negative", "never")))


def question(d: Draft) -> Text:
    """Yes-no questions, and questions for the place, time, reason, object or subject."""
    wh = d.pick(("", "", "onde", "quando", "por que", "o que", "quem"))
    verb = d.pick(DIRECT if wh == "o que" else NOT_MOVING if wh == "onde" else VERBS)
    tense = tense_for(d, verb)
    form = "negative question" if wh in ("", "por que") and d.chance(0.15) else "question"
    d.negated = form == "negative question"
    d.note("verb+form", verb.lemma, tense, f"{wh} {form}")
    if wh == "o que":
        personal = all("person" in noun.classes for noun in verb.objects)
        words = ("quem", "who") if personal else ("o que", "what")
        return clause(verb, tense, form, asked(d, verb), time_maybe(d, tense), words)
    rest = complement(d, verb)
    if wh == "quem":
        # A question for the subject keeps the order of a statement: no auxiliary.
        rest = both(rest, setting(d, verb, tense))
        pt, en = clause(verb, tense, "statement", NP("quem", "who", 0, False, "he"), rest)
        return pt + "?", en + "?"
    if wh == "":
        rest = both(rest, setting(d, verb, tense))
    elif wh != "quando":
        rest = both(rest, time_maybe(d, tense))
    words = {"": "", "onde": "where", "quando": "when", "por que": "why"}[wh]
    return clause(verb, tense, form, asked(d, verb), rest, (wh, words))


def time_maybe(d: Draft, tense: str) -> Text:
    return time(d, tense) if d.chance(0.3) else EMPTY


def asked(d: Draft, verb: Verb) -> NP:
    """The subject of a question."""
    subject = subject_of(d, verb)
    if subject.noun and "person" in subject.noun.classes and d.chance(0.2):
        d.note("structure", "relative in question")
        subject = relative_clause(d, subject)
    return subject


def contraction(d: Draft) -> Text:
    """de, em, a, por melt into the article or pronoun that follows."""
    verb = d.pick(DIRECT + PREPOSITIONAL * 4 + DITRANSITIVE * 4)
    tense = tense_for(d, verb)
    rest = complement(d, verb, owned=verb in DIRECT or (verb not in MOVING and d.chance(0.4)))
    return clause(
        verb, tense, "statement", subject_of(d, verb), both(rest, setting(d, verb, tense))
    )


def relative(d: Draft) -> Text:
    """A relative clause on the subject or on the object."""
    verb = d.pick(DIRECT)
    tense = tense_for(d, verb)
    if d.chance(0.5):
        subject = relative_clause(d, noun_phrase(d, d.pick(PEOPLE), SPECIFIC))
        return clause(verb, tense, "statement", subject, complement(d, verb))
    noun = d.pick(verb.objects)
    while not TAKERS[noun.lemma]:
        noun = d.pick(verb.objects)
    np = noun_phrase(d, noun)
    note_object(d, verb, np)
    return clause(verb, tense, "statement", person(d), governed(verb, relative_clause(d, np)))


def predicate(d: Draft, subject: NP, choices=None, past: bool | None = None, form="") -> Text:
    """Subject, copula and an adjective that agrees with the subject whatever stands between."""
    copula, adjective = d.pick(choices or subject.noun.states)
    if subject.noun:
        d.note("adjective+noun", adjective.lemma, subject.noun.lemma)
    tense = ("present", "past")[d.chance(0.4) if past is None else past]
    form = form or d.pick(("statement", "statement", "negative", "question"))
    rest = adjective.pt[subject.agreement], adjective.en
    return clause(COPULAS[copula], tense, form, subject, rest)


def agreement(d: Draft) -> Text:
    """Predicates that agree with plural, coordinate or complex subjects, and passives."""
    kind = d.pick(("passive", "passive", "passive", "plural", "coordinate", "complex"))
    if kind == "passive":
        return passive(d)
    d.adjectives = 0  # the predicate is adjective enough
    if kind == "plural":
        return predicate(d, noun_phrase(d, d.pick(COUNTED), SPECIFIC, plural=True))
    if kind == "coordinate":
        first = noun_phrase(d, d.pick(PEOPLE), SPECIFIC)
        subject = coordinate(first, noun_phrase(d, other_than(d, first.noun, PEOPLE), SPECIFIC))
        return predicate(d, subject, PERSONAL_STATES)
    part = noun_phrase(d, d.pick(PARTS), [DEFINITE])
    whole = noun_phrase(d, d.pick(BUILDINGS), SPECIFIC)
    pt, en = f"{part.pt} {contract('de', whole.pt)}", f"{part.en} of {whole.en}"
    return predicate(d, part._replace(pt=pt, en=en))


def passive(d: Draft) -> Text:
    verb = d.pick(PASSIVE)
    noun = d.pick(verb.objects)
    plural = "mass" not in noun.classes and d.chance(0.5)
    patient = noun_phrase(d, noun, SPECIFIC, plural)
    note_object(d, verb, patient)
    agent = noun_phrase(d, d.pick(PEOPLE), SPECIFIC)
    tense = d.pick(("past", "past", "past", "future"))
    rest = f"{verb.participle[patient.agreement]} {contract('por', agent.pt)}"
    rest = both((rest, f"{verb.en[3]} by {agent.en}"), time_maybe(d, tense))
    form = d.pick(("statement", "statement", "statement", "negative", "question"))
    return clause(COPULAS["passive"], tense, form, patient, rest)


def copula(d: Draft) -> Text:
    """ser for what something is, estar for its state and its place."""
    form = d.pick(("statement", "statement", "negative", "question"))
    tense = d.pick(("present", "present", "past"))
    kind = d.pick(("adjective", "adjective", "location", "profession"))
    if kind == "adjective":
        d.adjectives = 0
        if d.chance(0.3):
            subject = d.pick((EU, EU._replace(gender=1), VOCE, VOCE._replace(gender=1), ELE, ELA))
            return predicate(d, subject, PERSONAL_STATES)
        return predicate(d, noun_phrase(d, d.pick(DESCRIBED), SPECIFIC, plural=False))
    if kind == "location":
        np = person(d) if d.chance(0.4) else noun_phrase(d, d.pick(MOVABLE), SPECIFIC)
        spots = SPOTS if np.noun and "person" not in np.noun.classes else PLACES
        return clause(COPULAS["estar"], tense, form, np, place(d, spots))
    subject = d.pick((EU, EU._replace(gender=1), ELE, ELA, ELES, ELAS))
    if d.chance(0.8):
        subject = noun_phrase(d, d.pick(ADULTS), SPECIFIC)
    job = d.pick([job for job in JOBS if job.gender == subject.gender])
    en = job.en[subject.plural]
    rest = job.pt[subject.plural], en if subject.plural else with_article("a", en)
    return clause(COPULAS["ser"], tense, form, subject, rest)


def reference(d: Draft) -> Text:
    """A possessive or pronoun whose English gender hangs on a word some way back."""
    kind = d.pick(("possessive", "possessive", "clitic", "clitic", "reason"))
    if kind == "possessive":
        verb = d.pick(OWNING)
        tense, subject = tense_for(d, verb), antecedent(d)
        while subject.pronoun == "i":  # o meu is not a question of reference
            subject = antecedent(d)
        noun = d.pick(verb.objects)
        while noun is subject.noun or noun.classes & NOT_OWNED:
            noun = d.pick(verb.objects)
        own = PRONOUNS[subject.pronoun][2]
        seu = (("o seu", "a sua", "os seus", "as suas"), (own, own))
        np = noun_phrase(d, noun, [seu])
        note_object(d, verb, np)
        rest = both(governed(verb, np), setting(d, verb, tense))
        return clause(verb, tense, "statement", subject, rest)
    if kind == "clitic":
        first = BY_LEMMA[d.pick(("comprar", "encontrar", "ver", "encontrar", "ver", "preparar"))]
        np = noun_phrase(d, d.pick(first.objects))
        second = first
        while second is first:
            second = d.pick(FOLLOWING[np.noun.lemma])
        for verb in (first, second):
            note_object(d, verb, np)
        tense = d.pick(("past", "past", "present"))
        subject = person(d)
        pt, en = clause(first, tense, "statement", subject, governed(first, np))
        clitic = DEFINITE[0][np.agreement]
        them = PRONOUNS[np.pronoun][1]
        aux, main, fused = english(second, tense, subject)
        verb_pt = portuguese(second, tense, subject)
        if d.chance(0.25):
            return f"{pt}, mas não {clitic} {verb_pt}", f"{en}, but {aux} not {main} {them}"
        return f"{pt} e {clitic} {verb_pt}", f"{en} and {fused} {them}"
    past = d.chance(0.6)
    tense = "past" if past else "present"
    if d.chance(0.3):
        verb = d.pick(INTRANSITIVE)
        subject = np = noun_phrase(d, d.pick(PEOPLE), SPECIFIC)
        rest = setting(d, verb, tense)
    else:
        verb = BY_LEMMA[d.pick(("comprar", "vender", "querer", "procurar"))]
        np, subject = noun_phrase(d, d.pick(verb.objects)), person(d)
        note_object(d, verb, np)
        rest = governed(verb, np)
    pronoun = (ELE, ELA, ELES, ELAS)[np.agreement]
    pronoun = pronoun._replace(en=PRONOUNS[np.pronoun][0], pronoun=np.pronoun)
    pt, en = clause(verb, tense, "statement", subject, rest)
    why = predicate(d, pronoun, np.noun.states, past, "statement")
    return f"{pt} porque {why[0]}", f"{en} because {why[1]}"


def antecedent(d: Draft) -> NP:
    """The owner, sometimes behind another noun that tempts to the wrong gender."""
    if d.chance(0.35):
        return genitive(d, d.pick(RELATIONS), plural=d.chance(0.3))
    if d.chance(0.15):
        first = noun_phrase(d, d.pick(PEOPLE), SPECIFIC)
        return coordinate(first, noun_phrase(d, other_than(d, first.noun, PEOPLE), SPECIFIC))
    return person(d)


def sense(d: Draft) -> Text:
    """A purpose, at one end of the sentence, decides between the senses of a word at the other."""
    noun = d.pick(SENSES)
    verb = BY_LEMMA[d.pick(("procurar", "encontrar", "precisar", "querer"))]
    tense = tense_for(d, verb)
    np = noun_phrase(d, noun)
    note_object(d, verb, np)
    rest, subject = governed(verb, np), person(d)
    cue = d.pick(noun.cues)
    if d.chance(0.5):
        d.note("cue in front", noun.lemma, cue[0])
        pt, en = clause(verb, tense, "statement", subject, both(rest, time_maybe(d, tense)))
        return f"{cue[0]}, {pt}", f"{cue[1]}, {en}"
    return clause(verb, tense, "statement", subject, both(rest, setting(d, verb, tense), cue))


def number_words(n: int, gender: int) -> Text:
    if n in NUMBERS:
        pt, en = NUMBERS[n]
        return pt[gender * (len(pt) - 1)], en
    (tens_pt, tens_en), (pt, en) = number_words(n - n % 10, gender), number_words(n % 10, gender)
    return f"{tens_pt} e {pt}", f"{tens_en}-{en}"


def clock(d: Draft) -> Text:
    """às três e meia -> at half past three; às dez para as quatro -> at ten to four"""
    hour = d.pick(range(1, 13))
    if hour == 12:
        return d.pick((("ao meio-dia", "at noon"), ("à meia-noite", "at midnight")))
    pt, en = number_words(hour, 1)
    to = "a" if hour == 1 else "as"
    minutes = d.pick(("", "half", "past", "to"))
    quarter = ("quinze", "a quarter")
    count, count_en = d.pick(
        (number_words(5, 0), number_words(10, 0), quarter, number_words(20, 0))
    )
    if minutes == "to":
        pt, en = f"às {count} para {to} {pt}", f"at {count_en} to {en}"
    else:
        pt = f"{contract('a', to)} {pt}"
        if minutes == "half":
            pt, en = f"{pt} e meia", f"at half past {en}"
        elif minutes == "past":
            pt, en = f"{pt} e {count}", f"at {count_en} past {en}"
        else:
            en = f"at {en}"
    parts = [("da manhã", "in the morning")] if hour >= 5 else []
    parts += [("da tarde", "in the afternoon")] if hour <= 6 else []
    parts += [("da noite", "in the evening")] if 7 <= hour <= 10 else []
    if d.chance(0.5):
        return both((pt, en), d.pick(parts))
    return (pt, en) if minutes else (pt, f"{en} o'clock")


def date(d: Draft, tense: str) -> Text:
    """no dia 21 de maio de 1987 -> on may 21, 1987"""
    (month, month_en), day = d.pick(MONTHS), d.pick(range(2, 29))
    if tense != "past" or d.chance(0.3):
        return f"no dia {day} de {month}", f"on {month_en} {day}"
    year = d.pick(range(1900, 2025))
    return f"no dia {day} de {month} de {year}", f"on {month_en} {day}, {year}"


def small_number(d: Draft) -> int:
    return d.pick(range(2, 21)) if d.chance(0.5) else d.pick(range(21, 100))


def counted(d: Draft, noun: Noun) -> NP:
    """vinte e um livros -> twenty-one books; larger numbers are digits to copy"""
    n = small_number(d)
    count = number_words(n, noun.gender) if d.chance(0.7) else (str(n + 100), str(n + 100))
    pt, en = both(count, nominal(d, noun, True))
    return NP(pt, en, noun.gender, True, "they", noun)


def number(d: Draft) -> Text:
    """Numbers, ages, prices, times and dates."""
    kind = d.pick(("count", "count", "clock", "clock", "date", "date", "age", "price"))
    if kind == "age":
        count, subject = number_words(small_number(d), 0), person(d)
        has = ("tenho", "tem", "têm")[subject.person]
        pt = f"{subject.pt} {has} {count[0]} anos"
        return pt, f"{subject.en} {BE[subject.en_person]} {count[1]} years old"
    if kind == "price":
        np, price = noun_phrase(d, d.pick(PRICED), SPECIFIC), str(d.pick(range(2, 1000)))
        return clause(CUSTAR, "present", "statement", np, (f"{price} reais", f"{price} reais"))
    verb = d.pick(DIRECT if kind == "count" else DIRECT + INTRANSITIVE)
    tense = tense_for(d, verb)
    if kind == "count" and verb.lemma != "beber":
        np = counted(d, d.pick([noun for noun in verb.objects if "mass" not in noun.classes]))
        note_object(d, verb, np)
        rest = both(governed(verb, np), time_maybe(d, tense))
        return clause(verb, tense, "statement", subject_of(d, verb), rest)
    if tense == "progressive" or (kind == "date" and tense == "present"):
        tense = "past"
    when = clock(d) if kind == "clock" else date(d, tense)
    pt, en = clause(verb, tense, "statement", subject_of(d, verb), complement(d, verb))
    if d.chance(0.3):
        return f"{when[0]}, {pt}", f"{when[1]}, {en}"
    return both((pt, en), when)


SENTENCES: dict[str, Callable[[Draft], Text]] = {
    function.__name__: function
    for function in (
        agreement,
        order,
        copula,
        tense,
        negation,
        question,
        contraction,
        relative,
        reference,
        sense,
        number,
    )
}
TAGS = list(SENTENCES)


# --- splits --------------------------------------------------------------------------------------


def split_of(source: str, features: list[tuple[str, ...]]) -> str:
    if held_out(features):
        return "compositional"
    bucket = zlib.crc32(source.encode()) % 100
    return "train" if bucket < 90 else "validation" if bucket < 95 else "test"


def generate(split: str, size: int | None = None, seed: int = 0) -> list[Pair]:
    """`size` pairs of a split, distinct in source; a smaller size is a prefix of a larger one."""
    if split not in SIZES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SIZES)}")
    size = SIZES[split] if size is None else size
    if not 0 <= size <= LIMITS[split]:
        raise ValueError(f"split {split!r} can have 0 to {LIMITS[split]} pairs, not {size}")
    rng = Random(f"mini/{split}/{seed}")
    pairs: dict[str, Pair] = {}
    while len(pairs) < size:
        tag = TAGS[int(rng.random() * len(TAGS))]
        # Sentences are drawn until one belongs here, which gives every tag the same share.
        while True:
            draft = Draft(rng)
            source, target = SENTENCES[tag](draft)
            if split_of(source, draft.features) == split and source not in pairs:
                break
        pairs[source] = Pair(source, target, tag)
    return list(pairs.values())
