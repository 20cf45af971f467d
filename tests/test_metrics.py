"""Metrics against numbers worked by hand, and their signatures."""

import math
from importlib.metadata import version
from types import SimpleNamespace

import nltk.corpus
import pytest

from evaluation import metrics
from evaluation.metrics import score

REFERENCE = "I am very happy to say that I am getting a big boost of energy."
CLOSE = "I am very happy that I am getting a boost of energy."
PARAPHRASE = "I am quite glad to tell that I am getting a huge boost of energy."
METRICS = ["bleu", "chrf", "rouge_1", "rouge_2", "rouge_l", "meteor", "exact_match"]


def sentence_scores(hypotheses, references):
    return metrics.score(hypotheses, references)["sentences"]


@pytest.fixture(autouse=True)
def no_wordnet(monkeypatch):
    """METEOR without WordNet's data, which may be on this machine."""

    def missing(word):
        raise LookupError("Resource wordnet not found.")

    monkeypatch.setattr(nltk.corpus, "wordnet", SimpleNamespace(synsets=missing))


@pytest.mark.parametrize(
    ("hypothesis", "matches", "length", "chunks"),
    [(CLOSE, [13, 10, 7, 4], 13, 3), (PARAPHRASE, [12, 8, 5, 3], 16, 4)],
)
def test_bleu_and_meteor_by_hand(hypothesis, matches, length, chunks):
    result = score([hypothesis], [REFERENCE])

    reference_length = 16  # 15 words and the full stop
    log_precisions = [math.log(count / (length - n)) for n, count in enumerate(matches)]
    brevity_penalty = math.exp(1 - reference_length / length)
    bleu = 100 * brevity_penalty * math.exp(sum(log_precisions) / 4)
    assert result["bleu"] == pytest.approx(bleu)

    precision, recall = matches[0] / length, matches[0] / reference_length
    f_mean = 10 * precision * recall / (recall + 9 * precision)
    assert result["meteor"] == pytest.approx(100 * f_mean * (1 - 0.5 * (chunks / matches[0]) ** 3))


def test_wordnet_adds_synonyms(monkeypatch):
    """A WordNet with one synset, shaped as METEOR reads it: synset.lemmas() and lemma.name()."""
    without, words = score([PARAPHRASE], [REFERENCE]), ("say", "state", "tell")
    lemmas = [SimpleNamespace(name=lambda word=word: word) for word in words]
    synset = SimpleNamespace(lemmas=lambda: lemmas)
    wordnet = SimpleNamespace(synsets=lambda word: [synset] if word in words else [])
    monkeypatch.setattr(nltk.corpus, "wordnet", wordnet)
    result = score([PARAPHRASE], [REFERENCE])

    # 13 of 16 tokens match, in three chunks: I am / to tell that I am getting a / boost of energy.
    assert result["meteor"] == pytest.approx(100 * 13 / 16 * (1 - 0.5 * (3 / 13) ** 3))
    assert result["sentences"]["meteor"] == [result["meteor"]]
    assert "match:exact+stem+wordnet|" in result["signatures"]["meteor"]
    assert "match:exact+stem, no WordNet|" in without["signatures"]["meteor"]


def test_perfect_output_scores_100():
    result = score([REFERENCE, CLOSE], [REFERENCE, CLOSE])
    assert list(result) == [*METRICS, "signatures", "sentences"]
    assert list(result["sentences"]) == METRICS
    expected = {name: [100, 100] for name in METRICS}
    # METEOR's penalty counts chunks, and a perfect sentence still is one chunk.
    expected["meteor"] = [100 * (1 - 0.5 / length**3) for length in (16, 13)]
    for name, values in expected.items():
        assert result["sentences"][name] == pytest.approx(values)
        assert result[name] == pytest.approx(sum(values) / 2)


