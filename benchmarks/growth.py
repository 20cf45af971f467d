"""What more costs: pairs of the corpus, length of the sentences, size of the model. A picture."""

import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks import harness, sentences
from benchmarks.train import flops_a_token
from config import Config
from data.batches import Pairs, Rows

PAIRS = (10_000, 100_000, 1_000_000)
LENGTHS = (16, 32, 64, 128, 256, 512)
SIZES = (128, 256, 512)
VOCAB_SIZE = 8000


def launches(rounds, folder):
    """By number of pairs: the first launch, which makes the cache, and then those that find it."""
    rows = {}
    for pairs in PAIRS:
        job = {"corpus": f"mini:{pairs}", "cache": f"{folder}/cache", "folder": folder}
        first = harness.in_turn({f"{pairs:,} pairs, first launch": ("launch", job)}, 1)
        warm = harness.in_turn({f"{pairs:,} pairs": ("launch", job)}, rounds)
        rows[f"{pairs:,}"] = {
            "cold_seconds": first[f"{pairs:,} pairs, first launch"]["seconds_to_first_step"],
            "cold_mb": first[f"{pairs:,} pairs, first launch"]["peak_mb"],
            **warm[f"{pairs:,} pairs"],
        }
    return rows


def steps(rounds, folder, points, batch_tokens=2048):
    """points: {name: (length, knobs)} → {name: measures} of steps on sentences of one length."""
    jobs, needed = {}, {}
    for name, (length, knobs) in points.items():
        config = Config(batch_tokens=batch_tokens, max_length=max(length, 128), **knobs)
        ids = np.random.default_rng(0).integers(
            4, VOCAB_SIZE, (16 * batch_tokens // length, length)
        )
        rows = Rows.of(ids.tolist())
        pairs = Pairs(rows, Rows.of(np.pad(ids, [(0, 0), (1, 0)], constant_values=2).tolist()))
        path = f"{folder}/{length}.npz"
        sentences.write(path, pairs, batch_tokens, 10 * 2 * batch_tokens)
        job = {"sentences": path, "vocab_size": VOCAB_SIZE, "config": asdict(config)}
        jobs[name] = ("ours", job)
        needed[name] = flops_a_token(*sentences.read(path), config, VOCAB_SIZE)
    rates = harness.one_turn("matmul", {})
    result = harness.in_turn(jobs, rounds)
    for name, row in result.items():
        rate = rates[points[name][1].get("precision", "float32")]
        row["utilisation"] = row["tokens_per_second"] * needed[name] / rate
    return result


def draw(path, launched, lengths, sizes):
    """Cost against size, three plots in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    pairs = [int(name.replace(",", "")) for name in launched]
    left.plot(pairs, [row["seconds_to_first_step"] for row in launched.values()], "o-")
    left.set(xscale="log", xlabel="sentence pairs", title="launch to first step, cache warm")
    left.set_ylabel("seconds", color="tab:blue")
    memory = left.twinx()
    memory.plot(pairs, [row["peak_mb"] / 1000 for row in launched.values()], "s--", color="tab:red")
    memory.set_ylabel("peak memory, GB", color="tab:red")
    middle.plot(LENGTHS, [row["tokens_per_second"] for row in lengths.values()], "o-")
    middle.set(xscale="log", xticks=LENGTHS, xticklabels=LENGTHS, xlabel="tokens a sentence",
               ylabel="tokens/s", title="training, d_model 128, 4 layers")  # fmt: skip
    middle.minorticks_off()
    for plot in (left, memory, middle):  # from zero, with room above the highest point
        plot.set_ylim(0, 1.15 * max(plot.lines[0].get_ydata()))
    for precision, below in (("float32", True), ("bfloat16", False)):
        rows = [sizes[f"d_model {size}, {precision}"] for size in SIZES]
        right.plot(SIZES, [row["tokens_per_second"] for row in rows], "o-", label=precision)
        for size, row in zip(SIZES, rows, strict=True):
            right.annotate(f"{row['utilisation']:.2f}", (size, row["tokens_per_second"]),
                           textcoords="offset points", xytext=(0, -14 if below else 7),
                           ha="center", fontsize=8)  # fmt: skip
    right.set(xscale="log", yscale="log", xticks=SIZES, xticklabels=SIZES, xlabel="d_model",
              ylabel="tokens/s", title="training, 6 layers (FLOP utilisation)")  # fmt: skip
    speeds = (1000, 2000, 5000, 10_000, 20_000, 50_000)
    right.set_yticks(speeds, [f"{speed:,}" for speed in speeds])
    right.minorticks_off()
    right.margins(0.12, 0.2)
    right.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = harness.flags(__doc__)
    parser.add_argument("--picture", type=Path, default=Path("growth.png"), help="[growth.png]")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launched = launches(flags.rounds, folder)
        lengths = steps(flags.rounds, folder, {f"{n} tokens": (n, {}) for n in LENGTHS})
        knobs = lambda size: {"num_layers": 6, "d_model": size, "dff": 4 * size}  # noqa: E731
        sizes = steps(flags.rounds, folder, {
            f"d_model {size}, {precision}": (32, knobs(size) | {"precision": precision})
            for size in SIZES for precision in ("float32", "bfloat16")
        })  # fmt: skip
    by_pairs = {
        "cold_seconds": ("s, first launch", "{:,.0f}"),
        "cold_mb": ("peak MB, first launch", "{:,.0f}"),
        "seconds_to_first_step": ("s to first step, cache warm", "{:.1f}"),
        "peak_mb": ("peak MB", "{:,.0f}"),
    }
    by_step = {
        "tokens_per_second": ("tokens/s", "{:,.0f}"),
        "utilisation": ("FLOP utilisation", "{:.2f}"),
        "step_ms": ("ms a step", "{:.0f}"),
        "peak_mb": ("peak MB", "{:,.0f}"),
    }
    tables = [harness.table(launched, by_pairs), harness.table(lengths, by_step),
              harness.table(sizes, by_step)]  # fmt: skip
    draw(flags.picture, launched, lengths, sizes)
    figures = {"pairs": launched, "lengths": lengths, "sizes": sizes}
    harness.report(flags.json, "\n\n".join(tables), figures)
    print(f"\nwritten: {flags.picture}")


if __name__ == "__main__":
    main()
