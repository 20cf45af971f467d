"""Bad input by the hundred thousand: python -m tests.fuzz --inputs 100000

Not a part of the suite (whose smaller share of this is tests/test_bad_input.py). Good files and
command lines are damaged at random and given to what reads them. Whatever comes, it is taken, or
refused in one sentence: never a traceback, never a hang, never a lost line. What breaks is named
with its seed and number, which make it again.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

import config
import evaluate
from data import corpora, local, pipeline, tokenizer
from data.splits import SPLITS
from evaluation import inside, plots
from evaluation.search import Search
from evaluation.translator import Translator
from model import MODELS
from training import records
from training.checkpoints import readable

SIGNS = "\x85 \u2028 \u2029 \u2581 \u2585 \u200d \u202e \U0010ffff \ufffd 👩‍👩‍👧 ㍿ İ"
NASTY = [
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t",
    b"\x1c", *SIGNS.encode().split(), b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"1e999", b"-1",
    b"NaN", b"Infinity", b"null", b"true", b'"', b"\\ud800", b"{}", b"[]", b",", b"..", b"/",
    b"x" * 20_000, b"<s>", b"</s>", b"<unk>",
]  # fmt: skip
VALUES = [None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308, float("nan"),
          float("inf"), "", "mini", "x\ny", "\0", "\ud800", "../..", "/etc/passwd", [], [1], {},
          {"a": 1}, [[[]]], "none", "transformer", "classifier", "9" * 999]  # fmt: skip
LIMIT = 20  # seconds of a core, after which an input counts as a hang; as many minutes by the clock


def damaged(draws, good):
    """Bytes with a few random changes."""
    text = bytearray(good)
    for _ in range(draws.choice((0, 1, 1, 1, 2, 4, 16))):
        at = draws.randint(0, len(text))
        to = min(len(text), at + draws.choice((1, 1, 2, 8, 64, 999)))
        match draws.randrange(8):
            case 0 if text:
                text[at % len(text)] ^= 1 << draws.randrange(8)
            case 1:
                del text[at:to]
            case 2:
                text[at:at] = text[at:to] * draws.choice((1, 2, 50))
            case 3:
                del text[at:]
            case 4:
                text[at:at] = draws.randbytes(to - at)
            case 5:
                piece = text[at:to]
                del text[at:to]
                text[(place := draws.randint(0, len(text))) : place] = piece
            case _:
                text[at:at] = draws.choice(NASTY)
    return bytes(text)


def damaged_json(draws, value):
    """A JSON text: one of the values within is another, or the text itself is damaged."""
    value = json.loads(json.dumps(value))
    places, todo = [], [value]
    while todo:
        inner = todo.pop()
        keys = inner if isinstance(inner, dict) else range(len(inner))
        for key in list(keys):
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                todo.append(inner[key])
    for _ in range(draws.choice((0, 1, 1, 2, 3))):
        inner, key = draws.choice(places)
        inner[key] = draws.choice(VALUES)
        if isinstance(inner, dict) and draws.random() < 0.1:
            inner[str(draws.choice(VALUES))] = draws.choice(VALUES)
    text = json.dumps(value).encode()
    return damaged(draws, text) if draws.random() < 0.3 else text


def refusal(error):
    """Check that an error is one sentence that can be printed."""
    text = str(error)
    assert text.strip() and len(text.splitlines()) == 1, f"not one line: {text!r:.300}"


def tensors(path):
    """All that a checkpoint holds."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


