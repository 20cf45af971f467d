"""The built-in corpus `mini`: a small Portuguese-English grammar that writes its own parallel text.

The grammar builds each phrase in both languages at once, so every translation is correct by
construction, and each pair carries the tag of the phenomenon it is about (`TAGS`):

    order      o menino comprou o carro vermelho novo    the boy bought the new red car
    reference  a professora perdeu o seu livro           the teacher lost her book
    sense      para pagar a conta, ela procura o banco   to pay the bill, she looks for the bank

While it builds, the grammar notes the *features* of a sentence (this verb with that object, ...).
Some features are held out (`HELD_OUT`): the pairs that carry one make up the split `compositional`,
whose words are all known from training but were never combined in this way. A hash of the source
text sends every other pair to train, validation or test, so no pair can be in two splits.

    lexicon.tsv, lexicon.py   the words: their forms, and which go together
    phrases.py                noun phrases, and the draft that a sentence grows in
    clauses.py                verbs, what follows them, and relative clauses
    numerals.py               numbers, times and dates
    sentences.py              one function for each tag
"""

import zlib
from functools import cache
from random import Random
from typing import NamedTuple

from data.mini.phrases import Draft
from data.mini.sentences import SENTENCES

SIZES = {"train": 16000, "validation": 1000, "test": 1000, "compositional": 1000}
LIMITS = {"train": 1_000_000, "validation": 50_000, "test": 50_000, "compositional": 100_000}
TAGS = list(SENTENCES)

# One in how many combinations of each kind never occurs outside `compositional`; 0 switches a kind
# off. A structure is held out as a whole when its name is listed.
HELD_OUT = {
    "adjective+noun": 24,  # this adjective with this noun
    "verb+object": 24,  # this verb with this noun as its object
    "verb+form": 6,  # this verb in this tense and kind of negation or question
    "plural object": 20,  # this noun as an object in the plural
    "cue in front": 5,  # this purpose at the front of the sentence, for `sense`
}
HELD_OUT_STRUCTURES = {
    "adjective in relative",
    "counted subject",
    "negated relative",
    "relative in question",
    "two adjectives on subject",
}


class Pair(NamedTuple):
    """A Portuguese sentence, its English translation and the tag of what the two exercise."""

    source: str
    target: str
    tag: str


@cache
def is_held_out(feature: tuple[str, ...]) -> bool:
    """Does every sentence with this feature belong to the compositional split?"""
    kind, *names = feature
    if kind == "structure":
        return names[0] in HELD_OUT_STRUCTURES
    return HELD_OUT[kind] > 0 and zlib.crc32(" ".join(feature).encode()) % HELD_OUT[kind] == 0


def split_of(source: str, features: list[tuple[str, ...]]) -> str:
    """The one split that a sentence with this text and these features can be in."""
    if any(map(is_held_out, features)):
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
