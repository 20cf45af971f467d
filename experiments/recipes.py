"""Recipes: how the runs of experiments are trained, what they are scored on, and how precisely."""

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from config import Config, add_flags, make_parser
from data import corpora, mini
from data.corpora import Split
from experiments.stats import Rule


class Sample(NamedTuple):
    """Texts to score: a split of the corpus, or `size` pairs of `mini` with a seed of their own."""

    split: str
    size: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """Everything that the runs of an experiment and of its baseline share.

    headline: "exact_match", the mean over the phenomena in per cent (see `trial.NOISY`); "bleu";
        "accuracy"; or "loss", in nats per token, of which the negative is compared: higher is
        better.
    delta: differences smaller than this, in the unit of the headline, do not matter.
    sample: the texts that decide. final: those that are read once, for what is adopted.
    average: number of last epochs whose final weights are averaged.
    looks: numbers of seeds after which a question may be decided.
    """

    name: str
    flags: str
    headline: str
    delta: float
    sample: Sample
    final: Sample
    average: int = 3
    looks: tuple[int, ...] = (3, 6, 10, 16)

    @property
    def unit(self) -> str:
        return {"bleu": "BLEU", "loss": "nats"}.get(self.headline, "points")

    @property
    def rule(self) -> Rule:
        return Rule(self.delta, self.looks)

    @staticmethod
    def seconds(results: list[dict]) -> float | None:
        """Return the median time of runs that were trained and scored; None if there are none."""
        times = [sum(result["seconds"].values()) for result in results if "seconds" in result]
        return statistics.median(times) if times else None

    def values(self, results: list[dict]) -> list[float]:
        """Return the headline of each result; NaN if a run diverged."""
        scores = [result.get("scores", {}).get(self.headline, math.nan) for result in results]
        return [-score if self.headline == "loss" else score for score in scores]


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
SMOKE = (
    "--corpus mini:500 --num-layers 1 --d-model 32 --num-heads 2 --dff 64 --max-length 20 "
    "--epochs 2 --shards 1 --validation-sentences 10"
)
SAMPLES = Sample("compositional", 6600, seed=1), Sample("compositional", 6600, seed=2)
SMALL = Sample("compositional", 110, seed=1), Sample("compositional", 110, seed=2)
SPLITS = Sample("validation"), Sample("test")
RECIPES = {
    "mini": Recipe("mini", MINI, "exact_match", 2.0, *SAMPLES),
    "ted": Recipe("ted", TED, "bleu", 0.5, *SPLITS),
    "imdb": Recipe("imdb", IMDB, "accuracy", 0.5, *SPLITS, average=5),
    # Not a measurement: whether everything runs, in seconds.
    "smoke": Recipe("smoke", SMOKE, "loss", 0.01, *SMALL, average=2, looks=(2, 3)),
}


def parse(flags: list[str]) -> dict:
    """Return the settings that flags of train.py give. Exits if one is invalid."""
    parser = make_parser("")
    add_flags(parser, Config)
    return vars(parser.parse_args(flags))


def load_texts(recipe: Recipe, final: bool = False) -> Split:
    """Return the texts to score; no generated text is in both samples. Raises UserError."""
    sample = recipe.final if final else recipe.sample
    if sample.size is None:
        return corpora.open(Config(**parse(recipe.flags.split()))).load(sample.split)
    pairs = mini.generate(sample.split, sample.size, sample.seed)
    if final:
        other = mini.generate(recipe.sample.split, recipe.sample.size, recipe.sample.seed)
        seen = {pair.source.lower() for pair in other}
        pairs = [pair for pair in pairs if pair.source.lower() not in seen]
    return Split(*map(list, zip(*pairs, strict=True)))
