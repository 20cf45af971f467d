"""The sentences of `mini` in both languages: one function per tag."""

from collections.abc import Sequence

from data.mini import lexicon
from data.mini.clauses import (
    clause,
    complement,
    english,
    governed,
    maybe_time,
    note_object,
    portuguese,
    relative_clause,
    setting,
    tense_for,
)
from data.mini.lexicon import Adjective, Verb
from data.mini.numerals import number
from data.mini.phrases import (
    EU,
    EU_FEMALE,
    NP,
    SINGULAR,
    THEIR,
    THEM,
    THIRD_PERSON,
    Draft,
    Text,
    both,
    contract,
    genitive,
    noun_phrase,
    person,
    place,
    subject_of,
    two_people,
    with_article,
)

# ---- order, tense, negation ---------------------------------------------------------------------


def order(d: Draft) -> Text:
    """Draw a sentence in which only the position of an adjective shows which noun it modifies."""
    d.adjectives, d.eager = 4, True
    return simple(d, lexicon.DIRECT)


def tense(d: Draft) -> Text:
    """Draw a statement in any tense."""
    return simple(d, lexicon.DIRECT + lexicon.INTRANSITIVE)


def negation(d: Draft) -> Text:
    """Draw a statement with não, for which English needs an auxiliary, or with nunca."""
    return simple(d, lexicon.VERBS, d.pick(("negative", "negative", "never")))


def simple(d: Draft, verbs: list[Verb], form: str = "statement") -> Text:
    """Draw a sentence with one of the verbs: subject, complement, place and time."""
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
    left, subject = d.adjectives, subject_of(d, verb)
    if left - d.adjectives == 2:
        d.note("two adjectives on subject", subject.noun.lemma)
    return clause(verb, tense, form, subject, rest)


# ---- question -----------------------------------------------------------------------------------


def question(d: Draft) -> Text:
    """Draw a yes-no question, or one about the place, time, reason, object or subject."""
    wh = d.pick(("", "", "onde", "quando", "por que", "o que", "quem"))
    verbs = {"o que": lexicon.DIRECT, "onde": lexicon.NOT_MOVING}.get(wh, lexicon.VERBS)
    verb = d.pick(verbs)
    tense = tense_for(d, verb)
    form = "negative question" if wh in ("", "por que") and d.chance(0.15) else "question"
    d.negated = form == "negative question"
    d.note("verb+form", verb.lemma, tense, f"{wh} {form}")
    if wh == "o que":
        personal = all("person" in noun.classes for noun in verb.objects)
        words = ("quem", "who") if personal else ("o que", "what")
        return clause(verb, tense, form, asked(d, verb), maybe_time(d, tense), words)
    rest = complement(d, verb)
    if wh in ("", "quem"):
        rest = both(rest, setting(d, verb, tense))
    elif wh != "quando":  # a question about the time
        rest = both(rest, maybe_time(d, tense))
    if wh == "quem":
        # A question about the subject has the word order of a statement, without auxiliary.
        pt, en = clause(verb, tense, "statement", NP("quem", "who", 0, False, "he"), rest)
        return pt + "?", en + "?"
    words = wh, {"": "", "onde": "where", "quando": "when", "por que": "why"}[wh]
    return clause(verb, tense, form, asked(d, verb), rest, words)


def asked(d: Draft, verb: Verb) -> NP:
    """Draw the subject of a question, sometimes with a relative clause."""
    subject = subject_of(d, verb)
    if subject.noun and "person" in subject.noun.classes and d.chance(0.2):
        d.note("relative in question", subject.noun.lemma)
        subject = relative_clause(d, subject)
    return subject


# ---- contraction, relative ----------------------------------------------------------------------


def contraction(d: Draft) -> Text:
    """Draw a sentence in which de, em, a or por contracts with the next word."""
    verbs = d.pick((lexicon.DIRECT, *[lexicon.PREPOSITIONAL] * 3, lexicon.DITRANSITIVE))
    verb = d.pick(verbs)
    tense = tense_for(d, verb)
    owned = verbs is lexicon.DIRECT or (not verb.moving and d.chance(0.4))
    rest = complement(d, verb, owned)
    subject = subject_of(d, verb)
    return clause(verb, tense, "statement", subject, both(rest, setting(d, verb, tense)))


