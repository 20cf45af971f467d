"""Training speed of language models: this project, and PyTorch's stock layers, in turn.

By default the sizes, the text and the batches of nanoGPT's README for a CPU (commit 3adf61e1).
"""

import argparse
from dataclasses import asdict

from benchmarks import harness
from benchmarks.train import COLUMNS, SIZES
from config import Config
from data import pipeline
from data.batches import plan_batches
from training.machine import import_tensorflow
from utils import errors_in_one_line, flag, handle_signals, positive

SHOWN = ("tokens_per_second", "step_ms", "tokens_per_step", "peak_mb", "seconds_to_first_step")
DEFAULTS = {"num_layers": 4, "d_model": 128, "num_heads": 4, "dff": 512}


def contestants(job: dict) -> dict[str, tuple[str, dict]]:
    """Return the functions of benchmarks.peers to run, by the name of their row."""
    bfloat16 = job | {"config": job["config"] | {"precision": "bfloat16"}}
    return {
        "this project, float32": ("ours.train", job),
        "this project, bfloat16": ("ours.train", bfloat16),
        "PyTorch's stock layers, float32": ("pytorch_language_model.train", job),
        "PyTorch's stock layers, bfloat16": ("pytorch_language_model.train", bfloat16),
    }


def parse_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--corpus", default="shakespeare", help="as in train.py [shakespeare]")
    add("--tokenizer", default="char", help="as in train.py [char]")
    add("--max-length", type=positive, default=64, help="tokens per block [64]")
    add("--batch-tokens", type=positive, default=768, help="as in train.py [768]")
    add("--steps", type=positive, default=100, help="per pass; the second pass is timed [100]")
    for name in SIZES:
        add(flag(name), type=positive, default=DEFAULTS[name], help=f"[{DEFAULTS[name]}]")
    return parser.parse_args()


def main() -> None:
    flags = parse_flags()
    import_tensorflow()  # without its messages: tensorflow_datasets imports it
    names = ("corpus", "tokenizer", "max_length", "batch_tokens", *SIZES)
    settings = {name: getattr(flags, name) for name in names}
    config = Config(model="language_model", dropout_rate=0.0, **settings)
    data = pipeline.load(config)
    batches = plan_batches(data.train, config.batch_tokens, config.batch_sentences, config.seed)
    job = {"pairs": data.train, "batches": batches[: flags.steps], "config": asdict(config)}
    job["vocab_size"] = data.target_tokenizer.vocab_size
    columns = {name: COLUMNS[name] for name in SHOWN}
    harness.report(harness.run_in_turn(contestants(job), flags.rounds), columns)


if __name__ == "__main__":
    handle_signals()
    with errors_in_one_line():
        main()
