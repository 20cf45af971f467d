"""The corpus `mini`: disjoint splits, unique translations, correct grammar."""

import re
import sys
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from data import mini  # noqa: E402
from data.mini import lexicon, numerals, phrases  # noqa: E402

SPLITS = list(mini.SIZES)
PINNED = 2383496968  # crc32 of the default training split


@cache
def corpus(split):
    return mini.generate(split)


@cache
def drafts():
    """Sentences of the grammar, before they are assigned to splits."""
    rng, sentences = Random("drafts"), []
    for i in range(60_000):
        draft, tag = mini.Draft(rng), mini.TAGS[i % len(mini.TAGS)]
        source, target = mini.SENTENCES[tag](draft)
        sentences.append((source, target, tag, mini.split_of(source, draft.features)))
    return sentences


def words(text):
    return set(re.findall(r"[^\W\d]+", text))


class WishfulDraft(mini.Draft):
    """A draft that prefers certain options, to generate a certain sentence."""

    def __init__(self, rng, wishes):
        super().__init__(rng)
        self.wishes = wishes

    def pick(self, options):
        wanted = [o for o in options if self.names(o) & self.wishes]
        # Not always, because the grammar draws until two people differ.
        return super().pick(wanted if wanted and self.chance(0.9) else options)

    def names(self, option):
        if hasattr(option, "lemma"):
            return {option.lemma}
        if isinstance(option, phrases.NP):
            return {option.pt}
        if isinstance(option, tuple) and isinstance(option[0], list):
            return set(option[0])  # the Portuguese forms of a determiner
        if isinstance(option, tuple | list):
            return set().union(*map(self.names, option))
        return {option}


def test_the_default_training_split_is_unchanged():
    text = "\n".join("\t".join(pair) for pair in corpus("train"))
    assert zlib.crc32(text.encode()) == PINNED


@pytest.mark.parametrize("split", SPLITS)
def test_a_smaller_size_is_a_prefix_of_a_larger_one(split):
    assert mini.generate(split, 200) == corpus(split)[:200]


def test_another_seed_generates_other_pairs():
    assert mini.generate("train", 50, seed=1) != mini.generate("train", 50, seed=2)


@pytest.mark.parametrize("split", SPLITS)
def test_splits_have_their_size_and_distinct_sources(split):
    assert len({pair.source for pair in corpus(split)}) == mini.SIZES[split] == len(corpus(split))


def test_unknown_splits_and_invalid_sizes_are_rejected():
    with pytest.raises(ValueError, match=str(mini.LIMITS["test"])):
        mini.generate("test", mini.LIMITS["test"] + 1)
    with pytest.raises(ValueError, match="unknown split"):
        mini.generate("dev")


def test_no_source_is_in_two_splits_also_with_other_seeds():
    split_of = {}
    for split in SPLITS:
        for pair in [*corpus(split), *mini.generate(split, 500, seed=1)]:
            key = pair.source.lower().removesuffix(".")  # however it is written
            assert split_of.setdefault(key, split) == split


def test_each_source_has_one_target_one_tag_and_one_split():
    first = {}
    for source, *rest in drafts():
        assert first.setdefault(source, rest) == rest


@pytest.mark.parametrize("split", ["validation", "test", "compositional"])
@pytest.mark.parametrize("tag", mini.TAGS)
def test_tags_are_about_equally_frequent(split, tag):
    frequency = sum(pair.tag == tag for pair in corpus(split)) / len(corpus(split))
    assert 0.06 < frequency < 0.13


def test_every_word_of_the_compositional_split_occurs_in_training():
    for side in (0, 1):
        train, test = (
            set().union(*(words(pair[side]) for pair in corpus(split)))
            for split in ("train", "compositional")
        )
        assert test <= train


def test_every_kind_of_held_out_combination_occurs():
    kinds, rng = Counter(), Random("kinds")
    for i in range(20_000):
        draft = mini.Draft(rng)
        mini.SENTENCES[mini.TAGS[i % len(mini.TAGS)]](draft)
        held = {f for f in draft.features if mini.is_held_out(f)}
        kinds.update({kind for kind, *_ in held})
    assert set(kinds) == set(mini.HELD_OUT)
    assert min(kinds.values()) > 0.005 * kinds.total()


