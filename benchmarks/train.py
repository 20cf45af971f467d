"""Training speed: this project, the tutorial's loop, Keras' fit and PyTorch, in turn."""

import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import harness, sentences
from config import Config
from data import pipeline

COLUMNS = {
    "tokens_per_second": ("real tokens/s", "{:,.0f}"),
    "ratio": ("× tutorial", "{:.2f}"),
    "utilisation": ("FLOP utilisation", "{:.2f}"),
    "step_ms": ("ms a step", "{:.0f}"),
    "tokens_a_step": ("real tokens a step", "{:,.0f}"),
    "real_share": ("real share", "{:.2f}"),
    "peak_mb": ("peak MB", "{:,.0f}"),
    "seconds_to_first_step": ("s to first step", "{:.1f}"),
}
TUTORIAL = "tutorial's loop, Keras 3"


def flops_a_token(pairs, batches, config, vocab_size):
    """FLOPs that real tokens need, forward and backward, over their number: matrix products alone.

    A product of (n, a) and (a, b) takes 2 n a b, and its two gradients as much again each.
    """
    total = tokens = 0
    size, inner = config.d_model, config.num_heads * config.key_dim
    for indices in batches:
        source = pairs.source.lengths[indices].astype(float)
        target = pairs.target.lengths[indices] - 1.0
        encoder = source * (4 * size * inner + 2 * size * config.dff) + 2 * source**2 * inner
        decoder = target * (6 * size * inner + 2 * size * config.dff) + source * 2 * size * inner
        decoder += 2 * target**2 * inner + 2 * target * source * inner
        total += (config.num_layers * (encoder + decoder) + target * size * vocab_size).sum()
        tokens += (source + target).sum()
    return 3 * 2 * total / tokens


def main():
    parser = harness.flags(__doc__)
    add = parser.add_argument
    add("--corpus", default="mini", help="as in train.py [mini]")
    add("--max-length", type=int, default=40, help="pieces a sentence; the tutorial's own [40]")
    add("--batch-tokens", type=int, default=1200, help="of batches of like length [1200]")
    add("--only", help="contestants whose names have one of these parts, separated by commas")
    add(
        "--tokens", type=int, default=60_000, help="real tokens a pass; the second is timed [60000]"
    )
    for name in ("num_layers", "d_model", "num_heads", "dff"):
        default = getattr(Config, name)
        add("--" + name.replace("_", "-"), type=int, default=default, help=f"[{default}]")
    flags = parser.parse_args()
    sizes = {name: getattr(flags, name) for name in ("num_layers", "d_model", "num_heads", "dff")}
    config = Config(
        corpus=flags.corpus, max_length=flags.max_length, batch_tokens=flags.batch_tokens, **sizes
    )  # fmt: skip
    data = pipeline.load(config)
    vocab_size = data.target_tokenizer.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "sentences.npz")
        sentences.write(path, data.train, flags.batch_tokens, flags.tokens)
        job = {"sentences": path, "vocab_size": vocab_size, "config": asdict(config)}
        low = job | {"config": job["config"] | {"precision": "bfloat16"}}
        contestants = {
            "this project, float32": ("ours", job),
            TUTORIAL: ("keras_loop", job),
            "this project, bfloat16": ("ours", low),
            "Keras 3, fit": ("keras_fit", job),
            "PyTorch, our batches": ("pytorch", job),
            "PyTorch, our batches, bfloat16": ("pytorch", low),
            "matmul": ("matmul", job),
        }
        parts = flags.only.split(",") if flags.only else [""]
        kept = [name for name in contestants if any(part in name for part in parts)]
        if not kept:
            parser.error(f"--only {flags.only}: there are {', '.join(contestants)}")
        contestants = {name: contestants[name] for name in kept}
        result = harness.in_turn(contestants, flags.rounds)
        flops = flops_a_token(*sentences.read(path), config, vocab_size)
    rates = result.pop("matmul", {})
    for name, row in result.items():
        if TUTORIAL in result:
            row["ratio"] = row["tokens_per_second"] / result[TUTORIAL]["tokens_per_second"]
        if rates:
            rate = rates["bfloat16" if "bfloat16" in name else "float32"]
            row["utilisation"] = row["tokens_per_second"] * flops / rate
    printed = harness.table(result, COLUMNS)
    if rates:
        printed += "\n\nmatmul 2048³: " + ", ".join(
            f"{rate / 1e9:,.0f} GFLOP/s {dtype}" for dtype, rate in rates.items()
        )
    harness.report(flags.json, printed, {"result": result, "matmul": rates, "flops_a_token": flops})


if __name__ == "__main__":
    main()
