"""Score a finished run on its test split, translate with it, or export it."""

import argparse
import codecs
import json
import os
import sys
import time
from pathlib import Path

import config
from config import fail
from data import corpora

SUFFIXES = {"last": "", "best": "-best"}  # in file names; the default has none
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
    add("--beam", type=int, default=1, metavar="N",
        help="beam search with N hypotheses; 1 is greedy search [1]")  # fmt: skip
    add("--length-penalty", type=float, default=0.6, metavar="ALPHA",
        help="how much beam search favours long translations, as GNMT does [0.6]")  # fmt: skip
    add("--n-best", type=int, default=1, metavar="N",
        help="with --translate and --translate-file, print N translations a line: the line's "
        "number, score and text, tab-separated; at most --beam")  # fmt: skip
    add("--sample", action="store_true", help="draw each token at random, by the model's odds")
    add("--temperature", type=float, metavar="T",
        help="with --sample: below 1 the likely becomes likelier [1]")  # fmt: skip
    add("--top-k", type=int, metavar="K", help="with --sample: only among the K likeliest")
    add("--top-p", type=float, metavar="P",
        help="with --sample: only among the likeliest that have P of the odds")  # fmt: skip
    add("--seed", type=int, metavar="N", help="with --sample: of the draws [0]")
    add("--export", nargs=2, metavar=("FORMAT", "DIR"),
        help="write the model for production: ctranslate2 or saved_model")  # fmt: skip
    add("--split", default="test", help="the split to score [test]")
    add("--limit", type=int, metavar="N",
        help="score the first N sentences alone; leave the run's files")  # fmt: skip
    add("--per-sentence", type=Path, metavar="FILE.tsv",
        help="also write source, reference, translation and scores of each sentence")  # fmt: skip
    flags = parser.parse_args()
    for name in ("limit", "average", "beam", "n_best", "top_k"):
        if getattr(flags, name) is not None and getattr(flags, name) < 1:
            fail(f"{config.flag(name)} {getattr(flags, name)} is not at least 1")
    if flags.average > 1 and flags.checkpoint == "best":
        fail("there is only one best checkpoint: --average goes with --checkpoint last")
    if flags.translate is not None and flags.translate_file is not None:
        fail("give --translate or --translate-file, not both")
    check_search(flags)
    if flags.export and flags.export[0] not in ("ctranslate2", "saved_model"):
        fail(f"--export {flags.export[0]} is neither ctranslate2 nor saved_model")
    return flags


def check_search(flags):
    """End with a sentence where the flags that say how to search do not go together."""
    drawn = {name: getattr(flags, name) for name in ("temperature", "top_k", "top_p", "seed")}
    for name, value in drawn.items():
        if value is not None and not flags.sample:
            fail(f"{config.flag(name)} goes with --sample")
    if flags.sample and flags.beam > 1:
        fail("--sample draws one translation: it does not go with --beam")
    if flags.n_best > flags.beam:
        fail(f"--n-best {flags.n_best} is more than --beam {flags.beam} can find")
    if not 0 <= flags.length_penalty < float("inf"):
        fail(f"--length-penalty {flags.length_penalty} is not at least 0")
    if flags.temperature is not None and not 0 < flags.temperature < float("inf"):
        fail(f"--temperature {flags.temperature} is not above 0")
    if flags.top_p is not None and not 0 < flags.top_p <= 1:
        fail(f"--top-p {flags.top_p} is not above 0 and at most 1")
    if flags.seed is not None and not 0 <= flags.seed < 2**31:
        fail(f"--seed {flags.seed} is not at least 0 and below 2**31")
    given = {name: value for name, value in drawn.items() if value is not None}
    if flags.sample:
        given = {"temperature": 1.0} | given
    flags.search = given | {
        name: getattr(flags, name) for name in ("beam", "length_penalty", "n_best")
    }


if __name__ == "__main__":  # as in train.py: mistakes are answered before TensorFlow loads
    FLAGS = from_flags()

from data import encoded
from evaluation import export, inference, scores


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


def measure(model, split):
    """Scores of an Inference on a Split → a dict for the table and the file, the translations."""
    model.translate(split.sources[:1])  # traces the graph
    began = time.perf_counter()
    translations = model.translate(split.sources, progress=True)
    seconds = time.perf_counter() - began
    pieces = sum(map(len, model.tokenizers[1].encode(translations)))
    pairs, dropped = encoded.encode(split, *model.tokenizers, model.max_length)
    result = scores.score(translations, split.targets)
    signatures = result.pop("signatures")
    if len(pairs.source.lengths):
        result["loss"], result["accuracy"] = model.loss_and_accuracy(pairs)
    result |= {
        "sentences_per_second": len(translations) / seconds,
        "tokens_per_second": pieces / seconds,
        "sentences": len(translations),
        "sentences_too_long_for_loss": dropped,
        "search": str(model.search),
        "signatures": signatures,
    }
    if split.tags:
        result["exact_match_by_tag"] = scores.by_tag(translations, split.targets, split.tags)
    return result, translations


def print_table(result):
    """Every number with its name; then exact match by phenomenon, where the corpus has tags."""
    for name, value in result.items():
        if isinstance(value, float):
            signature = result["signatures"].get(name, "")
            print(f"{name:22}{value:10.4g}  {signature}".rstrip())
    for tag, (count, exact) in result.get("exact_match_by_tag", {}).items():
        print(f"  {tag:20}{exact:10.4g}  exact match of {count} sentences")


def write_sentences(path, split, translations):
    """A tab-separated line for each sentence, under a line of names."""
    columns = {"source": split.sources, "reference": split.targets, "translation": translations}
    if split.tags:
        columns["tag"] = split.tags
    for name, values in scores.sentence_scores(translations, split.targets).items():
        columns[name] = [f"{value:.2f}" for value in values]
    rows = [columns, *zip(*columns.values(), strict=True)]
    lines = ("\t".join(cell.replace("\t", " ") for cell in row) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")


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
    inference.side_by_side(os.cpu_count())
    search = inference.Search(**flags.search)
    model = inference.load(flags.run, settings, flags.checkpoint, flags.average, search)
    if flags.export:
        kind, folder = flags.export
        (export.ctranslate2 if kind == "ctranslate2" else export.saved_model)(model, folder)
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
    result, translations = measure(model, split)
    what = f"{flags.checkpoint} checkpoint" + f" (mean of {flags.average})" * (flags.average > 1)
    print(f"{flags.run}, {what}, {flags.split} split of {settings.corpus}, "
          f"{len(translations):,} sentences, {model.search}")  # fmt: skip
    print_table(result)
    if flags.limit is None:
        averaged = f"-average{flags.average}" if flags.average > 1 else ""
        searched = f"-beam{flags.beam}" if flags.beam > 1 else "-sample" * flags.sample
        ending = flags.split + SUFFIXES[flags.checkpoint] + averaged + searched
        text = "".join(translation + "\n" for translation in translations)
        (flags.run / f"translations-{ending}.txt").write_text(text, "utf-8")
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (flags.run / f"scores-{ending}.json").write_text(text, "utf-8")
        print(f"written: {flags.run}/scores-{ending}.json and translations-{ending}.txt")
    if flags.per_sentence:
        write_sentences(flags.per_sentence, split, translations)


if __name__ == "__main__":
    try:
        main(FLAGS)
    except (OSError, ValueError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
