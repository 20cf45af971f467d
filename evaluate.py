"""Score a finished run on its test split, translate with it, or export it."""

import argparse
import codecs
import json
import sys
from dataclasses import fields
from pathlib import Path

import config
from config import fail, flag
from data import corpora
from evaluation.search import Search

SUFFIXES = {"last": "", "best": "-best"}  # in file names; the default has none
EXPORTS = ("ctranslate2", "saved_model")
CHUNK = 5000  # lines translated before they are printed


def from_flags():
    """The parsed command line; a mistake is one line and exit status 2."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.error = fail
    add = parser.add_argument
    add("run", type=Path, help="a run folder, such as runs/NAME")
    add("--translate", metavar="TEXT", help="translate one line of text and print it")
    add("--translate-file", metavar="FILE", help="translate each line of FILE (- for standard "
        "input); standard output holds the translations alone")  # fmt: skip
    add("--checkpoint", choices=SUFFIXES, default="last",
        help="the last one, or the best: that of the lowest validation loss [last]")  # fmt: skip
    add("--average", type=int, default=1, metavar="N",
        help="average the weights of the last N checkpoints [1]")  # fmt: skip
    config.add_flags(parser, Search)
    add("--export", nargs=2, metavar=("FORMAT", "DIR"),
        help="write the model, as ctranslate2 or saved_model, for production")  # fmt: skip
    add("--split", default="test", help="the split to score [test]")
    add("--limit", type=int, metavar="N",
        help="score the first N sentences alone; leave the run's files")  # fmt: skip
    add("--per-sentence", type=Path, metavar="FILE.tsv",
        help="also write source, reference, translation and scores of each sentence")  # fmt: skip
    flags = parser.parse_args()
    for name in ("limit", "average"):
        if getattr(flags, name) is not None and getattr(flags, name) < 1:
            fail(f"--{name} {getattr(flags, name)} is not at least 1")
    if flags.average > 1 and flags.checkpoint == "best":
        fail("there is only one best checkpoint: --average goes with --checkpoint last")
    tasks = ("translate", "translate_file", "export")
    if sum(getattr(flags, task) is not None for task in tasks) > 1:
        fail("give one of --translate, --translate-file and --export")
    if flags.export and flags.export[0] not in EXPORTS:
        fail(f"--export {flags.export[0]} is none of {', '.join(EXPORTS)}")
    names = [field.name for field in fields(Search) if field.name in flags]
    try:
        flags.search = Search(**{name: getattr(flags, name) for name in names})
    except ValueError as error:
        fail(error)
    if flags.search.n_best > 1 and flags.translate is None and flags.translate_file is None:
        fail("--n-best goes with --translate or --translate-file")
    if flags.export and flags.export[0] == "ctranslate2" and names:
        fail(f"a CTranslate2 model is told at each call how to search: leave {flag(names[0])} out")
    return flags


if __name__ == "__main__":  # as in train.py: mistakes are answered before TensorFlow loads
    FLAGS = from_flags()

from evaluation import export, inference, report


def read_lines(name):
    """The lines of a file, or of standard input for "-". Raises OSError.

    Only line feeds end a line. Bytes that are no UTF-8 become U+FFFD, with a warning.
    """
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    raw = raw.removeprefix(codecs.BOM_UTF8)
    text = raw.decode("utf-8", errors="replace")
    if "\ufffd" in text and text.encode() != raw:
        print(f"warning: {name} is not all UTF-8; the rest became \ufffd", file=sys.stderr)
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def load_split(run, settings, name):
    """A split of the run's corpus, as it was in training. Raises ValueError."""
    split = corpora.load(settings.corpus, name, settings.reverse)
    recorded = json.loads((run / "corpus.json").read_text("utf-8"))["splits"]
    if recorded.get(name, {}).get("sha256") != split.sha256():
        raise ValueError(
            f"the {name} split of {settings.corpus} is not the one recorded in {run}/corpus.json: "
            "scores would not be comparable; bring the old text back, or train anew"
        )
    return split


def warn_of_changed_code(run):
    """Say so where the model's code is not what the run was trained with."""
    here = Path(__file__).resolve().parent / "model"
    for path in sorted((run / "source" / "model").glob("*.py")):
        if not (here / path.name).exists() or (here / path.name).read_bytes() != path.read_bytes():
            print(
                f"warning: model/{path.name} has changed since {run} was trained; its own code is "
                f"asked by: python {run}/source/evaluate.py {run}",
                file=sys.stderr,
            )
            return


def print_translations(model, lines, progress=False, first=1):
    """A translation for each line; several, where asked for, with the line's number and scores."""
    for number, found in enumerate(model.n_best(lines, progress=progress, first=first), first):
        for score, translation in found:
            print(f"{number}\t{score:.4f}\t" * (len(found) > 1) + translation)
    sys.stdout.flush()


def main(flags):
    """Do what the command line asks. Raises OSError and ValueError, each with a clear message."""
    settings = config.read(flags.run)
    warn_of_changed_code(flags.run)
    inference.share_cores(inference.cores())
    model = inference.load(flags.run, settings, flags.checkpoint, flags.average, flags.search)
    if flags.export:
        kind, folder = flags.export
        getattr(export, kind)(model, folder)
        print(f"written: {folder}")
        return
    if flags.translate is not None:
        print_translations(model, [flags.translate])
        return
    if flags.translate_file is not None:
        lines = read_lines(flags.translate_file)
        for start in range(0, len(lines), CHUNK):
            chunk = lines[start : start + CHUNK]
            print_translations(model, chunk, progress=True, first=start + 1)
        return
    split = load_split(flags.run, settings, flags.split)
    if flags.limit is not None:
        split = corpora.Split(*(column and column[: flags.limit] for column in split))
    result, translations = report.measure(model, split)
    what = f"{flags.checkpoint} checkpoint" + f" (mean of {flags.average})" * (flags.average > 1)
    print(f"{flags.run}, {what}, {flags.split} split of {settings.corpus}, "
          f"{len(translations):,} sentences, {model.search}")  # fmt: skip
    report.print_table(result)
    if flags.limit is None:
        averaged = f"-average{flags.average}" if flags.average > 1 else ""
        ending = flags.split + SUFFIXES[flags.checkpoint] + averaged + flags.search.suffix
        text = "".join(translation + "\n" for translation in translations)
        (flags.run / f"translations-{ending}.txt").write_text(text, "utf-8")
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (flags.run / f"scores-{ending}.json").write_text(text, "utf-8")
        print(f"written: {flags.run}/scores-{ending}.json and translations-{ending}.txt")
    if flags.per_sentence:
        report.write_sentences(flags.per_sentence, split, translations)


if __name__ == "__main__":
    try:
        main(FLAGS)
    except (OSError, ValueError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
