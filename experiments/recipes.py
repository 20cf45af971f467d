"""Recipes: how the runs of experiments are trained, what they are scored on, and how precisely."""

import math
from dataclasses import dataclass

from config import Config
from data import corpora, mini
from data.splits import Split
from utils import add_flags, make_parser


@dataclass(frozen=True)
class Recipe:
    """Everything that the runs of an experiment and of its baseline share.

    score: what is judged: "exact_match", the mean over the phenomena of `mini` in per cent (see
        `worker.EXCLUDED`), "bleu" or "accuracy".
    delta: differences smaller than this do not matter.
    unit: of the score and of delta; points are per cent.
    sentences: number of compositional sentences of `mini` to score; 0 for the validation split.
    average: number of last epochs whose final weights are averaged.
    stages: numbers of seeds after which an experiment may be decided.
    """

    name: str
    flags: str
    score: str
    delta: float
    sentences: int = 0
    average: int = 3
    stages: tuple[int, ...] = (4, 6, 10, 16)
    unit: str = "points"

    def values(self, results: list[dict]) -> list[float]:
        """Return the score of each result; NaN if a run diverged."""
        return [result.get("scores", {}).get(self.score, math.nan) for result in results]


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
RECIPES = {
    "mini": Recipe("mini", MINI, "exact_match", delta=2.0, sentences=6600),
    "ted": Recipe("ted", TED, "bleu", delta=0.5, unit="BLEU"),
    "imdb": Recipe("imdb", IMDB, "accuracy", delta=0.5, average=5),
}


def parse(flags: list[str]) -> dict:
    """Return the settings that flags of train.py give. Exits if one is invalid."""
    parser = make_parser("")
    add_flags(parser, Config)
    return vars(parser.parse_args(flags))


def load_texts(recipe: Recipe, final: bool = False) -> Split:
    """Return the texts to score. Raises UserError.

    final: other texts, which are read once, for a change that is adopted: the test split, or
    generated sentences that are not among the first ones.
    """
    if not recipe.sentences:
        corpus = corpora.from_config(Config(**parse(recipe.flags.split())))
        return corpus.load("test" if final else "validation")
    pairs = mini.generate("compositional", recipe.sentences, seed=1)
    if final:
        seen = {pair.source.lower() for pair in pairs}
        others = mini.generate("compositional", recipe.sentences, seed=2)
        pairs = [pair for pair in others if pair.source.lower() not in seen]
    return Split.of(pairs)
