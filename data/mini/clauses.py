"""Clauses in both languages: verbs with subjects and complements, and relative clauses.

A tense is present, past, future or progressive. A form is statement, negative, never, question or
negative question.
"""

from data.mini import lexicon
from data.mini.lexicon import Verb
from data.mini.phrases import (
    EMPTY,
    NP,
    Draft,
    Text,
    both,
    contract,
    genitive,
    join,
    noun_phrase,
    person,
    place,
)

BE = ("am", "is", "are")


def tense_for(d: Draft, verb: Verb) -> str:
    """Draw a tense that the verb allows."""
    tense = d.pick(("present", "past", "past", "future", "progressive"))
    if tense == "progressive" and "stative" in verb.grammar:
        return "present"
    if tense == "future" and "nofuture" in verb.grammar:
        return "past"
    return tense


def portuguese(verb: Verb, tense: str, subject: NP) -> str:
    """Inflect a Portuguese verb for its subject: comprou, vai comprar, está comprando."""
    if tense == "future":
        return f"{lexicon.BY_LEMMA['ir'].finite['present'][subject.person]} {verb.infinitive}"
    if tense == "progressive":
        return f"{lexicon.COPULAS['estar'].finite['present'][subject.person]} {verb.gerund}"
    return verb.finite[tense][subject.person]


def english(verb: Verb, tense: str, subject: NP) -> tuple[str, str, str]:
    """Return auxiliary, main verb, and the form in a statement: did, buy, bought."""
    base, third, past, _, ing = verb.en
    if tense == "future":
        return "will", base, f"will {base}"
    be = BE[subject.en_person]
    if base == "be":
        be = be if tense == "present" else ("was", "was", "were")[subject.en_person]
        return be, "", be
    if tense == "progressive":
        return be, ing, f"{be} {ing}"
    if tense == "past":
        return "did", base, past
    return ("does", base, third) if be == "is" else ("do", base, base)


def clause(verb: Verb, tense: str, form: str, subject: NP, rest: Text, wh: Text = EMPTY) -> Text:
    """Build a clause. rest: what follows the verb. wh: the question word."""
    aux, main, fused = english(verb, tense, subject)
    negative = "negative" in form
    negation = "não" if negative else "nunca" if form == "never" else ""
    pt = join(wh[0], subject.pt, negation, portuguese(verb, tense, subject), rest[0])
    if "question" in form:
        en = join(wh[1], aux, subject.en, "not" if negative else "", main, rest[1])
        return pt + "?", en + "?"
    if negative:
        return pt, join(subject.en, aux, "not", main, rest[1])
    if form == "never":
        fused = f"will never {main}" if tense == "future" else f"never {fused}"
    return pt, join(subject.en, fused, rest[1])


def note_object(d: Draft, verb: Verb, np: NP) -> None:
    """Record the features of a verb and its object."""
    d.note("verb+object", verb.lemma, np.noun.lemma)
    if np.plural and not np.noun.cues:  # words with two senses occur as objects only
        d.note("plural object", np.noun.lemma)


def governed(d: Draft, verb: Verb, np: NP) -> Text:
    """Return the object with the verb's preposition, which in English is part of the verb."""
    note_object(d, verb, np)
    return contract(verb.preposition, np.pt) if verb.preposition else np.pt, np.en


def complement(d: Draft, verb: Verb, owned: bool = False) -> Text:
    """Draw the complement of a verb: nothing, an object, or an object and a recipient."""
    if not verb.objects:
        return EMPTY
    if owned:
        np = genitive(d, d.pick_where(lambda noun: noun.ownable, verb.objects))
    else:
        np = noun_phrase(d, d.pick(verb.objects))
    pt, en = governed(d, verb, np)
    if "to" in verb.grammar:
        recipient = noun_phrase(d, d.pick(lexicon.PEOPLE), lexicon.SPECIFIC)
        pt, en = f"{pt} {contract('a', recipient.pt)}", f"{en} to {recipient.en}"
    return pt, en


def setting(d: Draft, verb: Verb, tense: str) -> Text:
    """Draw the place, unless the verb is one of movement, and the time at the end of a clause."""
    where = place(d, lexicon.PLACES) if not verb.moving and d.chance(0.25) else EMPTY
    return both(where, d.pick(lexicon.ADVERBS[tense])) if d.chance(0.35) else where


def maybe_time(d: Draft, tense: str) -> Text:
    """Draw a time, or nothing."""
    return d.pick(lexicon.ADVERBS[tense]) if d.chance(0.3) else EMPTY


def relative_clause(d: Draft, np: NP) -> NP:
    """Add a relative clause to a noun phrase, which is its subject or its object."""
    d.relative = True
    if "person" in np.noun.classes and d.chance(0.5):
        pt, en = subject_relative(d, np)
    else:
        pt, en = object_relative(d, np)
    d.relative = False
    return np._replace(pt=f"{np.pt} {pt}", en=f"{np.en} {en}")


def subject_relative(d: Draft, np: NP) -> Text:
    """Draw a relative clause about a subject: que viu a menina → who saw the girl."""
    verb = d.pick(lexicon.TRANSITIVE)
    tense, form = tense_for(d, verb), "statement"
    if d.chance(0.2):
        form = "negative"
        d.note("negated relative", verb.lemma)
    gap = NP("que", "who", np.gender, np.plural, np.pronoun)
    return clause(verb, tense, form, gap, complement(d, verb))


def object_relative(d: Draft, np: NP) -> Text:
    """Draw a clause about an object: com quem a menina falou → that the girl talked to."""
    verb = d.pick(lexicon.TAKERS[np.noun.lemma])
    note_object(d, verb, np)
    subject = person(d)
    while subject.noun is np.noun:
        subject = person(d)
    pt, en = clause(verb, tense_for(d, verb), "statement", subject, EMPTY)
    whom = "quem" if verb.preposition and "person" in np.noun.classes else "que"
    return join(verb.preposition, whom, pt), f"that {en}"