def relative(d: Draft) -> Text:
    """Draw a sentence with a relative clause on its subject or its object."""
    verb = d.pick(lexicon.DIRECT)
    tense = tense_for(d, verb)
    if d.chance(0.5):
        subject = relative_clause(d, noun_phrase(d, d.pick(lexicon.PEOPLE), lexicon.SPECIFIC))
        return clause(verb, tense, "statement", subject, complement(d, verb))
    np = noun_phrase(d, d.pick_where(lambda noun: lexicon.TAKERS[noun.lemma], verb.objects))
    subject = person(d)
    return clause(verb, tense, "statement", subject, governed(d, verb, relative_clause(d, np)))


# ---- agreement, copula --------------------------------------------------------------------------


def predicate(
    d: Draft,
    subject: NP,
    states: Sequence[tuple[str, Adjective]] | None = None,
    tense: str = "",
    form: str = "",
) -> Text:
    """Draw a sentence with a copula and an adjective that agrees with its subject."""
    be, adjective = d.pick(states or subject.noun.states)
    if subject.noun:
        d.note("adjective+noun", adjective.lemma, subject.noun.lemma)
    tense = tense or ("past" if d.chance(0.4) else "present")
    form = form or d.pick(("statement", "statement", "negative", "question"))
    rest = adjective.pt[subject.agreement], adjective.en
    return clause(lexicon.COPULAS[be], tense, form, subject, rest)


def agreement(d: Draft) -> Text:
    """Draw a predicate that agrees with a plural, coordinate or complex subject, or a passive."""
    kind = d.pick(("passive", "passive", "passive", "plural", "coordinate", "complex"))
    if kind == "passive":
        return passive(d)
    d.adjectives = 0
    if kind == "plural":
        noun = d.pick(lexicon.COUNTED)
        return predicate(d, noun_phrase(d, noun, lexicon.SPECIFIC, plural=True))
    if kind == "coordinate":
        return predicate(d, two_people(d), lexicon.PERSONAL_STATES)
    part = noun_phrase(d, d.pick(lexicon.PARTS), [lexicon.DEFINITE])
    whole = noun_phrase(d, d.pick(lexicon.BUILDINGS), lexicon.SPECIFIC)
    pt, en = f"{part.pt} {contract('de', whole.pt)}", f"{part.en} of {whole.en}"
    return predicate(d, part._replace(pt=pt, en=en))


def passive(d: Draft) -> Text:
    """Draw a passive with agent: o bolo foi vendido pela tia → the cake was sold by the aunt."""
    verb = d.pick(lexicon.PASSIVE)
    noun = d.pick(verb.objects)
    plural = "mass" not in noun.classes and d.chance(0.5)
    patient = noun_phrase(d, noun, lexicon.SPECIFIC, plural)
    note_object(d, verb, patient)
    agent = noun_phrase(d, d.pick(lexicon.PEOPLE), lexicon.SPECIFIC)
    tense = d.pick(("past", "past", "past", "future"))
    done = verb.participle[patient.agreement], verb.en[3]
    by = contract("por", agent.pt), f"by {agent.en}"
    rest = both(done, by, maybe_time(d, tense))
    form = d.pick(("statement", "statement", "statement", "negative", "question"))
    return clause(lexicon.COPULAS["passive"], tense, form, patient, rest)


def copula(d: Draft) -> Text:
    """Draw a sentence with ser, for what something is, or estar, for its state or place."""
    form = d.pick(("statement", "statement", "negative", "question"))
    tense = d.pick(("present", "present", "past"))
    kind = d.pick(("adjective", "adjective", "location", "profession"))
    if kind == "adjective":
        d.adjectives = 0
        if d.chance(0.3):
            return predicate(d, d.pick(SINGULAR), lexicon.PERSONAL_STATES)
        noun = d.pick(lexicon.DESCRIBED)
        return predicate(d, noun_phrase(d, noun, lexicon.SPECIFIC, plural=False))
    if kind == "location":
        if d.chance(0.4):
            subject, spots = person(d), lexicon.PLACES
        else:
            noun = d.pick(lexicon.MOVABLE)
            subject, spots = noun_phrase(d, noun, lexicon.SPECIFIC), lexicon.SPOTS
        return clause(lexicon.COPULAS["estar"], tense, form, subject, place(d, spots))
    subject = d.pick((EU, EU_FEMALE, *THIRD_PERSON))
    if d.chance(0.8):
        subject = noun_phrase(d, d.pick(lexicon.ADULTS), lexicon.SPECIFIC)
    job = d.pick([job for job in lexicon.JOBS if job.gender == subject.gender])
    en = job.en[subject.plural]
    rest = job.pt[subject.plural], en if subject.plural else with_article("a", en)
    return clause(lexicon.COPULAS["ser"], tense, form, subject, rest)


