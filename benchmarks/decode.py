"""Decoding speed of a run: this project, CTranslate2 with its weights, and the tutorial's loop."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from config import Config
from data import corpora
from training.machine import cores, import_tensorflow
from training.records import find_run, load_config
from utils import UserError, errors_in_one_line, handle_signals, positive

COLUMNS = {
    "ours": ("sentences/s", "{:,.1f}"),
    "ctranslate2": ("CTranslate2", "{:,.1f}"),
    "ratio": ("× CTranslate2", "{:.2f}"),
    "same": ("same output", "{:.1%}"),
    "tutorial": ("tutorial's loop", "{:.2f}"),
    "over_tutorial": ("× tutorial", "{:,.0f}"),
}


def contestants(job: dict) -> dict[str, tuple[str, dict]]:
    """Return the contestants of one beam width and batch size.

    The tutorial's loop translates only the first sentences.
    """
    result = {"ours": ("ours.search", job)}
    if job["exported"]:
        sequential, parallel = (job | {"parallel_batches": each} for each in (False, True))
        result["ctranslate2-sequential"] = ("ctranslate2.search", sequential)
        if job["batch"] > 1 and len(cores()) > 1:
            result["ctranslate2-parallel"] = ("ctranslate2.search", parallel)
    if not job["search"] and job["batch"] == 1:
        few = job | {"texts": job["texts"][:20]}
        result |= {"ours_few": ("ours.search", few), "tutorial": ("tutorial.search", few)}
    return result


def summarize(result: harness.Rows) -> dict:
    """Return speeds by name, the best one of CTranslate2, and the fraction of equal outputs."""
    row = {name: measures["sentences_per_second"] for name, measures in result.items()}
    modes = [name for name in result if name.startswith("ctranslate2")]
    if modes:
        row["ctranslate2"] = max(row[name] for name in modes)
    if modes and "ours" in row:
        row["ratio"] = row["ours"] / row["ctranslate2"]
        ours, theirs = result["ours"]["outputs"], result[modes[0]]["outputs"]
        equal = [a == " ".join(b.splitlines()) for a, b in zip(ours, theirs, strict=True)]
        row["same"] = sum(equal) / len(equal)
    if {"ours_few", "tutorial"} <= row.keys():
        row["over_tutorial"] = row["ours_few"] / row["tutorial"]
    return row


def export(run: Path, folder: str) -> str | None:
    """Export a run for CTranslate2. Returns the folder, or None if that fails."""
    command = [sys.executable, "-m", "evaluation.export", run, "ctranslate2", folder]
    command += ["--accept-changes"]
    done = subprocess.run(command, cwd=harness.ROOT, stdout=subprocess.DEVNULL)
    return None if done.returncode else folder


def measure(
    run: Path, sources: list[str], config: Config, rounds: int
) -> Iterator[tuple[str, harness.Rows]]:
    """Run all contestants and yield what `harness.report` takes."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        job = {"run": str(run), "max_length": config.max_length}
        job["lowercase"] = config.lowercase
        job["exported"] = export(run, f"{folder}/exported")
        for beam in (1, 4):
            job["search"] = {"beam": beam, "length_penalty": 0.0} if beam > 1 else {}
            for batch in (1, 64, 256):
                job |= {"batch": batch, "texts": sources[:100] if batch == 1 else sources}
                name = f"beam {beam}, batch {batch}" if beam > 1 else f"greedy, batch {batch}"
                for _, result in harness.run_in_turn(contestants(job), rounds):
                    rows[name] = summarize(result)
                    yield name, rows


def main() -> None:
    parser = harness.benchmark_parser(__doc__)
    add = parser.add_argument
    add("run", type=find_run, help="run directory, such as runs/NAME")
    add("--split", default="test", help="split to translate [test]")
    add("--limit", type=positive, help="translate only the first sentences")
    flags = parser.parse_args()
    config = load_config(flags.run)
    if config.task != "translation":
        raise UserError(f"{flags.run} does not translate: give the run of another model")
    import_tensorflow()  # without its messages: tensorflow_datasets imports it
    texts = corpora.from_config(config).load(flags.split).sources
    sources = [text for text in texts if text.strip()][: flags.limit]
    harness.report(measure(flags.run, sources, config, flags.rounds), COLUMNS)


if __name__ == "__main__":
    handle_signals()
    with errors_in_one_line():
        main()
