"""Score a finished run on its test split, translate (or label) with it, look inside, export it."""

import argparse
import codecs
import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

from config import add_flags, fail, flag
from data import corpora
from evaluation.search import Search
from training import machine, records
from training.provenance import changed_files as changed
from training.records import load_config

SUFFIXES = {"last": "", "best": "-best"}  # in file names; the default has none
EXPORTS = ("ctranslate2", "saved_model")
MEMORY_HINT = "lower --beam, or shorten the longest lines"
CHUNK = 5000  # lines translated before they are printed


def decoded(raw, name):
    """The text of bytes. What is no UTF-8 becomes U+FFFD, with a warning."""
    text = raw.decode("utf-8", errors="replace")
    if "\ufffd" in text and text.encode() != raw:
        print(f"warning: {name} is not all UTF-8; the rest became \ufffd", file=sys.stderr)
    return text


def from_flags():
    """The parsed command line; a mistake is one line and exit status 2."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.error = fail
    add = parser.add_argument
    add("run", type=Path, help="a run folder, such as runs/NAME")
    add("--translate", metavar="TEXT", help="translate, or label, one line of text")
    add("--translate-file", metavar="FILE", help="translate each line of FILE (- for standard "
        "input); standard output holds the translations alone")  # fmt: skip
    add("--checkpoint", choices=SUFFIXES, default="last",
        help="the last one, or the best: that of the lowest validation loss [last]")  # fmt: skip
    add("--average", type=int, default=1, metavar="N",
        help="average the weights of the last N checkpoints [1]")  # fmt: skip
    add_flags(parser, Search)
    add("--export", nargs=2, metavar=("FORMAT", "DIR"),
        help="write the model, as ctranslate2 or saved_model, for production")  # fmt: skip
    add("--attention", metavar="TEXT", help="draw where each layer and head looks in TEXT")
    add("--neighbours", metavar="TEXT", help="list the nearest embeddings of each piece of TEXT")
    add("--plots", action="store_true",
        help="draw positions, learning rate and training; of translations also BLEU by length and "
        "whether the metrics agree")  # fmt: skip
    add("--beside", type=Path, nargs="+", default=[], metavar="RUN",
        help="with --plots: other runs, scored likewise, in the same plots")  # fmt: skip
    add("--code", choices=("own", "today"),
        help="where model/ has changed since the run was trained: ask it with its own source, "
        "which runs that code, or with today's")  # fmt: skip
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
    tasks = ("translate", "translate_file", "export", "attention", "neighbours")
    asked = [task for task in tasks if getattr(flags, task) is not None]
    if len(asked) > 1:
        fail("give one of --translate, --translate-file, --export, --attention and --neighbours")
    for name in ("translate", "attention", "neighbours"):
        if getattr(flags, name) is not None:  # a command line can hold any bytes
            setattr(flags, name, decoded(os.fsencode(getattr(flags, name)), flag(name)))
    for name in ("plots", "per_sentence", "limit"):
        if asked and getattr(flags, name):
            fail(f"{flag(name)} goes with scoring, not with {flag(asked[0])}")
    if flags.beside and not flags.plots:
        fail("--beside goes with --plots")
    if flags.plots and flags.limit:
        fail("--plots are of a whole split: leave --limit out")
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


def run_own_code(run):
    """Become the evaluate.py that the run has kept, with the same flags."""
    program = run / "source" / "evaluate.py"
    if not program.exists():
        fail(f"{run} has no source of its own: {program} is not there")
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    asked.add_argument("--code")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(program), *asked.parse_known_args()[1]])


if __name__ == "__main__":  # as in train.py: mistakes are answered before TensorFlow loads
    sys.stdout.reconfigure(encoding="utf-8")  # what is read is UTF-8, too
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # as in train.py
    FLAGS = from_flags()
    if FLAGS.code == "own":
        run_own_code(FLAGS.run)

from evaluation import export, inside, labels, report, translator


def read_lines(name):
    """The lines of a file, or of standard input for "-". Raises OSError.

    Only line feeds end a line. Bytes that are no UTF-8 become U+FFFD, with a warning.
    """
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    text = decoded(raw.removeprefix(codecs.BOM_UTF8), name)
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def recorded(run, split):
    """The hash of a split in a run's corpus.json, None where it has none. Raises OSError,
    ValueError.
    """
    return records.read_json(run / "corpus.json")["splits"].get(split, {}).get("sha256")


def load_split(run, settings, name):
    """A split of the run's corpus, as it was in training. Raises ValueError."""
    split = corpora.load(settings.corpus, name, settings.reverse, settings.labelled)
    if recorded(run, name) != split.sha256():
        raise ValueError(
            f"the {name} split of {settings.corpus} is not the one recorded in {run}/corpus.json: "
            "scores would not be comparable; bring the old text back, or train anew"
        )
    return split


