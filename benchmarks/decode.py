"""Decoding speed of a trained run: this project, CTranslate2 with the same weights and the
tutorial's loop, in turn.
"""

import os
import tempfile
from pathlib import Path

from benchmarks import harness
from data import corpora
from training.records import load_config


def main():
    parser = harness.flags(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="a run folder, such as runs/NAME")
    add("--split", default="test", help="the split to translate [test]")
    add("--limit", type=int, help="the first sentences alone; the slow ones get fewer anyway")
    flags = parser.parse_args()
    settings = load_config(flags.run)
    texts = corpora.load(settings.corpus, flags.split, settings.reverse).sources
    kept = [" ".join(text.split("\n")) for text in texts if text.strip()][: flags.limit]
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        exported = f"{folder}/exported"
        files = {count: f"{folder}/{count}.txt" for count in (20, 100, len(kept))}
        for count, path in files.items():
            Path(path).write_text("\n".join(kept[:count]), "utf-8")
        job = {"run": str(flags.run), "to": exported}
        have = harness.one_turn("ctranslate2_export", job) is not None
        if not have:
            print('skipped CTranslate2: it is not installed; pip install -e ".[benchmarks]"')
        for beam in (1, 4):
            for batch in (1, 64, 256):
                search = {"beam": beam, "length_penalty": 0.0} if beam > 1 else {}
                job = {"run": str(flags.run), "exported": exported, "search": search,
                       "batch": batch, "max_length": settings.max_length,
                       "texts": files[100 if batch == 1 else len(kept)]}  # fmt: skip
                contestants = {"ours": ("our_search", job)}
                if have:
                    ways = (False, True) if batch > 1 and os.cpu_count() > 1 else (False,)
                    for apart in ways:
                        name = f"ctranslate2-{'apart' if apart else 'together'}"
                        contestants[name] = (
                            "ctranslate2_search", job | {"batches_side_by_side": apart}
                        )  # fmt: skip
                if beam == batch == 1:
                    few = job | {"texts": files[20]}
                    contestants["ours_few"] = ("our_search", few)
                    contestants["tutorial"] = ("tutorial_search", few)
                result = harness.in_turn(contestants, flags.rounds)
                rows[f"{'greedy' if beam == 1 else 'beam 4'}, batch {batch}"] = compare(result)
    alone = rows["greedy, batch 1"]
    for name, row in rows.items():
        if name.startswith("greedy"):
            # The tutorial's loop gets few sentences: scaled by what we need for them and for all.
            scale = alone["ours"] / alone["ours_few"]
            row["over_tutorial"] = row["ours"] / (alone["tutorial"] * scale)
    columns = {
        "ours": ("this project, sentences/s", "{:,.1f}"),
        "ctranslate2": ("CTranslate2", "{:,.1f}"),
        "ratio": ("× CTranslate2", "{:.2f}"),
        "same": ("same output", "{:.1%}"),
        "tutorial": ("tutorial's loop", "{:.2f}"),
        "over_tutorial": ("× tutorial", "{:,.0f}"),
    }
    harness.report(flags.json, harness.table(rows, columns), {"result": rows})


def compare(result):
    """Speeds by name; CTranslate2's better way; the share of sentences with the same output."""
    row = {name: turn["sentences_per_second"] for name, turn in result.items()}
    ways = [name for name in result if name.startswith("ctranslate2")]
    if ways:
        row["ctranslate2_way"] = max(ways, key=lambda name: row[name])
        row["ctranslate2"] = max(row[name] for name in ways)
        row["ratio"] = row["ours"] / row["ctranslate2"]
        pairs = zip(result["ours"]["outputs"], result[ways[0]]["outputs"], strict=True)
        row["same"] = sum(a == " ".join(b.splitlines()) for a, b in pairs) / len(
            result["ours"]["outputs"]
        )
    return row


if __name__ == "__main__":
    main()
