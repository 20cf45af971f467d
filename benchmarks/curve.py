"""Validation BLEU against minutes of training: this project and the tutorial's loop, in turn."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks import harness
from config import Config
from data import pipeline
from utils import errors_in_one_line

CONTESTANTS = {"this project": "our_curve", "tutorial's loop, Keras 3": "keras_curve"}
SETTINGS = ("corpus", "max_length", "batch_tokens", "warmup_steps", "precision")


def draw(path: Path, curves: dict[str, list]) -> None:
    """Draw BLEU against minutes. curves: points of minutes, BLEU and steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        minutes, bleu, _ = zip(*points, strict=True)
        axes.plot(minutes, bleu, "o-", markersize=3, label=name)
    axes.set(xlabel="minutes of training", ylabel="validation BLEU, greedy")
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = harness.benchmark_parser(__doc__, rounds=False)
    add = parser.add_argument
    add("--corpus", default="ted_hrlr_translate/pt_to_en", help="as in train.py [%(default)s]")
    add("--max-length", type=int, default=128, help="tokens per sentence [%(default)s]")
    add("--batch-tokens", type=int, default=1536, help="of this project [%(default)s]")
    add("--warmup-steps", type=int, default=2000, help="of this project [%(default)s]")
    add("--precision", default="float32", help="of this project [%(default)s]")
    add("--minutes", type=float, default=60, help="minutes of training [%(default)s]")
    add("--points", type=int, default=20, help="number of validations [%(default)s]")
    count = "sentences per validation: 100 take minutes in the tutorial's loop [%(default)s]"
    add("--sentences", type=int, default=128, help=count)
    add("--picture", type=Path, default=Path("curve.png"), help="output file [%(default)s]")
    flags = parser.parse_args()
    config = Config(**{name: getattr(flags, name) for name in SETTINGS})
    texts = pipeline.load(config).validation_texts
    spaced = np.linspace(0, len(texts.sources) - 1, min(len(texts.sources), flags.sentences))
    sources, references, _ = texts.take(spaced.astype(int))
    job = {"config": asdict(config), "texts": sources, "references": references}
    job |= {"minutes": flags.minutes, "every": flags.minutes / flags.points}
    result = harness.run_in_turn({name: (peer, job) for name, peer in CONTESTANTS.items()}, 1)
    curves = {name: outcome["points"] for name, outcome in result.items()}
    final = {
        name: {"bleu": points[-1][1], "steps": points[-1][2], "minutes": points[-1][0]}
        for name, points in curves.items()
    }
    columns = {"minutes": ("minutes", "{:.1f}"), "steps": ("steps", "{:,}")}
    columns["bleu"] = ("validation BLEU", "{:.1f}")
    draw(flags.picture, curves)
    harness.report(flags.json, harness.table(final, columns), {"curves": curves})
    print(f"\nwrote {flags.picture}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
