"""Training speed: this project, the tutorial's loop, Keras' fit and PyTorch, in turn."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks import harness, sentences
from config import Config
from data import pipeline
from data.batches import Pairs
from utils import errors_in_one_line, fail, flag

COLUMNS = {
    "tokens_per_second": ("real tokens/s", "{:,.0f}"),
    "ratio": ("× tutorial", "{:.2f}"),
    "utilization": ("FLOP utilization", "{:.2f}"),
    "step_ms": ("ms per step", "{:.0f}"),
    "tokens_per_step": ("real tokens per step", "{:,.0f}"),
    "real_share": ("real share", "{:.2f}"),
    "peak_mb": ("peak MB", "{:,.0f}"),
    "seconds_to_first_step": ("s to first step", "{:.1f}"),
}
TUTORIAL = "tutorial's loop, Keras 3"
SIZES = ("num_layers", "d_model", "num_heads", "dff")


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


def contestants(job: dict, only: str | None) -> dict[str, tuple[str, dict]]:
    """Return the contestants whose names contain one of the comma-separated parts of `only`."""
    bfloat16 = job | {"config": job["config"] | {"precision": "bfloat16"}}
    everyone = {
        "this project, float32": ("ours", job),
        TUTORIAL: ("keras_loop", job),
        "this project, bfloat16": ("ours", bfloat16),
        "Keras 3, fit": ("keras_fit", job),
        "PyTorch nn.Transformer": ("pytorch", job),
        "PyTorch nn.Transformer, bfloat16": ("pytorch", bfloat16),
        "PyTorch scaled_dot_product_attention": ("pytorch_attention", job),
        "PyTorch scaled_dot_product_attention, bfloat16": ("pytorch_attention", bfloat16),
        "matmul": ("matmul", job),
    }
    parts = only.split(",") if only else [""]
    chosen = {name: everyone[name] for name in everyone if any(part in name for part in parts)}
    if not chosen:
        fail(f"--only {only}: choose from {', '.join(everyone)}")
    return chosen


def parse_flags():
    """Parse the command line."""
    parser = harness.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--corpus", default="mini", help="as in train.py [mini]")
    add("--max-length", type=int, default=40, help="tokens per sentence [40, as the tutorial]")
    add("--batch-tokens", type=int, default=1200, help="as in train.py [1200]")
    add("--only", help="contestants whose names contain one of these parts, comma-separated")
    tokens = "real tokens per pass; the second pass is timed [60000]"
    add("--tokens", type=int, default=60_000, help=tokens)
    for name in SIZES:
        default = getattr(Config, name)
        add(flag(name), type=int, default=default, help=f"[{default}]")
    return parser.parse_args()


def main() -> None:
    flags = parse_flags()
    names = ("corpus", "max_length", "batch_tokens", *SIZES)
    config = Config(label_smoothing=0, **{name: getattr(flags, name) for name in names})
    data = pipeline.load(config)
    vocab_size = data.target_tokenizer.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "sentences.npz")
        sentences.write(path, data.train, flags.batch_tokens, flags.tokens)
        job = {"sentences": path, "vocab_size": vocab_size, "config": asdict(config)}
        result = harness.run_in_turn(contestants(job, flags.only), flags.rounds)
        flops = flops_per_token(*sentences.read(path), config, vocab_size)
    rates = result.pop("matmul", {})
    for name, row in result.items():
        if TUTORIAL in result:
            row["ratio"] = row["tokens_per_second"] / result[TUTORIAL]["tokens_per_second"]
        if rates:
            rate = rates["bfloat16" if "bfloat16" in name else "float32"]
            row["utilization"] = row["tokens_per_second"] * flops / rate
    tables = harness.table(result, COLUMNS)
    if rates:
        speeds = (f"{rate / 1e9:,.0f} GFLOP/s {dtype}" for dtype, rate in rates.items())
        tables += "\n\nmatmul 2048³: " + ", ".join(speeds)
    measurements = {"result": result, "matmul": rates, "flops_per_token": flops}
    harness.report(flags.json, tables, measurements)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
