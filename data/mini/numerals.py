"""Numbers, times and dates in both languages, and sentences with them."""

from data.mini import lexicon
from data.mini.clauses import BE, clause, complement, governed, maybe_time, tense_for
from data.mini.lexicon import Noun, Verb
from data.mini.phrases import (
    NP,
    Draft,
    Text,
    both,
    contract,
    headed,
    nominal,
    noun_phrase,
    other_person,
    person,
    subject_of,
)


def number_words(n: int, gender: int) -> Text:
    """Spell out a number before a noun of this gender: 21 → vinte e um or uma, twenty-one."""
    if n in lexicon.NUMBERS:
        pt, en = lexicon.NUMBERS[n]
        return pt[-1] if gender else pt[0], en  # one form for both genders, or two
    (tens_pt, tens_en), (pt, en) = number_words(n - n % 10, gender), number_words(n % 10, gender)
    return f"{tens_pt} e {pt}", f"{tens_en}-{en}"


def small_number(d: Draft) -> int:
    """Draw a number from 2 to 99, half of them up to 20."""
    return d.pick(range(2, 21)) if d.chance(0.5) else d.pick(range(21, 100))


def counted(d: Draft, noun: Noun, few: bool = False) -> NP:
    """Draw a counted noun: vinte livros → twenty books. Numbers over 100 are in digits.

    few: at most ten, in words, so that each of them can occur in training with a capital letter.
    """
    n = d.pick(range(2, 11)) if few else small_number(d)
    in_words = few or d.chance(0.7)
    count = number_words(n, noun.gender) if in_words else (str(n + 100), str(n + 100))
    return headed(noun, True, *both(count, nominal(d, noun, True)))


MINUTES = [number_words(5, 0), number_words(10, 0), ("quinze", "a quarter"), number_words(20, 0)]


def clock(d: Draft) -> Text:
    """Draw a time: às três e meia → at half past three; às dez para as seis → at ten to six."""
    hour = d.pick(range(1, 13))
    if hour == 12:
        return d.pick((("ao meio-dia", "at noon"), ("à meia-noite", "at midnight")))
    pt, en = number_words(hour, 1)
    pt = f"a {pt}" if hour == 1 else f"as {pt}"
    minutes = d.pick(("", "half", "past", "to"))
    count, count_en = d.pick(MINUTES)
    if minutes == "to":
        pt, en = f"às {count} para {pt}", f"at {count_en} to {en}"
    else:
        pt = contract("a", pt)
        if minutes == "half":
            pt, en = f"{pt} e meia", f"at half past {en}"
        elif minutes == "past":
            pt, en = f"{pt} e {count}", f"at {count_en} past {en}"
        else:
            en = f"at {en}"
    parts = []
    if hour >= 5:
        parts.append(("da manhã", "in the morning"))
    if hour <= 6:
        parts.append(("da tarde", "in the afternoon"))
    if 7 <= hour <= 10:
        parts.append(("da noite", "in the evening"))
    if d.chance(0.5):
        return both((pt, en), d.pick(parts))
    return pt, en if minutes else f"{en} o'clock"


def date(d: Draft, tense: str) -> Text:
    """Draw a date, in the past mostly with a year: no dia 2 de maio de 1987 → on May 2, 1987."""
    (month, month_en), day = d.pick(lexicon.MONTHS), d.pick(range(2, 29))
    if tense != "past" or d.chance(0.3):
        return f"no dia {day} de {month}", f"on {month_en} {day}"
    year = d.pick(range(1900, 2025))
    return f"no dia {day} de {month} de {year}", f"on {month_en} {day}, {year}"


def number(d: Draft) -> Text:
    """Draw a sentence with counted things, a time, a date, an age or a price."""
    kind = d.pick(("count", "count", "clock", "clock", "date", "date", "age", "price"))
    if kind == "age":
        return age(d)
    if kind == "price":
        return price(d)
    verb = d.pick(lexicon.DIRECT if kind == "count" else lexicon.DIRECT + lexicon.INTRANSITIVE)
    tense = tense_for(d, verb)
    if kind == "count" and verb.lemma != "beber":  # drinks are not counted
        return count(d, verb, tense)
    if tense == "progressive" or (kind == "date" and tense == "present"):
        tense = "past"
    when = clock(d) if kind == "clock" else date(d, tense)
    subject = subject_of(d, verb)
    pt, en = clause(verb, tense, "statement", subject, complement(d, verb))
    if d.chance(0.3):
        return f"{when[0]}, {pt}", f"{when[1]}, {en}"
    return both((pt, en), when)


def age(d: Draft) -> Text:
    """Draw an age: ela tem vinte anos → she is twenty years old."""
    (pt, en), subject = number_words(small_number(d), 0), person(d)
    has = ("tenho", "tem", "têm")[subject.person]
    be = BE[subject.en_person]
    return f"{subject.pt} {has} {pt} anos", f"{subject.en} {be} {en} years old"


def price(d: Draft) -> Text:
    """Draw a price: a bola custa 20 reais → the ball costs 20 reais."""
    np = noun_phrase(d, d.pick(lexicon.PRICED), lexicon.SPECIFIC)
    reais = f"{d.pick(range(2, 1000))} reais"
    return clause(lexicon.CUSTAR, "present", "statement", np, (reais, reais))


def count(d: Draft, verb: Verb, tense: str) -> Text:
    """Draw a sentence with a counted object: a menina leu dois livros → the girl read two books."""
    noun = d.pick([noun for noun in verb.objects if "mass" not in noun.classes])
    rest = both(governed(d, verb, counted(d, noun)), maybe_time(d, tense))
    subject = subject_of(d, verb)
    if subject.noun and d.chance(0.5):
        subject = counted(d, other_person(d, noun), few=True)
        d.note("counted subject", subject.noun.lemma)
    return clause(verb, tense, "statement", subject, rest)