# ---- reference, sense ---------------------------------------------------------------------------


def reference(d: Draft) -> Text:
    """Draw a sentence in which the gender of an English pronoun depends on an earlier word."""
    return d.pick((possessive, possessive, clitic, clitic, reason))(d)


def possessive(d: Draft) -> Text:
    """Draw a possessive, which in English agrees with its owner: o seu livro → his, her book."""
    verb = d.pick(lexicon.OWNING)
    tense, subject = tense_for(d, verb), owner(d)
    while subject.pronoun == "I":  # o meu is not ambiguous
        subject = owner(d)
    noun = d.pick_where(lambda noun: noun is not subject.noun and noun.ownable, verb.objects)
    their = THEIR[subject.pronoun]
    seu = lexicon.Determiner(["o seu", "a sua", "os seus", "as suas"], [their, their])
    rest = both(governed(d, verb, noun_phrase(d, noun, [seu])), setting(d, verb, tense))
    return clause(verb, tense, "statement", subject, rest)


def owner(d: Draft) -> NP:
    """Draw an owner, sometimes next to another noun, which may have another gender."""
    if d.chance(0.35):
        return genitive(d, d.pick(lexicon.RELATIONS))
    return two_people(d) if d.chance(0.15) else person(d)


def clitic(d: Draft) -> Text:
    """Draw an object pronoun: ela comprou o pão e o comeu → she bought the bread and ate it."""
    lemma = d.pick(("comprar", "encontrar", "ver", "encontrar", "ver", "preparar"))
    first = lexicon.BY_LEMMA[lemma]
    np = noun_phrase(d, d.pick(first.objects))
    second = d.pick_where(lambda verb: verb is not first, lexicon.FOLLOWING[np.noun.lemma])
    note_object(d, second, np)
    tense = d.pick(("past", "past", "present"))
    subject = person(d)
    pt, en = clause(first, tense, "statement", subject, governed(d, first, np))
    then = portuguese(second, tense, subject)
    aux, main, fused = english(second, tense, subject)
    o, them = lexicon.DEFINITE.pt[np.agreement], THEM[np.pronoun]  # a pronoun
    if d.chance(0.25):
        return f"{pt}, mas não {o} {then}", f"{en}, but {aux} not {main} {them}"
    return f"{pt} e {o} {then}", f"{en} and {fused} {them}"


def reason(d: Draft) -> Text:
    """Draw a subject pronoun: ele quer a saia porque ela é nova → … because it is new."""
    tense = "past" if d.chance(0.6) else "present"
    if d.chance(0.3):
        verb = d.pick(lexicon.INTRANSITIVE)
        subject = np = noun_phrase(d, d.pick(lexicon.PEOPLE), lexicon.SPECIFIC)
        rest = setting(d, verb, tense)
    else:
        verb = lexicon.BY_LEMMA[d.pick(("comprar", "vender", "querer", "procurar"))]
        np, subject = noun_phrase(d, d.pick(verb.objects)), person(d)
        rest = governed(d, verb, np)
    main = clause(verb, tense, "statement", subject, rest)
    it = THIRD_PERSON[np.agreement]._replace(en=np.pronoun, pronoun=np.pronoun, noun=np.noun)
    why = predicate(d, it, np.noun.states, tense, "statement")
    return both(main, ("porque", "because"), why)


def sense(d: Draft) -> Text:
    """Draw a word with two senses, and a purpose that selects one of them."""
    noun = d.pick(lexicon.SENSES)
    verb = lexicon.BY_LEMMA[d.pick(("procurar", "encontrar", "precisar", "querer"))]
    tense = tense_for(d, verb)
    rest, subject = governed(d, verb, noun_phrase(d, noun)), person(d)
    cue = d.pick(noun.cues)
    if d.chance(0.5):
        d.note("cue in front", noun.lemma, cue[0])
        pt, en = clause(verb, tense, "statement", subject, both(rest, maybe_time(d, tense)))
        return f"{cue[0]}, {pt}", f"{cue[1]}, {en}"
    return clause(verb, tense, "statement", subject, both(rest, setting(d, verb, tense), cue))


# The generated sentences depend on this order.
TAGGED = [agreement, order, copula, tense, negation, question]
TAGGED += [contraction, relative, reference, sense, number]
SENTENCES = {function.__name__: function for function in TAGGED}
