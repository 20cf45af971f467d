"""Machine-translation metrics. BLEU, chrF and METEOR are computed by established libraries.

Scores range from 0 to 100, with one reference per hypothesis. Compare them only under equal
signatures: on the same output, another tokenizer moves BLEU by several points.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from statistics import fmean  # exact sums: the order of the sentences does not matter
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from data.tokenizer import word_pattern

# nltk is imported when it is used: validation in training needs only BLEU.

Texts = Sequence[str]
ROUGE = ("rouge_1", "rouge_2", "rouge_l")
NO_WORDNET = SimpleNamespace(synsets=lambda word: [])  # METEOR then matches words and stems


def score(hypotheses: Texts, references: Texts, full: bool = True) -> dict:
    """Compute all metrics of a corpus, and under "signatures" the settings behind each.

    full: False computes only BLEU and exact match.

    BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) from counts summed over the corpus;
    ROUGE-1, -2 and -L F1 (Lin 2004), METEOR (Banerjee & Lavie 2005) and exact match as means over
    sentences. BLEU counts 4-grams: a corpus of shorter sentences scores 0, even if it is perfect.
    Raises ValueError for an empty corpus or unequal lengths.
    """
    check_lengths(hypotheses, references)
    if not full:
        exact = fmean(exact_matches(hypotheses, references))
        return {"bleu": bleu(hypotheses, references), "exact_match": exact}
    corpus_bleu, corpus_chrf, synonyms = make_bleu(), CHRF(), load_wordnet()
    rouge = "nrefs:1|case:lc|tok:unicode-words-marks|stem:no|mean:sentences"
    return {
        "bleu": corpus_bleu.corpus_score(hypotheses, [references]).score,
        "chrf": corpus_chrf.corpus_score(hypotheses, [references]).score,
        **{name: fmean(values) for name, values in rouge_scores(hypotheses, references).items()},
        "meteor": fmean(meteor_scores(hypotheses, references, synonyms)),
        "exact_match": fmean(exact_matches(hypotheses, references)),
        "signatures": {
            "bleu": str(corpus_bleu.get_signature()),
            "chrf": str(corpus_chrf.get_signature()),
            **dict.fromkeys(ROUGE, rouge),
            "meteor": "nrefs:1|case:lc|tok:13a|match:"
            + ("exact+stem, no WordNet" if synonyms is NO_WORDNET else "exact+stem+wordnet")
            + f"|mean:sentences|version:nltk-{version('nltk')}",
        },
    }


def sentence_scores(hypotheses: Texts, references: Texts) -> dict[str, list[float]]:
    """Compute the metrics of `score` for each sentence.

    Sentence BLEU uses n-grams up to the length of the sentence (sacreBLEU's effective order); its
    mean is not corpus BLEU. Raises ValueError as `score` does.
    """
    check_lengths(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    sentence_bleu, sentence_chrf = make_bleu(effective_order=True), CHRF()
    return {
        "bleu": [sentence_bleu.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        "chrf": [sentence_chrf.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        **rouge_scores(hypotheses, references),
        "meteor": meteor_scores(hypotheses, references, load_wordnet()),
        "exact_match": exact_matches(hypotheses, references),
    }


def bleu(hypotheses: Texts, references: Texts) -> float:
    """Compute corpus BLEU, the same as `score` does. Raises ValueError as `score` does."""
    check_lengths(hypotheses, references)
    return make_bleu().corpus_score(hypotheses, [references]).score


def by_tag(hypotheses: Texts, references: Texts, tags: Texts) -> dict[str, tuple[int, float]]:
    """Return the number of sentences and the percentage of exact matches of each tag, sorted.

    Raises ValueError for an empty corpus or unequal lengths.
    """
    check_lengths(hypotheses, references)
    if len(tags) != len(references):
        raise ValueError(f"Got {len(tags)} tags for {len(references)} references.")
    groups: dict[str, list[float]] = {tag: [] for tag in sorted(set(tags))}
    for tag, exact in zip(tags, exact_matches(hypotheses, references), strict=True):
        groups[tag].append(exact)
    return {tag: (len(values), fmean(values)) for tag, values in groups.items()}


def check_lengths(hypotheses: Texts, references: Texts) -> None:
    """Raise ValueError for an empty corpus or unequal lengths, or for strings instead of lists."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("Got a single string: give a list of sentences, such as [sentence].")
    if len(hypotheses) != len(references):
        raise ValueError(f"Got {len(hypotheses)} hypotheses for {len(references)} references.")
    if not hypotheses:
        raise ValueError("There are no sentences to score.")


def make_bleu(effective_order: bool = False) -> BLEU:
    """Create sacreBLEU's BLEU with its standard tokenizer, 13a.

    `force` silences a warning about tokenized periods: references of TED talks are tokenized.
    """
    return BLEU(tokenize="13a", force=True, effective_order=effective_order)


def exact_matches(hypotheses: Texts, references: Texts) -> list[float]:
    """Return 100 for each hypothesis that equals its reference, else 0."""
    return [100.0 * (hyp == ref) for hyp, ref in zip(hypotheses, references, strict=True)]


def rouge_scores(hypotheses: Texts, references: Texts) -> dict[str, list[float]]:
    """Compute ROUGE F1 of each sentence, without stemming: common words, common pairs of words, and
    the longest common subsequence (Lin 2004, sections 2 and 3.1).

    Words are runs of letters, with their accents and vowel signs, and digits of any alphabet, in
    lower case.
    """
    scores: dict[str, list[float]] = {name: [] for name in ROUGE}
    for pair in zip(hypotheses, references, strict=True):
        tokens = [word_pattern().findall(text.lower()) for text in pair]
        words = [[token for token in each if re.search(r"\w", token)] for each in tokens]
        bigrams = [list(itertools.pairwise(each)) for each in words]
        common = (overlap(*words), overlap(*bigrams), longest_common_subsequence(*words))
        for name, hits, sides in zip(ROUGE, common, (words, bigrams, words), strict=True):
            precision, recall = (hits / max(1, len(side)) for side in sides)
            total = precision + recall
            scores[name].append(100 * (2 * precision * recall / total if total else 0.0))
    return scores


def overlap(one: Sequence, other: Sequence) -> int:
    """Return how many items two sequences have in common, in any order."""
    return (Counter(one) & Counter(other)).total()


def longest_common_subsequence(one: Sequence, other: Sequence) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(other) + 1)  # of the items of `one` so far, with the first i of `other`
    for item in one:
        before = row
        row = [0]
        for i, candidate in enumerate(other):
            row.append(before[i] + 1 if item == candidate else max(before[i + 1], row[i]))
    return row[-1]