@pytest.mark.parametrize("split", ["train", "compositional"])
def test_lengths_are_those_of_short_sentences(split):
    for side in (0, 1):
        lengths = sorted(len(pair[side].split()) for pair in corpus(split))
        assert 7 <= sum(lengths) / len(lengths) <= 10
        assert lengths[len(lengths) // 50] >= 3 and lengths[-len(lengths) // 50] <= 16


EXPECTED = [
    ("tense", "o menino lê um livro", "the boy reads a book"),
    ("tense", "a mulher vai abrir a janela amanhã", "the woman will open the window tomorrow"),
    ("question", "o menino lê um livro?", "does the boy read a book?"),
    ("question", "onde a menina comprou o pão?", "where did the girl buy the bread?"),
    ("question", "quem comprou o pão?", "who bought the bread?"),
    ("negation", "o menino não leu o livro", "the boy did not read the book"),
    ("agreement", "as meninas estão cansadas", "the girls are tired"),
    ("agreement", "a janela foi aberta pelo menino", "the window was opened by the boy"),
    (
        "order",
        "o bom professor comprou o carro vermelho novo",
        "the good teacher bought the new red car",
    ),
    ("copula", "a maçã é verde", "the apple is green"),
    ("copula", "a maçã está verde", "the apple is unripe"),
    ("copula", "a mulher é médica", "the woman is a doctor"),
    ("copula", "o livro está na mesa", "the book is on the table"),
    ("contraction", "ele precisa desta chave", "he needs this key"),
    ("contraction", "o homem deu a flor à menina", "the man gave the flower to the girl"),
    ("contraction", "ela comprou o carro dele", "she bought his car"),
    ("relative", "o menino que viu a menina comeu o bolo", "the boy who saw the girl ate the cake"),
    ("relative", "ela perdeu o livro que a menina leu", "she lost the book that the girl read"),
    ("reference", "o menino perdeu o seu livro", "the boy lost his book"),
    ("reference", "a menina perdeu o seu livro", "the girl lost her book"),
    ("reference", "a menina comprou o pão e o comeu", "the girl bought the bread and ate it"),
    ("sense", "para pagar a conta, ela procura o banco", "to pay the bill, she looks for the bank"),
    (
        "sense",
        "ela procura o banco para descansar um pouco",
        "she looks for the bench to rest a little",
    ),
    ("number", "a menina comprou vinte e um livros", "the girl bought twenty-one books"),
    ("number", "a mulher cantou às três e meia", "the woman sang at half past three"),
    ("number", "ela dançou no dia 21 de maio de 1987", "she danced on May 21, 1987"),
]


@pytest.mark.parametrize("tag, source, target", EXPECTED)
def test_translations_of_given_sources(tag, source, target):
    assert translate(tag, source) == target


def translate(tag, source):
    """Generate sentences with the words of a source until the source is among them."""
    wishes = words(source)
    for verb in lexicon.VERBS:
        for tense, forms in [*verb.finite.items(), ("future", [verb.infinitive])]:
            if words(source) & set(forms):
                wishes |= {verb.lemma, tense}
        if words(source) & set(verb.participle):
            wishes |= {verb.lemma, "past", "passive"}
    for word in [*lexicon.NOUNS, *lexicon.SENSES, *lexicon.ADJECTIVES]:
        if words(source) & set(word.pt):
            wishes.add(word.lemma)
    wishes |= {cue for noun in lexicon.SENSES for cue, _ in noun.cues if cue in source}
    wishes |= {int(digits) for digits in re.findall(r"\d+", source)}
    wishes |= {n for n in range(2, 100) if numerals.number_words(n, 0)[0] in source}
    rng = Random(source)
    for _ in range(20_000):
        drawn, target = mini.SENTENCES[tag](WishfulDraft(rng, wishes))
        if drawn == source:
            return target
    return None


ARTICLES = "o a os as|um uma alguns algumas|do da dos das|no na nos nas|ao à aos às"


def test_articles_agree_with_nouns():
    nouns = {form: n.gender + 2 * i for n in lexicon.NOUNS for i, form in enumerate(n.pt)}
    articles = {a: i for row in ARTICLES.split("|") for i, a in enumerate(row.split())}
    checked = 0
    for source, _, tag, _ in drafts():
        if tag == "number":  # vinte e um livros
            continue
        for first, second in re.findall(r"(\w+) (?=(\w+))", source):
            if first in articles and second in nouns:
                checked += 1
                assert articles[first] == nouns[second], source
    assert checked > 50_000


def test_all_contractions_are_made():
    demonstrative = "est[ea]s?|aquel[ea]s?"
    left_open = rf"\b(de|em) ([oa]s?|{demonstrative}) |\bpor [oa]s? |\ba ([oa]s?|aquel[ea]s?) "
    assert not [source for source, *_ in drafts() if re.search(left_open, source)]


def test_a_and_an_are_chosen_by_the_next_letter():
    for _, target, *_ in drafts():
        assert not re.search(r"\ban [^aeiou]|\ba [aeiou]", target), target


def test_most_sentences_have_a_capital_and_a_full_stop_and_the_others_neither():
    plain = 0
    for source, target, _ in corpus("train"):
        assert (source == source.lower()) == (target == target.lower()) or source[0].isdigit()
        assert source[-1:] == target[-1:] or source[-1] not in "?."
        for text in (source, target):
            assert re.fullmatch(r"[\w' ,-]+[.?]?", text) and " ," not in text
            assert text == " ".join(text.split()) and text[-1] not in " ,-"
            assert text == text.lower() or text[-1] in ".?" and text[0] == text[0].upper()
        plain += source == source.lower()
    assert plain / len(corpus("train")) == pytest.approx(mini.PLAIN, abs=0.02)


def test_names_of_months_and_the_pronoun_i_have_capitals_unless_all_is_lower_case():
    for _, target, _ in corpus("train"):
        if target[-1] in ".?" and target != target.lower():
            assert not re.search(r"\b(i|january|may|december)\b", target), target


def test_each_held_out_structure_occurs_in_training_with_other_words():
    """So that no phenomenon has to be translated without a single example."""
    seen, rng = Counter(), Random("structures")
    for i in range(60_000):
        draft = mini.Draft(rng)
        source, _ = mini.SENTENCES[mini.TAGS[i % len(mini.TAGS)]](draft)
        if mini.split_of(source, draft.features) == "train":
            seen.update({kind for kind, *_ in draft.features})
    assert min(seen[kind] for kind in mini.HELD_OUT) > 10


def test_negation_and_questions_have_do_support():
    for source, target, tag, _ in drafts():
        if tag == "negation" and " não " in source:
            assert re.search(r" (do|does|did|will|am|is|are) not ", target), target
        if tag == "question" and not target.startswith("who "):
            assert re.search(r"^(\w+ )?(do|does|did|will|am|is|are) ", target), target


def test_every_noun_has_an_adjective():
    for noun in lexicon.NOUNS:
        assert noun.after + noun.colours + noun.before, noun.lemma
