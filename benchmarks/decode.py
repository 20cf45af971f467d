"""Decoding speed of a run: this project, CTranslate2 with its weights, and the tutorial's loop."""

import tempfile
from pathlib import Path

from benchmarks import harness
from data import corpora
from training.machine import cores
from training.records import load_config
from utils import errors_in_one_line

COLUMNS = {
    "ours": ("this project, sentences/s", "{:,.1f}"),
    "ctranslate2": ("CTranslate2", "{:,.1f}"),
    "ratio": ("× CTranslate2", "{:.2f}"),
    "same": ("same output", "{:.1%}"),
    "tutorial": ("tutorial's loop", "{:.2f}"),
    "over_tutorial": ("× tutorial", "{:,.0f}"),
}


def contestants(job: dict, few: str, has_ctranslate2: bool) -> dict[str, tuple[str, dict]]:
    """Return the contestants of one beam width and batch size.

    few: a file with the few sentences that the tutorial's loop translates.
    """
    result = {"ours": ("our_search", job)}
    if has_ctranslate2:
        result["ctranslate2-sequential"] = ("ctranslate2_search", job | {"parallel_batches": False})
        if job["batch"] > 1 and len(cores()) > 1:
            result["ctranslate2-parallel"] = (
                "ctranslate2_search",
                job | {"parallel_batches": True},
            )
    if not job["search"] and job["batch"] == 1:
        result["ours_few"] = ("our_search", job | {"texts": few})
        result["tutorial"] = ("tutorial_search", job | {"texts": few})
    return result


def summarize(result: dict[str, dict]) -> dict:
    """Return speeds by name, the better mode of CTranslate2, and the fraction of equal outputs."""
    row = {name: measures["sentences_per_second"] for name, measures in result.items()}
    modes = [name for name in result if name.startswith("ctranslate2")]
    if modes:
        row["ctranslate2_mode"] = max(modes, key=lambda name: row[name])
        row["ctranslate2"] = row[row["ctranslate2_mode"]]
    if modes and "ours" in result:
        row["ratio"] = row["ours"] / row["ctranslate2"]
        ours, theirs = result["ours"]["outputs"], result[modes[0]]["outputs"]
        equal = [a == " ".join(b.splitlines()) for a, b in zip(ours, theirs, strict=True)]
        row["same"] = sum(equal) / len(equal)
    return row


def measure(run: Path, sources: list[str], max_length: int, rounds: int) -> dict[str, dict]:
    """Run all contestants: {search and batch size: measures}."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {count: f"{folder}/{count}.txt" for count in (20, 100, len(sources))}
        for count, path in files.items():
            Path(path).write_text("\n".join(sources[:count]), "utf-8")
        job = {"run": str(run), "exported": f"{folder}/exported", "max_length": max_length}
        export = harness.run_once("ctranslate2_export", job | {"to": job["exported"]})
        for beam in (1, 4):
            search = {"beam": beam, "length_penalty": 0.0} if beam > 1 else {}
            for batch in (1, 64, 256):
                texts = files[100 if batch == 1 else len(sources)]
                job |= {"search": search, "batch": batch, "texts": texts}
                turns = contestants(job, files[20], export is not None)
                result = harness.run_in_turn(turns, rounds)
                name = "greedy" if beam == 1 else f"beam {beam}"
                rows[f"{name}, batch {batch}"] = summarize(result)
    single = rows["greedy, batch 1"]
    if {"ours_few", "tutorial"} <= single.keys():
        # Of the few sentences that the tutorial's loop translates.
        single["over_tutorial"] = single["ours_few"] / single["tutorial"]
    return rows


def main() -> None:
    parser = harness.benchmark_parser(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="run directory, such as runs/NAME")
    add("--split", default="test", help="split to translate [test]")
    add("--limit", type=int, help="translate only the first sentences")
    flags = parser.parse_args()
    config = load_config(flags.run)
    texts = corpora.from_config(config).load(flags.split).sources
    sources = [" ".join(text.split("\n")) for text in texts if text.strip()][: flags.limit]
    rows = measure(flags.run, sources, config.max_length, flags.rounds)
    harness.report(flags.json, harness.table(rows, COLUMNS), {"result": rows})


if __name__ == "__main__":
    with errors_in_one_line():
        main()
