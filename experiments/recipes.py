"""Recipes: how the runs of experiments are trained, what they are scored on, and how precisely."""

import json
import math
import sys
from dataclasses import dataclass, replace

from config import Config
from data import corpora, mini
from data.splits import Corpus, Split
from utils import add_flags, errors_in_one_line, make_parser, write_json

Pairs = dict[int, tuple[dict, dict]]  # by seed: results of an experiment and of the baseline


@dataclass(frozen=True)
class Recipe:
    """Everything that the runs of an experiment and of its baseline share.

    score: what is judged: "exact_match", the mean over the phenomena of `mini` in per cent (see
        `worker.EXCLUDED`), "nats_per_character", the loss on the texts to score, "bleu" or
        "accuracy".
    delta: differences smaller than this do not matter.
    unit: of the score and of delta; points are per cent.
    decimals: of a score and of a difference in messages.
    sentences: number of compositional sentences of `mini` to score; 0 for the validation split.
    average: number of last epochs whose final weights are averaged.
    stages: numbers of pairs of runs after which an experiment may be decided.
    """

    name: str
    flags: str
    score: str
    delta: float
    unit: str = "points"
    decimals: int = 1
    sentences: int = 0
    average: int = 3
    stages: tuple[int, ...] = (3, 5, 8, 12)

    @property
    def lower_is_better(self) -> bool:
        """Whether the score is a loss."""
        return self.score == "nats_per_character"

    @property
    def has_bleu(self) -> bool:
        """Whether BLEU can be judged instead of the loss. A language model has none."""
        return self.lower_is_better and "--model language_model" not in self.flags

    def with_score(self, score: str) -> "Recipe":
        """Return this recipe with the score that a patch specifies instead of a loss."""
        return replace(self, **BLEU) if score == "bleu" and self.has_bleu else self

    def value(self, run: dict) -> float:
        """Return the score of a run; NaN if it diverged."""
        return run.get("scores", {}).get(self.score, math.nan)

    def differences(self, pairs: Pairs) -> list[float]:
        """Return the score of each experiment minus that of its baseline, in the order of seeds."""
        return [self.value(own) - self.value(base) for _, (own, base) in sorted(pairs.items())]

    def format(self, score: float) -> str:
        """Return a score with its unit."""
        return f"{score:.{self.decimals}f} {self.unit}"


# --shards 1: each run uses one core.
MINI = (
    "--num-layers 2 --num-heads 4 --warmup-steps 500 --epochs 5 --shards 1 "
    "--validation-sentences 100"
)
TED = (
    "--corpus ted_hrlr_translate/pt_to_en --batch-tokens 1536 --warmup-steps 2000 --num-heads 4 "
    "--epochs 5 --shards 1 --validation-sentences 100"
)
IMDB = (
    "--model classifier --corpus imdb_reviews --tokenizer word --lowercase --vocab-size 20000 "
    "--max-length 600 --batch-tokens 8192 --num-layers 1 --d-model 64 --num-heads 4 --dff 128 "
    "--positions none --dropout-rate 0.3 --word-dropout 0.5 --label-smoothing 0 "
    "--warmup-steps 600 --learning-rate-scale 0.5 --epochs 5 --shards 1"
)
# A quarter of the pairs for a model with a quarter of the parameters of SPA_ENG_LONG. Of 1, 2 and 4
# times the paper's learning rate, 2 has the lowest loss: see LOG.md, 2026-11-23.
SPA_ENG = (
    "--corpus spa-eng --num-layers 2 --num-heads 4 --shards 1 --validation-sentences 100 "
    "--train-share 0.25 --d-model 64 --dff 256 --vocab-size 4000 --batch-tokens 1250 "
    "--warmup-steps 1000 --learning-rate-scale 2 --epochs 12"
)
SPA_ENG_LONG = (
    "--corpus spa-eng --num-layers 2 --num-heads 4 --batch-tokens 2000 --warmup-steps 2000 "
    "--shards 1 --validation-sentences 100 --epochs 12"
)
# The sizes, the text and the batches of nanoGPT's README for a CPU. Of ¼, ½, 1, 2 and 4 times the
# paper's learning rate, ½ has the lowest loss: see LOG.md, 2026-11-25.
SHAKESPEARE = (
    "--model language_model --corpus shakespeare --tokenizer char --max-length 64 "
    "--batch-tokens 768 --num-heads 4 --dropout-rate 0 --warmup-steps 200 --epochs 2 --shards 1 "
    "--learning-rate-scale 0.5"
)
BLEU = {"score": "bleu", "unit": "BLEU", "decimals": 1, "delta": 0.5}
# Half a BLEU is worth about 0.0065 nats per character in long training: see LOG.md, 2026-11-23.
LOSS = {"score": "nats_per_character", "unit": "nats per character", "decimals": 4, "delta": 0.0065}
# About what 2 % more updates gain at the end of the recipe `shakespeare`: see LOG.md, 2026-11-25.
TEXT_LOSS = LOSS | {"delta": 0.005}
RECIPES = {
    "spa-eng": Recipe("spa-eng", SPA_ENG, **LOSS, stages=(3, 5, 8)),
    "spa-eng-long": Recipe("spa-eng-long", SPA_ENG_LONG, **LOSS, stages=(3, 5, 8)),
    "shakespeare": Recipe("shakespeare", SHAKESPEARE, **TEXT_LOSS, average=1, stages=(3, 5, 8)),
    "mini": Recipe("mini", MINI, "exact_match", delta=2.0, sentences=6600),
    "ted": Recipe("ted", TED, **BLEU),
    "imdb": Recipe("imdb", IMDB, "accuracy", delta=0.5, average=5),
}


def parse(flags: list[str]) -> dict:
    """Return the settings that flags of train.py give. Exits if one is invalid."""
    parser = make_parser("")
    add_flags(parser, Config)
    return vars(parser.parse_args(flags))


def corpus_of(recipe: Recipe) -> Corpus:
    """Return the corpus of a recipe. Raises CorpusError."""
    return corpora.from_config(Config(**parse(recipe.flags.split())))


def load_texts(recipe: Recipe, final: bool = False) -> Split:
    """Return the texts to score. Raises UserError.

    final: other texts, which are read once, for a change that is adopted: the test split, or
    generated sentences that are not among the first ones.
    """
    if not recipe.sentences:
        return corpus_of(recipe).load("test" if final else "validation")
    pairs = mini.generate("compositional", recipe.sentences, seed=1)
    if final:
        seen = {pair.source.lower() for pair in pairs}
        others = mini.generate("compositional", recipe.sentences, seed=2)
        pairs = [pair for pair in others if pair.source.lower() not in seen]
    return Split.of(pairs)


if __name__ == "__main__":  # in a copy of the source: RECIPE-AS-JSON PATH [final]
    values = json.loads(sys.argv[1])
    with errors_in_one_line():
        write_json(sys.argv[2], load_texts(Recipe(**values), final="final" in sys.argv[3:]))
