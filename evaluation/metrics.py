"""Machine-translation metrics, each computed by a library that the field trusts.

Scores run from 0 to 100 and compare each hypothesis with one reference. They are comparable only
under equal signatures: on the same output, another tokenizer moves BLEU by several points.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean  # sums exactly, so the order of the corpus cannot move the last digit
from types import SimpleNamespace

from sacrebleu.metrics import BLEU, CHRF

# rouge_score and nltk are imported where they are used: training validates by BLEU alone.

Texts = Sequence[str]


def score(hypotheses: Texts, references: Texts) -> dict:
    """All metrics of a corpus: BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) from counts
    summed over the corpus, ROUGE-1, -2 and -L F1 (Lin 2004), METEOR (Banerjee & Lavie 2005) and
    exact match as means over sentences, and under `signatures` the settings behind each number.

    0 to 100. BLEU counts 4-grams: sentences that are all shorter score 0, even when perfect.
    ValueError for an empty corpus or unequal lengths.
    """
    _check(hypotheses, references)
    corpus_bleu, corpus_chrf, wordnet = _bleu_metric(), CHRF(), _wordnet()
    rouge = (
        "nrefs:1|case:lc|tok:unicode-words|stem:no|mean:sentences"
        f"|version:rouge-score-{version('rouge-score')}"
    )
    return {
        "bleu": corpus_bleu.corpus_score(hypotheses, [references]).score,
        "chrf": corpus_chrf.corpus_score(hypotheses, [references]).score,
        **{name: fmean(values) for name, values in _rouge(hypotheses, references).items()},
        "meteor": fmean(_meteor(hypotheses, references, wordnet)),
        "exact_match": fmean(_exact_match(hypotheses, references)),
        "signatures": {
            "bleu": str(corpus_bleu.get_signature()),
            "chrf": str(corpus_chrf.get_signature()),
            **dict.fromkeys(ROUGE, rouge),
            "meteor": "nrefs:1|case:lc|tok:13a|match:"
            + ("exact+stem, no WordNet" if wordnet is _NO_WORDNET else "exact+stem+wordnet")
            + f"|mean:sentences|version:nltk-{version('nltk')}",
        },
    }


def sentence_scores(hypotheses: Texts, references: Texts) -> dict[str, list[float]]:
    """The metrics of `score` for each sentence by itself, to find the best and the worst.

    0 to 100, in the order given. Sentence BLEU stops at the longest n-gram that the sentence has
    (sacreBLEU's effective order); its mean is not corpus BLEU. Errors as in `score`.
    """
    _check(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    sentence_bleu, sentence_chrf = _bleu_metric(effective_order=True), CHRF()
    return {
        "bleu": [sentence_bleu.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        "chrf": [sentence_chrf.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        **_rouge(hypotheses, references),
        "meteor": _meteor(hypotheses, references, _wordnet()),
        "exact_match": _exact_match(hypotheses, references),
    }


def bleu(hypotheses: Texts, references: Texts) -> float:
    """Corpus BLEU alone (Papineni et al. 2002), the number `score` gives, for validation.

    0 to 100. Errors as in `score`.
    """
    _check(hypotheses, references)
    return _bleu_metric().corpus_score(hypotheses, [references]).score


def by_tag(hypotheses: Texts, references: Texts, tags: Texts) -> dict[str, tuple[int, float]]:
    """For each tag, in sorted order, how many sentences carry it and how many of them are exact.

    (count, per cent). ValueError for an empty corpus or unequal lengths, the tags' included.
    """
    _check(hypotheses, references)
    if len(tags) != len(references):
        raise ValueError(f"Got {len(tags)} tags for {len(references)} references.")
    groups: dict[str, list[float]] = {tag: [] for tag in sorted(set(tags))}
    for tag, exact in zip(tags, _exact_match(hypotheses, references), strict=True):
        groups[tag].append(exact)
    return {tag: (len(exacts), fmean(exacts)) for tag, exacts in groups.items()}


def _check(hypotheses: Texts, references: Texts) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"Got {len(hypotheses)} hypotheses for {len(references)} references.")
    if not hypotheses:
        raise ValueError("There are no sentences to score.")


def _bleu_metric(effective_order: bool = False) -> BLEU:
    # `force` silences the warning about tokenized periods: TED's references are tokenized, and
    # the signature says how both sides were treated.
    return BLEU(tokenize="13a", force=True, effective_order=effective_order)


def _exact_match(hypotheses: Texts, references: Texts) -> list[float]:
    return [100.0 * (hyp == ref) for hyp, ref in zip(hypotheses, references, strict=True)]


# rouge_score's own tokenizer keeps a-z and 0-9 only: Cyrillic would vanish and score 0, and `são`
# would become `s` and `o`. This one keeps the words of every alphabet.
_UNICODE_WORDS = SimpleNamespace(tokenize=lambda text: re.findall(r"\w+", text.lower()))


ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # ours, the library's name


def _rouge(hypotheses: Texts, references: Texts) -> dict[str, list[float]]:
    """ROUGE F1 of each sentence, without stemming: common words and pairs of words, and the
    longest common subsequence (Lin 2004, sections 2 and 3.1).
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([*ROUGE.values()], tokenizer=_UNICODE_WORDS)
    pairs = zip(hypotheses, references, strict=True)
    found = [scorer.score(reference, hypothesis) for hypothesis, reference in pairs]
    return {ours: [100.0 * one[theirs].fmeasure for one in found] for ours, theirs in ROUGE.items()}


def _meteor(hypotheses: Texts, references: Texts, wordnet) -> list[float]:
    """METEOR (Banerjee & Lavie 2005) of each sentence; its stems and synonyms are English.

    Even a perfect sentence of n tokens scores 100 (1 - 0.5 / n³): one chunk is still penalised.
    """
    from nltk.translate.meteor_score import meteor_score

    # The tokens BLEU sees: 13a sets punctuation apart and needs no downloaded model.
    tokenize = _bleu_metric().tokenizer
    return [
        100.0 * meteor_score([tokenize(ref).split()], tokenize(hyp).split(), wordnet=wordnet)
        for hyp, ref in zip(hypotheses, references, strict=True)
    ]


# A WordNet in which no word has a synonym: METEOR then matches words and stems.
_NO_WORDNET = SimpleNamespace(synsets=lambda word: [])


def _wordnet():
    """NLTK's WordNet where `nltk.download("wordnet")` has put its data, else `_NO_WORDNET`."""
    from nltk.corpus import wordnet

    try:
        wordnet.synsets("word")  # the data are opened at the first question, not at the import
    except LookupError:
        return _NO_WORDNET
    return wordnet
