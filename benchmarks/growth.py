"""Cost of more sentence pairs, longer sentences and larger models, as tables and a picture."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks import harness, sentences
from benchmarks.train import flops_per_token
from config import Config
from data.batches import Pairs, Ragged
from utils import errors_in_one_line

PAIRS = (50_000, 500_000, 1_000_000, 5_000_000)
LENGTHS = (16, 32, 64, 128, 256, 512)
SIZES = (128, 256, 512)
VOCAB_SIZE = 8000


def write_table(path: Path, pairs: int) -> None:
    """Write a .tsv file of pseudo-words with lengths like those of TED talks.

    Word lengths grow with the rank of a word, and its frequency falls with it (Zipf's law).
    """
    syllables = [a + b for a in "bcdfglmnprstv" for b in "aeiou"]
    words = ["".join(word) for n in (1, 2, 3) for word in itertools.product(syllables, repeat=n)][
        :60_000
    ]
    random = np.random.default_rng(0)
    frequency = np.cumsum(1 / (np.arange(len(words)) + 2.7))
    with path.open("w") as file:
        for start in range(0, pairs, 50_000):
            count = min(50_000, pairs - start)
            source = np.exp(random.normal(2.65, 0.68, count))
            target = source * np.exp(random.normal(0, 0.15, count))
            lengths = np.stack([source, target], axis=1).clip(1, 200).astype(int).ravel()
            drawn = random.uniform(0, frequency[-1], lengths.sum())
            drawn = np.searchsorted(frequency, drawn).tolist()
            ends = np.cumsum(lengths).tolist()
            ranges = itertools.pairwise([0, *ends])
            texts = [" ".join([words[i] for i in drawn[a:b]]) for a, b in ranges]
            file.writelines(f"{a}\t{b}\n" for a, b in zip(texts[::2], texts[1::2], strict=True))


def launches(rounds: int, folder: str, numbers: Sequence[int]) -> dict[str, dict]:
    """Measure launches by number of pairs: the first, which writes the cache, and later ones."""
    rows = {}
    for pairs in numbers:
        path = Path(folder, f"{pairs}.tsv")
        write_table(path, pairs)
        job = {"corpus": str(path), "cache": f"{folder}/cache", "folder": folder}
        first = harness.run_in_turn({f"{pairs:,} pairs, first launch": ("launch", job)}, 1)
        warm = harness.run_in_turn({f"{pairs:,} pairs": ("launch", job)}, rounds)
        cold = first.get(f"{pairs:,} pairs, first launch", {})
        rows[f"{pairs:,}"] = {
            "cold_seconds": cold.get("seconds_to_first_step"),
            "cold_mb": cold.get("peak_mb"),
            **warm.get(f"{pairs:,} pairs", {}),
            **(harness.run_once("epoch_plan", job) or {}),
        }
        path.unlink()
    return rows


def steps(
    rounds: int, folder: str, points: dict[str, tuple[int, dict]], batch_tokens: int = 2048
) -> dict[str, dict]:
    """Measure steps on sentences of one length. points: {name: (length, settings)}."""
    jobs, needed = {}, {}
    for name, (length, settings) in points.items():
        config = Config(batch_tokens=batch_tokens, max_length=max(length, 128), **settings)
        ids = np.random.default_rng(0).integers(
            4, VOCAB_SIZE, (16 * batch_tokens // length, length)
        )
        rows = Ragged.of(ids.tolist())
        pairs = Pairs(rows, Ragged.of(np.pad(ids, [(0, 0), (1, 0)], constant_values=2).tolist()))
        path = f"{folder}/{length}.npz"
        sentences.write(path, pairs, batch_tokens, 10 * 2 * batch_tokens)
        job = {"sentences": path, "vocab_size": VOCAB_SIZE, "config": asdict(config)}
        jobs[name] = ("ours", job)
        needed[name] = flops_per_token(*sentences.read(path), config, VOCAB_SIZE)
    rates = harness.run_once("matmul", {})
    result = harness.run_in_turn(jobs, rounds)
    for name, row in result.items():
        if rates:
            rate = rates[points[name][1].get("precision", "float32")]
            row["utilization"] = row["tokens_per_second"] * needed[name] / rate
    return result


def draw(path: Path, launched: dict, lengths: dict, sizes: dict) -> None:
    """Draw cost against size, three plots in one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    pairs = [int(name.replace(",", "")) for name in launched]
    left.plot(pairs, [row["seconds_to_first_step"] for row in launched.values()], "o-")
    left.set(xscale="log", xlabel="sentence pairs", title="launch to first step, cache warm")
    left.set_ylabel("seconds", color="tab:blue")
    memory = left.twinx()
    memory.plot(pairs, [row["peak_mb"] / 1000 for row in launched.values()], "s--", color="tab:red")
    memory.set_ylabel("private memory, GB", color="tab:red")
    middle.plot(LENGTHS, [row["tokens_per_second"] for row in lengths.values()], "o-")
    middle.set(xscale="log", xticks=LENGTHS, xticklabels=LENGTHS, xlabel="tokens per sentence")
    middle.set(ylabel="tokens/s", title="training, d_model 128, 4 layers")
    middle.minorticks_off()
    for plot in (left, memory, middle):
        plot.set_ylim(0, 1.15 * max(plot.lines[0].get_ydata()))
    for precision, below in (("float32", True), ("bfloat16", False)):
        rows = [sizes[f"d_model {size}, {precision}"] for size in SIZES]
        right.plot(SIZES, [row["tokens_per_second"] for row in rows], "o-", label=precision)
        for size, row in zip(SIZES, rows, strict=True):
            right.annotate(
                f"{row['utilization']:.2f}",
                (size, row["tokens_per_second"]),
                textcoords="offset points",
                xytext=(0, -14 if below else 7),
                ha="center",
                fontsize=8,
            )
    right.set(xscale="log", yscale="log", xticks=SIZES, xticklabels=SIZES, xlabel="d_model")
    right.set(ylabel="tokens/s", title="training, 6 layers (FLOP utilization)")
    speeds = (1000, 2000, 5000, 10_000, 20_000, 50_000)
    right.set_yticks(speeds, [f"{speed:,}" for speed in speeds])
    right.minorticks_off()
    right.margins(0.12, 0.2)
    right.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = harness.benchmark_parser(__doc__)
    parser.add_argument(
        "--picture", type=Path, default=Path("growth.png"), help="output file [growth.png]"
    )
    sizes = f"numbers of pairs [{' '.join(map(str, PAIRS))}]"
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS, metavar="N", help=sizes)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launched = launches(flags.rounds, folder, flags.pairs)
        lengths = steps(flags.rounds, folder, {f"{n} tokens": (n, {}) for n in LENGTHS})
        points = {}
        for size in SIZES:
            for precision in ("float32", "bfloat16"):
                settings = {"num_layers": 6, "d_model": size, "dff": 4 * size}
                settings["precision"] = precision
                points[f"d_model {size}, {precision}"] = (32, settings)
        sizes = steps(flags.rounds, folder, points)
    by_pairs = {
        "cold_seconds": ("s, first launch", "{:,.0f}"),
        "cold_mb": ("private MB, first launch", "{:,.0f}"),
        "seconds_to_first_step": ("s to first step, cache warm", "{:.1f}"),
        "peak_mb": ("private MB", "{:,.0f}"),
        "plan_seconds": ("s, plan of an epoch", "{:.2f}"),
        "plan_mb": ("MB, plan of an epoch", "{:,.0f}"),
    }
    by_step = {
        "tokens_per_second": ("tokens/s", "{:,.0f}"),
        "utilization": ("FLOP utilization", "{:.2f}"),
        "step_ms": ("ms per step", "{:.0f}"),
        "peak_mb": ("peak MB", "{:,.0f}"),
    }
    tables = [harness.table(launched, by_pairs)]
    tables += [harness.table(rows, by_step) for rows in (lengths, sizes)]
    measurements = {"pairs": launched, "lengths": lengths, "sizes": sizes}
    harness.report(flags.json, "\n\n".join(tables), measurements)
    draw(flags.picture, launched, lengths, sizes)  # last, because it needs every figure
    print(f"\nwrote {flags.picture}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
