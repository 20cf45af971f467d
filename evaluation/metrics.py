"""Machine-translation metrics, computed by established libraries.

Scores range from 0 to 100, with one reference per hypothesis. Compare them only under equal
signatures: on the same output, another tokenizer moves BLEU by several points.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean  # exact sums: the order of the sentences does not matter
from types import SimpleNamespace

from sacrebleu.metrics import BLEU, CHRF

from data.tokenizer import word_pattern

# nltk and rouge_score are imported when they are used: validation in training needs only BLEU.

Texts = Sequence[str]
BLEU_SETTINGS = {"tokenize": "13a", "force": True}  # force: without a warning about TED's periods
ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # names in rouge_score


def score(hypotheses: Texts, references: Texts) -> dict:
    """Compute all metrics of a corpus. evaluate.py prints and stores those that are added here.

    Under "sentences" are those of each sentence, under "signatures" the settings of each metric.

    BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) are from counts summed over the corpus;
    ROUGE-1, -2 and -L F1 (Lin 2004), METEOR (Banerjee & Lavie 2005) and exact match are means over
    sentences. BLEU counts 4-grams: a corpus of shorter sentences scores 0, even if it is perfect.
    Sentence BLEU uses n-grams up to the length of the sentence (sacreBLEU's effective order); its
    mean is not corpus BLEU. Raises ValueError for unequal lengths.
    """
    corpus_bleu, chrf = BLEU(**BLEU_SETTINGS), CHRF()
    sentence_bleu = BLEU(**BLEU_SETTINGS, effective_order=True)
    meteor, has_wordnet = meteor_scores(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    sentences = {
        "bleu": [sentence_bleu.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        "chrf": [chrf.sentence_score(hyp, [ref]).score for hyp, ref in pairs],
        **rouge_scores(hypotheses, references),
        "meteor": meteor,
        "exact_match": [100.0 * (hyp == ref) for hyp, ref in pairs],
    }
    corpus = {name: fmean(values) for name, values in sentences.items()}
    for name, metric in (("bleu", corpus_bleu), ("chrf", chrf)):
        corpus[name] = metric.corpus_score(hypotheses, [references]).score
    matches = "exact+stem+wordnet" if has_wordnet else "exact+stem, no WordNet"
    meteor_settings = f"nrefs:1|case:lc|tok:13a|match:{matches}|mean:sentences|version:nltk-"
    corpus["signatures"] = {
        "bleu": str(corpus_bleu.get_signature()),
        "chrf": str(chrf.get_signature()),
        **dict.fromkeys(ROUGE, "nrefs:1|case:lc|tok:unicode-words-marks|stem:no|mean:sentences"),
        "meteor": meteor_settings + version("nltk"),
    }
    return corpus | {"sentences": sentences}


def bleu(hypotheses: Texts, references: Texts) -> float:
    """Compute corpus BLEU, the same as `score` does."""
    return BLEU(**BLEU_SETTINGS).corpus_score(hypotheses, [references]).score


def by_tag(scores: Sequence[float], tags: Texts) -> dict[str, tuple[int, float]]:
    """Return the number of sentences and the mean of their scores for each tag, sorted."""
    pairs = list(zip(tags, scores, strict=True))
    groups = {tag: [score for t, score in pairs if t == tag] for tag in sorted(set(tags))}
    return {tag: (len(values), fmean(values)) for tag, values in groups.items()}


def rouge_scores(hypotheses: Texts, references: Texts) -> dict[str, list[float]]:
    """Compute ROUGE F1 (Lin 2004) of each sentence, without stemming.

    Words are runs of letters, with their accents and vowel signs, and digits of any alphabet, in
    lower case.
    """
    from rouge_score.rouge_scorer import RougeScorer

    def tokenize(text):
        words = word_pattern().findall(text.lower())
        return [word for word in words if re.search(r"\w", word)]

    scorer = RougeScorer([*ROUGE.values()], tokenizer=SimpleNamespace(tokenize=tokenize))
    scores = [scorer.score(ref, hyp) for hyp, ref in zip(hypotheses, references, strict=True)]
    return {ours: [100 * x[theirs].fmeasure for x in scores] for ours, theirs in ROUGE.items()}


def meteor_scores(hypotheses: Texts, references: Texts) -> tuple[list[float], bool]:
    """Compute METEOR (Banerjee & Lavie 2005) of each sentence. Its stems and synonyms are English.

    A perfect sentence of n tokens scores 100 (1 - 0.5 / n³): one chunk is still penalized. Also
    returns whether WordNet's data are installed, by `nltk.download("wordnet")`. Without them,
    METEOR matches words and stems.
    """
    from nltk.corpus import wordnet
    from nltk.translate.meteor_score import meteor_score

    try:
        wordnet.synsets("word")  # opens the data; the import does not
        has_wordnet = True
    except LookupError:
        wordnet, has_wordnet = SimpleNamespace(synsets=lambda word: []), False

    tokenize = BLEU(**BLEU_SETTINGS).tokenizer  # separates punctuation and needs no download
    scores = [
        100.0 * meteor_score([tokenize(ref).split()], tokenize(hyp).split(), wordnet=wordnet)
        for hyp, ref in zip(hypotheses, references, strict=True)
    ]
    return scores, has_wordnet