class Surfaces:
    """What reads what others have written. Each method: draws → whether the input was taken."""

    def __init__(self, folder):
        self.folder = folder
        texts = corpora.load("mini:300", "train")
        tables = [corpora.load("mini", "test").take(range(20))]
        self.pairs = ["\n".join(column).encode() + b"\n" for column in tables[0][:2]]
        rows = zip(*texts[:2], strict=True)
        self.rows = "".join(f"{a}\t{b}\n" for a, b in rows).encode()
        self.labels = "".join(f"{i % 2}\t{a}\n" for i, a in enumerate(texts.sources)).encode()
        settings = config.Config(
            corpus="mini:300", vocab_size=500, d_model=16, num_heads=2, num_layers=1, dff=16,
            max_length=12, tie_embeddings=False,
        )  # fmt: skip
        self.settings = dataclasses.asdict(settings)
        self.run = folder / "run"
        self.run.mkdir()
        self.pair = tokenizer.train_pair(texts, settings)
        tokenizer.save_pair(self.run, *self.pair)
        self.piece_model = self.pair[0].model
        model = MODELS["transformer"](settings, *(made.vocab_size for made in self.pair))
        ends_soon = 6.0 * tf.one_hot(tokenizer.EOS, self.pair[1].vocab_size)
        model.output.bias.assign(ends_soon)
        self.inferences = [
            Translator(model, *self.pair, settings.max_length, search)
            for search in (Search(sample=True), Search(beam=2, n_best=2))
        ]
        saved = tf.train.Checkpoint(model=model).save(str(folder / "whole" / "ckpt"))
        self.checkpoint = [Path(f"{saved}{end}") for end in (".index", ".data-00000-of-00001")]
        self.tensors = tensors(saved)
        facts = {"sha256": "0" * 64, "pairs": 3, "dropped": 0}
        self.corpus = {"languages": ["pt", "en"], "splits": dict.fromkeys(SPLITS, facts)}
        values = {"loss": 2.5, "accuracy": 0.5, "learning_rate": 1e-4, "grad_norm": 1.0,
                  "epoch": 1, "tokens_per_second": 1e4}  # fmt: skip
        self.metrics = [{"step": step, **values} for step in (1, 2, 3)]
        self.metrics += [{"step": 3, "validation_loss": 2.0, "validation_accuracy": 0.5,
                          "validation_bleu": 12.5, "epoch": 1, "seconds": 9.0}]  # fmt: skip

    def new(self, *parts):
        """A new path; the folder of an earlier input is gone."""
        shutil.rmtree(self.folder / "input", ignore_errors=True)
        path = self.folder.joinpath("input", *parts)
        path.parent.mkdir(parents=True)
        return path

    def corpus_folder(self, draws):
        """train.en and train.pt: what is taken has all lines, and none has become two."""
        contents = [damaged(draws, text) for text in self.pairs]
        paths = [self.new("corpus", "train.pt"), self.folder / "input/corpus/train.en"]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        for path in draws.sample(paths, draws.choice((0, 0, 0, 0, 1))):
            path.rename(path.with_suffix(draws.choice((".x", ".en.gz", ".pt2"))))
        split = corpora.load(str(paths[0].parent), "train", reverse=draws.random() < 0.5)
        for column, content in zip(split[:2], contents[::-1], strict=True):
            count = content.count(b"\n") + (not content.endswith(b"\n"))
            assert len(split.sources) == len(column)
            assert count == len(column) and not any("\n" in text for text in column)
        return True

    def table(self, draws, good=None):
        """A .tsv: each line falls to one split."""
        content = damaged(draws, good or self.rows)
        path = self.new("table.tsv")
        path.write_bytes(content)
        read = {s: corpora.load(str(path), s, labelled=good is not None) for s in SPLITS}
        count = content.count(b"\n") + (not content.endswith(b"\n"))
        assert sum(len(split.sources) for split in read.values()) == count
        return True

    def labelled_table(self, draws):
        return self.table(draws, self.labels)

    def labelled_folder(self, draws):
        """train/LABEL/*.txt."""
        texts = [damaged(draws, line) for line in self.pairs[0].split(b"\n")[:4]]
        for i, text in enumerate(texts):
            label = draws.choice(("pos", "neg", "x", "á")) if draws.random() < 0.1 else "ab"[i % 2]
            if i == 0:
                self.new("train")
            path = self.folder / "input" / "train" / label / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        with contextlib.redirect_stderr(io.StringIO()):
            local.labelled_folder(self.folder / "input").read("train")
        return True

    def whole_corpus(self, draws):
        """A .tsv through tokenizer training and encoding, to the arrays and back."""
        path = self.new("table.tsv")
        path.write_bytes(damaged(draws, self.rows))
        flags = {"vocab_size": draws.choice((264, 300, 2000)), "max_length": draws.choice((4, 40))}
        for name in ("lowercase", "shared_vocabulary"):
            flags[name] = draws.random() < 0.5
        flags["tokenizer"] = draws.choice(("bpe", "word"))
        folder = self.folder / "input/cache"
        with contextlib.redirect_stderr(io.StringIO()):
            made = pipeline.load(config.Config(corpus=str(path), cache_dir=str(folder), **flags))
        facts = made.facts["splits"]["train"]
        assert facts["pairs"] - facts["dropped"] == len(made.train.source.lengths)
        if flags["tokenizer"] == "bpe" and not flags["lowercase"]:
            texts = made.validation_texts.sources
            back = made.source_tokenizer.decode(made.source_tokenizer.encode(texts))
            space = lambda text: text.replace("\u2581", " ")  # noqa: E731
            assert list(map(space, back)) == list(map(space, texts)), "not the same text again"
        return True

    def configuration(self, draws):
        path = self.new("config.json")
        path.write_bytes(damaged_json(draws, self.settings))
        made = config.read(path.parent)
        if "/" not in made.corpus:  # tensorflow_datasets takes a tenth of a second
            corpora.check(made.corpus, made.labelled)
        return True

    def metrics_file(self, draws):
        path = self.new("metrics.jsonl")
        lines = [json.dumps(line).encode() for line in self.metrics]
        hurt = draws.randrange(4)
        lines[hurt] = damaged_json(draws, self.metrics[hurt])
        path.write_bytes(b"\n".join(lines) + draws.choice((b"\n", b"\n", b"")))
        lines = inside.metrics_of(path.parent)
        if draws.random() < 0.01:  # a picture takes half a second
            plots.training(path.parent / "picture", lines)
        return True

    def corpus_facts(self, draws):
        path = self.new("corpus.json")
        path.write_bytes(damaged_json(draws, self.corpus))
        return evaluate.recorded(path.parent, "test") is not None

    def tokenizer_model(self, draws):
        path = self.new("tokenizer.model")
        path.write_bytes(damaged(draws, self.piece_model))
        if draws.random() < 0.2:
            (path.parent / "labels.txt").write_bytes(damaged(draws, b"neg\npos\n"))
        for made in tokenizer.load_pair(path.parent):
            if isinstance(made, tokenizer.Tokenizer):
                made.decode(made.encode(["o menino lê um livro", "\0 \u2581 🙂"]))
            made.tokens(range(made.vocab_size))
        return True

    def checkpoint_files(self, draws):
        """What can be read of a damaged checkpoint is what was written."""
        path = self.new("ckpt-1")
        hurt = draws.randrange(2)
        for i, file in enumerate(self.checkpoint):
            content = file.read_bytes()
            ending = "".join(file.suffixes) if i == 0 else file.name.removeprefix("ckpt-1")
            changed = damaged(draws, content) if i == hurt else content
            path.with_name(path.name + ending).write_bytes(changed)
        with contextlib.redirect_stderr(io.StringIO()):
            found = readable(path.parent)
        assert not found or all(
            np.array_equal(value, self.tensors[name]) for name, value in tensors(found[0]).items()
        ), "an altered value was taken for a good one"
        return bool(found)

    def lines_to_translate(self, draws):
        """As many lines come out as went in."""
        path = self.new("lines.txt")
        lines = self.pairs[0].split(b"\n")
        content = damaged(draws, b"\n".join(draws.sample(lines, 5)) + b"\n")
        path.write_bytes(content)
        with contextlib.redirect_stderr(io.StringIO()):
            asked = evaluate.read_lines(str(path))
            found = self.inferences[draws.random() < 0.2].n_best(asked)
        content = content.removeprefix(b"\xef\xbb\xbf")
        count = content.count(b"\n") + (not content.endswith(b"\n")) if content else 0
        assert len(found) == count, f"{count} lines in, {len(found)} out"
        assert all(len(text.splitlines()) <= 1 for best in found for _, text in best)
        return True

    def a_text_to_translate(self, draws):
        """From a command line, where bytes that are no UTF-8 are lone surrogates."""
        text = damaged(draws, b"o menino")[:2000].replace(b"\0", b"")
        was, sys.argv = sys.argv, ["evaluate.py", "run", "--translate", "=" + os.fsdecode(text)]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                asked = evaluate.from_flags().translate
                assert len(self.inferences[0].n_best([asked])) == 1
        finally:
            sys.argv = was
        return True

    def flags(self, draws, known, read):
        """A command line: one line and status 2, or what was asked for."""
        words = []
        for _ in range(draws.choice((0, 1, 1, 2, 3, 5))):
            words.append(draws.choice(known) if draws.random() < 0.9 else str(draws.choice(VALUES)))
            for _ in range(draws.choice((0, 1, 1, 1, 2))):
                value = str(draws.choice(VALUES))
                if draws.random() < 0.3:
                    value = damaged(draws, b"mini")[:500].decode(errors="surrogateescape")
                words.append(value)
        words = [w.replace("\0", "") for w in words if not w.startswith("\ud800")]
        was, sys.argv = sys.argv, ["program", *words]
        try:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                read()
            return True
        except SystemExit as error:
            lines = err.getvalue().splitlines(keepends=True)
            text = "".join(line for line in lines if not line.startswith("warning: "))
            assert error.code in (0, 2)
            if error.code:
                assert text.startswith("error: ") and text.count("\n") == 1, f"{text!r:.400}"
            return not error.code
        finally:
            sys.argv = was

    def train_flags(self, draws):
        names = [config.flag(name) for name in self.settings] + [
            "--help",
            "--",
            "-x",
            "--no-reverse",
        ]
        return self.flags(draws, names, lambda: config.from_flags("", self.check))

    def evaluate_flags(self, draws):
        names = [config.flag(field.name) for field in dataclasses.fields(Search)]
        names += ["--translate", "--translate-file", "--checkpoint", "--average", "--export",
                  "--attention", "--neighbours", "--plots", "--beside", "--code", "--split",
                  "--limit", "--per-sentence", "-h", "run"]  # fmt: skip
        return self.flags(draws, names, evaluate.from_flags)

    @staticmethod
    def check(name, labelled):
        if "/" not in name:
            corpora.check(name, labelled)

    def run_folder(self, draws):
        """Links, pipes and the like among a run's files."""
        folder = self.new("run", "x").parent
        good = True
        for i in range(draws.randrange(1, 6)):
            path = folder.joinpath(
                *draws.choices(("a", "b", "checkpoints"), k=draws.randrange(3)), str(i)
            )
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                match draws.randrange(5):
                    case 0:
                        path.symlink_to(draws.choice(("/etc/passwd", "..", "nowhere", folder, "x")))
                        good = False
                    case 1:
                        os.mkfifo(path)
                        good = False
                    case _:
                        path.write_bytes(b"x")
        try:
            records.check_folder(folder)
        except ValueError:
            assert not good
            raise
        assert good
        return True


