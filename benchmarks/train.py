"""Training speed: this project, the tutorial's loop, Keras' fit and PyTorch, in turn."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from benchmarks import harness, sentences
from config import Config
from data import pipeline
from data.arrays import Pairs
from training.machine import import_tensorflow
from utils import errors_in_one_line, fail, flag, handle_signals, positive

COLUMNS = {
    "tokens_per_second": ("real tokens/s", "{:,.0f}"),
    "ratio": ("× tutorial", "{:.2f}"),
    "gflops": ("GFLOP/s", "{:,.0f}"),
    "utilization": ("FLOP utilization", "{:.2f}"),
    "step_ms": ("ms per step", "{:.0f}"),
    "tokens_per_step": ("real tokens per step", "{:,.0f}"),
    "real_share": ("real share", "{:.2f}"),
    "peak_mb": ("peak MB", "{:,.0f}"),
    "seconds_to_first_step": ("s to first step", "{:.1f}"),
}
TUTORIAL = "tutorial's loop, Keras 3"
SIZES = ("num_layers", "d_model", "num_heads", "dff")


def contestants(job: dict, only: Sequence[str]) -> dict[str, tuple[str, dict]]:
    """Return the contestants whose names contain one of the strings in `only`."""
    bfloat16 = job | {"config": job["config"] | {"precision": "bfloat16"}}
    everyone = {
        "2048³ products, float32": ("matmul.measure", {"dtype": "float32"}),
        "2048³ products, bfloat16": ("matmul.measure", {"dtype": "bfloat16"}),
        TUTORIAL: ("tutorial.train", job),
        "this project, float32": ("ours.train", job),
        "this project, bfloat16": ("ours.train", bfloat16),
        "Keras 3, fit": ("keras.train", job),
        "PyTorch, float32": ("pytorch.train", job),
        "PyTorch, bfloat16": ("pytorch.train", bfloat16),
    }
    chosen = {name: everyone[name] for name in everyone if any(part in name for part in only)}
    if not chosen:
        fail(f"--only {' '.join(only)}: choose from {', '.join(everyone)}")
    return chosen


def flops_per_token(
    pairs: Pairs, batches: Sequence[np.ndarray], config: Config, vocab_size: int
) -> float:
    """Return the FLOPs per real token of all matrix products, forward and backward.

    A product of (n, a) and (a, b) takes 2 n a b, and each of its two gradients the same.
    """
    total = tokens = 0
    size, inner = config.d_model, config.num_heads * config.head_dim
    for indices in batches:
        source = pairs.source.lengths[indices].astype(float)
        target = pairs.target.lengths[indices] - 1.0
        encoder = source * (4 * size * inner + 2 * size * config.dff) + 2 * source**2 * inner
        decoder = target * (6 * size * inner + 2 * size * config.dff) + source * 2 * size * inner
        decoder += 2 * target**2 * inner + 2 * target * source * inner
        total += (config.num_layers * (encoder + decoder) + target * size * vocab_size).sum()
        tokens += (source + target).sum()
    return 3 * 2 * total / tokens


def measure(job: dict, config: Config, flags: argparse.Namespace) -> Iterator[tuple]:
    """Run the contestants and yield what `harness.report` takes."""
    flops = flops_per_token(job["pairs"], job["batches"], config, job["vocab_size"])
    for newest, rows in harness.run_in_turn(contestants(job, flags.only), flags.rounds):
        for name, row in rows.items():
            if "tokens_per_second" in row:
                row["gflops"] = row["tokens_per_second"] * flops / 1e9
                if TUTORIAL in rows:
                    row["ratio"] = row["tokens_per_second"] / rows[TUTORIAL]["tokens_per_second"]
            dtype = "bfloat16" if "bfloat16" in name else "float32"
            if products := rows.get(f"2048³ products, {dtype}"):
                row["utilization"] = row["gflops"] / products["gflops"]
        yield newest, rows


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--corpus", default="mini", help="as in train.py [mini]")
    add("--max-length", type=positive, default=40, help="tokens per sentence [40, as the tutorial]")
    add("--batch-tokens", type=positive, default=1200, help="as in train.py [1200]")
    only = "run only the contestants whose names contain one of these strings"
    add("--only", nargs="+", default=[""], metavar="STRING", help=only)
    tokens = "real tokens per pass; the second pass is timed [60000]"
    add("--tokens", type=positive, default=60_000, help=tokens)
    for name in SIZES:
        default = getattr(Config, name)
        add(flag(name), type=positive, default=default, help=f"[{default}]")
    return parser.parse_args()


def main() -> None:
    flags = parse_flags()
    import_tensorflow()  # without its messages: tensorflow_datasets imports it
    names = ("corpus", "max_length", "batch_tokens", *SIZES)
    config = Config(label_smoothing=0, **{name: getattr(flags, name) for name in names})
    data = pipeline.load(config)
    batches = sentences.sample(data.train, flags.batch_tokens, flags.tokens)
    job = {"pairs": data.train, "batches": batches, "config": asdict(config)}
    job["vocab_size"] = data.target_tokenizer.vocab_size
    harness.report(measure(job, config, flags), COLUMNS)


if __name__ == "__main__":
    handle_signals()
    with errors_in_one_line():
        main()