def test_bleu_is_of_the_corpus_not_a_mean_of_sentences():
    hypotheses, references = [CLOSE, "the cat"], [REFERENCE, "the cat"]
    corpus = score(hypotheses, references)["bleu"]
    by_sentence = sentence_scores(hypotheses, references)["bleu"]
    assert by_sentence == pytest.approx([53.88, 100], abs=0.01)
    # Counts summed over both: 15/15, 11/13, 7/11, 4/10, and 15 tokens for 18.
    precisions = 15 / 15 * 11 / 13 * 7 / 11 * 4 / 10
    assert corpus == pytest.approx(100 * math.exp(1 - 18 / 15) * precisions**0.25)
    assert metrics.bleu(hypotheses, references) == corpus


def test_case_and_stems_match_the_signatures():
    result = sentence_scores(["The Cats Were Running Home"], ["the cat were runs home"])
    assert result["bleu"] == [0]  # case:mixed
    assert result["rouge_l"] == pytest.approx([60])  # case:lc, stem:no: the, were, home
    assert result["meteor"] == pytest.approx([99.6])  # case:lc, stem: all five, one chunk


def test_rouge_by_hand():
    # Lin 2004, section 3.1: "police the gunman" and "the gunman", 3 and 2 words of 4 in order.
    result = sentence_scores(
        ["police kill the gunman", "the gunman kill police"], ["police killed the gunman"] * 2
    )
    assert result["rouge_1"] == pytest.approx([75, 75])  # police, the, gunman, in any order
    assert result["rouge_2"] == pytest.approx([100 / 3, 100 / 3])  # the gunman, one pair of three
    assert result["rouge_l"] == pytest.approx([75, 50])
    # F1 of precision 1 and recall 1/2.
    result = sentence_scores(["police killed"], ["police killed the gunman"])
    assert result["rouge_l"] == pytest.approx([200 / 3])


def test_rouge_l_counts_words_of_every_alphabet():
    result = sentence_scores(
        ["Кошка спит дома", "são", "ação", "लड़की – गई"],
        ["кошка спит здесь", "sao", "ação", "लड़का – गई"],  # other vowel signs
    )
    assert result["rouge_l"] == pytest.approx([200 / 3, 0, 100, 50])


def test_an_empty_hypothesis_scores_0():
    by_sentence = sentence_scores(["", REFERENCE], [REFERENCE, REFERENCE])
    assert [by_sentence[name][0] for name in METRICS] == [0] * len(METRICS)
    result = score(["", ""], [REFERENCE, REFERENCE])
    assert [result[name] for name in METRICS] == [0] * len(METRICS)
    half = score(["", REFERENCE], [REFERENCE, REFERENCE])
    assert half["bleu"] == pytest.approx(100 * math.exp(1 - 32 / 16))  # only the brevity penalty
    assert half["rouge_l"] == half["exact_match"] == 50


def test_exact_match_compares_strings():
    hypotheses, references = ["a b", "a b ", "A b", "a b"], ["a b", "a b", "a b", "a c"]
    assert sentence_scores(hypotheses, references)["exact_match"] == [100, 0, 0, 0]
    assert score(hypotheses, references)["exact_match"] == 25


def test_signatures_name_settings_and_versions():
    signatures = score([CLOSE], [REFERENCE])["signatures"]
    assert list(signatures) == ["bleu", "chrf", "rouge_1", "rouge_2", "rouge_l", "meteor"]
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|")
    assert all(signatures[x].endswith(f"version:{version('sacrebleu')}") for x in ("bleu", "chrf"))
    assert "tok:unicode-words-marks|stem:no|" in signatures["rouge_l"]
    assert "tok:13a|" in signatures["meteor"]
    assert signatures["meteor"].endswith(f"version:nltk-{version('nltk')}")


def test_by_tag_returns_count_and_percentage():
    result = metrics.by_tag([100, 100, 0, 0], ["plural", "past", "plural", "negation"])
    assert list(result.items()) == [("negation", (1, 0)), ("past", (1, 100)), ("plural", (2, 50))]