def meteor_scores(hypotheses: Texts, references: Texts, wordnet: Any) -> list[float]:
    """Compute METEOR (Banerjee & Lavie 2005) of each sentence. Its stems and synonyms are English.

    A perfect sentence of n tokens scores 100 (1 - 0.5 / n³): one chunk is still penalized.
    """
    with a_home():
        from nltk.translate.meteor_score import meteor_score

    # The tokens of BLEU: 13a separates punctuation and needs no download.
    tokenize = make_bleu().tokenizer
    return [
        100.0 * meteor_score([tokenize(ref).split()], tokenize(hyp).split(), wordnet=wordnet)
        for hyp, ref in zip(hypotheses, references, strict=True)
    ]


@contextmanager
def a_home() -> Iterator[None]:
    """Set HOME to an empty directory if there is none, without which NLTK cannot be imported."""
    if os.path.expanduser("~") != "~":
        yield
        return
    with TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        try:
            yield
        finally:
            del os.environ["HOME"]


def load_wordnet() -> Any:
    """Return NLTK's WordNet if its data are installed, by `nltk.download("wordnet")`, else
    `NO_WORDNET`.
    """
    with a_home():
        from nltk.corpus import wordnet

    try:
        wordnet.synsets("word")  # opens the data; the import does not
    except LookupError:
        return NO_WORDNET
    return wordnet