# Of a hundred inputs; what takes long has few.
SHARES = {
    "corpus_folder": 13, "table": 8, "labelled_table": 8, "labelled_folder": 4, "configuration": 16,
    "metrics_file": 10, "corpus_facts": 6, "tokenizer_model": 5, "lines_to_translate": 4,
    "a_text_to_translate": 4, "train_flags": 8.5, "evaluate_flags": 8.5, "run_folder": 3,
    "checkpoint_files": 1.5, "whole_corpus": 0.5,
}  # fmt: skip


class Hang(Exception):
    """An input took longer than LIMIT seconds."""


def hang(number, frame):
    raise Hang(f"more than {LIMIT} s")


def main():
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many [100000]")
    parser.add_argument("--seed", type=int, default=0, help="of the damage [0]")
    parser.add_argument("--only", choices=SHARES, help="what reads them [all of it]")
    parser.add_argument("--number", type=int, help="this one alone, with its traceback")
    flags = parser.parse_args()
    signal.signal(signal.SIGALRM, hang)
    signal.signal(signal.SIGPROF, hang)
    with tempfile.TemporaryDirectory() as scratch:
        surfaces = Surfaces(Path(scratch))
        shares = {flags.only: 100} if flags.only else SHARES
        print(f"{'what reads it':22}{'inputs':>8}{'taken':>8}{'refused':>8}{'broken':>7}{'ms':>8}")
        totals = Counter()
        for name, share in shares.items():
            count = round(flags.inputs * share / 100)
            numbers = range(count) if flags.number is None else [flags.number]
            began, results, seen = time.monotonic(), Counter(), Counter()
            for number in numbers:
                signal.setitimer(signal.ITIMER_PROF, LIMIT)
                signal.alarm(60 * LIMIT)
                try:
                    taken = getattr(surfaces, name)(random.Random(f"{flags.seed} {name} {number}"))
                    results["taken" if taken else "refused"] += 1
                except (Exception, SystemExit) as error:
                    try:
                        assert isinstance(error, ValueError | OSError), f"{error!r:.300}"
                        refusal(error)
                        results["refused"] += 1
                    except AssertionError as broken:
                        results["broken"] += 1
                        last = traceback.extract_tb(error.__traceback__)[-1]
                        where = f"{Path(last.filename).name}:{last.lineno}"
                        seen[where] += 1
                        if seen[where] <= 9:
                            print(f"  broken: {name}, number {number}, {where}: {broken}")
                        if flags.number is not None:
                            traceback.print_exception(error)
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    signal.alarm(0)
            totals.update(results)
            spent = 1000 * (time.monotonic() - began) / max(1, len(numbers))
            row = [results[what] for what in ("taken", "refused", "broken")]
            print(f"{name:22}{len(numbers):8,}{row[0]:8,}{row[1]:8,}{row[2]:7,}{spent:8.2f}",
                  flush=True)  # fmt: skip
    print(
        f"{'all':22}{totals.total():8,}"
        + "".join(
            f"{totals[what]:{width},}"
            for what, width in (("taken", 8), ("refused", 8), ("broken", 7))
        )
    )
    raise SystemExit(1 if totals["broken"] else 0)


if __name__ == "__main__":
    main()