def check_code(run, code):
    """Refuse to ask a model with other code than it was trained with, unless told to.

    It would fail on a shape or, worse, succeed: on other pieces, too. Raises ValueError.
    """
    kept, rooms = run / "source", ("model", "data/tokenizer.py")
    names = changed(kept, Path(__file__).resolve().parent, *rooms) if kept.exists() else []
    if names and code is None:
        raise ValueError(
            f"{names[0]} is not what {run} was trained with: give --code own to ask the "
            f"run's own source, which runs the code in {run}/source, or --code today"
        )


def print_translations(model, lines, progress=False, first=1):
    """A translation for each line; several, where asked for, with the line's number and scores."""
    for number, found in enumerate(model.n_best(lines, progress=progress, first=first), first):
        for score, translation in found:
            print(f"{number}\t{score:.4f}\t" * (len(found) > 1) + translation)
    sys.stdout.flush()


def ending(flags):
    """What tells the files of one way to score a run from those of another."""
    averaged = f"-average{flags.average}" if flags.average > 1 else ""
    return flags.split + SUFFIXES[flags.checkpoint] + averaged + flags.search.suffix


def outputs_of(other, settings, flags, count):
    """The `count` outputs that another run, scored likewise, left. Raises OSError, ValueError."""
    path = other / f"{'labels' if settings.labelled else 'translations'}-{ending(flags)}.txt"
    if not path.exists():
        raise ValueError(f"{other} has no {path.name}: score it in the same way first")
    if recorded(flags.run, flags.split) != recorded(other, flags.split):
        raise ValueError(f"{other} was trained with another {flags.split} split")
    found = path.read_text("utf-8").split("\n")[:-1]
    if len(found) != count:
        raise ValueError(f"{path} has {len(found)} lines, not {count}: score {other} anew")
    return found


def answer(model, flags):
    """Do what the flags ask other than scoring; False where they ask nothing of the kind."""
    if flags.export:
        kind, folder = flags.export
        getattr(export, kind)(model, folder)
        print(f"written: {folder}")
    elif flags.translate is not None:
        print_translations(model, [flags.translate])
    elif flags.translate_file is not None:
        lines = read_lines(flags.translate_file)
        for start in range(0, len(lines), CHUNK):
            chunk = lines[start : start + CHUNK]
            print_translations(model, chunk, progress=True, first=start + 1)
    elif flags.attention is not None:
        print(*inside.draw_attention(model, flags.attention, flags.run / "attention"), sep="\n")
    elif flags.neighbours is not None:
        for piece, others in inside.neighbours(model, flags.neighbours):
            print(piece, *(f"  {cosine:.3f} {other}" for cosine, other in others), sep="\n")
    else:
        return False
    return True


def score(model, settings, flags):
    """Print the scores of a split and leave them in the run's folder."""
    split = load_split(flags.run, settings, flags.split)
    others = {
        other: outputs_of(other, settings, flags, len(split.sources)) for other in flags.beside
    }
    if flags.limit is not None:
        split = split.take(range(min(flags.limit, len(split.sources))))
    kind = labels if model.labelled else report
    result, outputs = kind.measure(model, split)
    what = f"{flags.checkpoint} checkpoint" + f" (mean of {flags.average})" * (flags.average > 1)
    print(f"{flags.run}, {what}, {flags.split} split of {settings.corpus}, "
          f"{len(outputs):,} texts, {model.search}")  # fmt: skip
    kind.print_table(result)
    if flags.limit is None:
        scores = f"scores-{ending(flags)}.json"
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (flags.run / scores).write_text(text, "utf-8")
        names = [scores, *kind.write(flags.run, ending(flags), split, outputs)]
        print(f"written in {flags.run}: {', '.join(names)}")
    if flags.per_sentence:
        kind.write_sentences(flags.per_sentence, split, outputs)
    if flags.plots:
        print(*inside.draw(flags.run, settings, model, split, outputs, others), sep="\n")


def main(flags):
    """Do what the command line asks. Raises OSError and ValueError, each with a clear message."""
    settings = load_config(flags.run)
    check_code(flags.run, flags.code)
    if settings.labelled and flags.search.sample:
        raise ValueError("a label is not drawn: leave --sample out")
    machine.set_parallelism(len(machine.cores()))
    model = translator.load(flags.run, settings, flags.checkpoint, flags.average, flags.search)
    if model.labelled and flags.search.n_best > len(model.tokenizers[1].names):
        raise ValueError(f"there are only {len(model.tokenizers[1].names)} labels: lower --n-best")
    if not answer(model, flags):
        score(model, settings, flags)


if __name__ == "__main__":
    try:
        main(FLAGS)
    except (OSError, ValueError) as error:
        fail(error)
    except machine.out_of_memory_errors() as error:
        fail(machine.advice(error, MEMORY_HINT), 1)
