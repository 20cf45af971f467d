"""Damaged input by the hundred thousand: python -m tests.fuzz --inputs 100000

Not part of the suite, which has a small share of this in tests/test_bad_input.py. Intact files and
command lines are damaged at random and read. Every input must be accepted, or rejected in one line:
no traceback, no hang, no lost line. A failure is printed with the seed and number that reproduce
it.
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

import evaluate
import translate
import utils
from config import Config
from data import corpora, pipeline, tokenizer
from data.splits import SPLITS
from evaluation import command_line
from evaluation.search import Search
from evaluation.translator import Translator
from model import build
from tests.helpers import load_split, open_corpus
from training import records
from training.checkpoints import readable_checkpoints
from training.command_line import parse_config
from utils import UserError

SIGNS = "\x85 \u2028 \u2029 \u2581 \u2585 \u200d \u202e \U0010ffff \ufffd 👩‍👩‍👧 ㍿ İ"
JSON_TEXTS = '{} [] NaN Infinity null true " , -1 1e999 \\ud800'
PIECES = [b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t"]
PIECES += [b"\x1c", b"..", b"/", b"<s>", b"</s>", b"<unk>", b"x" * 20_000, b"9" * 5000]
PIECES += [*SIGNS.encode().split(), *JSON_TEXTS.encode().split(), b"[" * 5000, b'{"a":' * 5000]
VALUES = [None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308]
VALUES += [float("nan"), float("inf"), "", "mini", "x\ny", "\0", "\ud800", "../..", "/etc/passwd"]
VALUES += [[], [1], {}, {"a": 1}, [[[]]], "none", "transformer", "classifier", "9" * 999]
LIMIT = 20  # seconds of processor time for one input, and minutes of wall time


def damaged(draws: random.Random, intact: bytes) -> bytes:
    """Return bytes with a few random changes."""
    text = bytearray(intact)
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
                text[at:at] = draws.choice(PIECES)
    return bytes(text)


def damaged_json(draws: random.Random, value: dict) -> bytes:
    """Return a JSON text with other values in some places, or a damaged text."""
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


def count_lines(content: bytes) -> int:
    """Return the number of lines of a file that is not empty."""
    return content.count(b"\n") + (not content.endswith(b"\n"))


def text_lines(content: bytes) -> list[str]:
    """Return the lines of a file in UTF-8, without a byte order mark."""
    lines = content.removeprefix(b"\xef\xbb\xbf").decode().removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def count_pairs(pairs: Iterable[Sequence[str]]) -> int:
    """Return the number of pairs without an empty text."""
    return sum(all(map(str.strip, pair)) for pair in pairs)


def tensors(path: str) -> dict[str, np.ndarray]:
    """Return the contents of a checkpoint."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


class Readers:
    """Methods that read a damaged input: draws → whether it was accepted. They raise UserError."""

    def __init__(self, folder: Path):
        self.folder = folder
        texts = load_split("mini:300", "train")
        pairs = load_split("mini", "test").take(range(20))
        self.texts = ["\n".join(column).encode() + b"\n" for column in pairs[:2]]
        rows = zip(*texts[:2], strict=True)
        self.rows = "".join(f"{a}\t{b}\n" for a, b in rows).encode()
        self.labels = "".join(f"{i % 2}\t{a}\n" for i, a in enumerate(texts.sources)).encode()
        sizes = {"d_model": 16, "num_heads": 2, "num_layers": 1, "dff": 16, "max_length": 12}
        settings = Config(corpus="mini:300", vocab_size=500, tie_embeddings=False, **sizes)
        self.settings = dataclasses.asdict(settings)
        self.tokenizers = tokenizer.train_pair(texts, [], settings)
        model = build(settings, *(each.vocab_size for each in self.tokenizers))
        ends_soon = 6.0 * tf.one_hot(tokenizer.EOS, self.tokenizers[1].vocab_size)
        model.output.bias.assign(ends_soon)
        self.translators = [
            Translator(model, *self.tokenizers, settings.max_length, search)
            for search in (Search(sample=True), Search(beam=2, n_best=2))
        ]
        path = tf.train.Checkpoint(model=model).save(str(folder / "intact" / "ckpt"))
        suffixes = (".index", ".data-00000-of-00001")
        self.checkpoint = {suffix: Path(path + suffix).read_bytes() for suffix in suffixes}
        self.tensors = tensors(path)

    def new(self, *parts: str) -> Path:
        """Return a new path, and delete the files of the input before."""
        shutil.rmtree(self.folder / "input", ignore_errors=True)
        path = self.folder.joinpath("input", *parts)
        path.parent.mkdir(parents=True)
        return path

    def corpus_folder(self, draws):
        """A directory of train.en and train.pt: all lines of both are read, but for empty ones."""
        contents = [damaged(draws, text) for text in self.texts]
        paths = [self.new("corpus", "train.pt"), self.folder / "input/corpus/train.en"]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
            path.with_stem("validation").write_bytes(content)
        for path in draws.sample(paths, draws.choice((0, 0, 0, 0, 1))):
            path.rename(path.with_suffix(draws.choice((".x", ".en.gz", ".pt2"))))
        split = load_split(str(paths[0].parent), "train", reverse=draws.random() < 0.5)
        assert len(split.sources) == count_pairs(zip(*map(text_lines, contents), strict=True))
        assert not any("\n" in text for column in split[:2] for text in column)
        return True

    def table(self, draws, model="transformer"):
        """A .tsv: each line is in one split, but for those with an empty text."""
        labelled = model == "classifier"
        content = damaged(draws, self.labels if labelled else self.rows)
        path = self.new("table.tsv")
        path.write_bytes(content)
        splits = [load_split(path, name, model=model) for name in SPLITS]
        columns = 1 if labelled else -1
        pairs = ((line + "\t").split("\t", columns)[:2] for line in text_lines(content))
        assert sum(len(split.sources) for split in splits) == count_pairs(pairs)
        return True

    def labelled_table(self, draws):
        """A .tsv of labels and texts."""
        return self.table(draws, model="classifier")

    def text(self, draws):
        """A .txt for a language model: every character is in one split."""
        content = damaged(draws, self.rows)
        path = self.new("text.txt")
        path.write_bytes(content)
        splits = [load_split(path, name, model="language_model") for name in SPLITS]
        text = "".join(line for split in splits for line in split.targets)
        assert text == content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        return True

    def labelled_folder(self, draws):
        """A directory of train/LABEL/*.txt."""
        texts = [damaged(draws, line) for line in self.texts[0].split(b"\n")[:4]]
        root = self.new("train").parent
        for i, text in enumerate(texts):
            label = draws.choice(("pos", "neg", "x", "á")) if draws.random() < 0.1 else "ab"[i % 2]
            path = root / "train" / label / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        corpus = open_corpus(root, model="classifier")
        for split in corpus.splits:
            corpus.load(split)
        return True

    def encoded_corpus(self, draws):
        """A .tsv, from the tokenizer's training to cached arrays."""
        path = self.new("table.tsv")
        path.write_bytes(damaged(draws, self.rows))
        flags = {name: draws.random() < 0.5 for name in ("lowercase", "shared_vocabulary")}
        flags |= {"vocab_size": draws.choice((264, 300, 2000)), "max_length": draws.choice((4, 40))}
        flags |= {"tokenizer": draws.choice(("bpe", "word", "char"))}
        cache = str(self.folder / "input/cache")
        dataset = pipeline.load(Config(corpus=str(path), cache_dir=cache, **flags))
        counts = dataset.corpus_info["splits"]["train"]
        assert counts["pairs"] - counts["dropped"] == len(dataset.train.source.lengths)
        if flags["tokenizer"] == "bpe" and not flags["lowercase"]:
            texts = dataset.validation_texts.sources
            decoded = dataset.source_tokenizer.decode(dataset.source_tokenizer.encode(texts))
            spaces = [[text.replace("\u2581", " ") for text in row] for row in (decoded, texts)]
            assert spaces[0] == spaces[1], "a text was changed"
        return True

    def configuration(self, draws):
        """config.json of a run."""
        path = self.new("config.json")
        path.write_bytes(damaged_json(draws, self.settings))
        settings = records.load_config(path.parent)
        if "/" not in settings.corpus:  # tensorflow_datasets takes a tenth of a second
            corpora.from_config(settings)
        return True

    def tokenizer_model(self, draws):
        """tokenizer.model and labels.txt of a run."""
        path = self.new("tokenizer.model")
        path.write_bytes(damaged(draws, self.tokenizers[0].model))
        if draws.random() < 0.2:
            (path.parent / "labels.txt").write_bytes(damaged(draws, b"neg\npos\n"))
        for each in tokenizer.load_pair(path.parent):
            if isinstance(each, tokenizer.Tokenizer):
                each.decode(each.encode(["o menino lê um livro", "\0 \u2581 🙂"]))
            each.tokens(range(each.vocab_size))
        return True

    def checkpoint_files(self, draws):
        """A checkpoint: a value that is read is the value that was written."""
        path = self.new("ckpt-1")
        target = draws.choice(list(self.checkpoint))
        for suffix, content in self.checkpoint.items():
            changed = damaged(draws, content) if suffix == target else content
            path.with_name(path.name + suffix).write_bytes(changed)
        paths = readable_checkpoints(path.parent)
        for name, value in tensors(paths[0]).items() if paths else ():
            assert np.array_equal(value, self.tensors[name]), "an altered value was accepted"
        return bool(paths)

    def lines_to_translate(self, draws):
        """Lines of a file: each has a translation."""
        lines = self.texts[0].split(b"\n")
        content = damaged(draws, b"\n".join(draws.sample(lines, 5)) + b"\n")
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.seek(0)
            texts = [text for chunk in translate.read_lines(file) for text in chunk]
        outputs = self.translators[draws.random() < 0.2].n_best(texts)
        content = content.removeprefix(b"\xef\xbb\xbf")
        count = count_lines(content) if content else 0
        assert len(outputs) == count, f"{count} lines in, {len(outputs)} out"
        assert all(len(text.splitlines()) <= 1 for best in outputs for _, text in best)
        return True

    def text_to_translate(self, draws):
        """A text on the command line, where bytes that are not UTF-8 are surrogates."""
        text = damaged(draws, b"o menino")[:2000].replace(b"\0", b"")
        text = command_line.valid_text(os.fsdecode(text))
        assert len(self.translators[0].n_best([text])) == 1
        return True

    def flags(self, draws, names: list[str], parse: Callable[[], object]):
        """A command line: exit status 2 and one line, or what it asks for."""
        words = []
        for _ in range(draws.choice((0, 1, 1, 2, 3, 5))):
            words.append(draws.choice(names) if draws.random() < 0.9 else str(draws.choice(VALUES)))
            for _ in range(draws.choice((0, 1, 1, 1, 2))):
                value = str(draws.choice(VALUES))
                if draws.random() < 0.3:
                    value = damaged(draws, b"mini")[:500].decode(errors="surrogateescape")
                words.append(value)
        words = [word.replace("\0", "") for word in words if not word.startswith("\ud800")]
        arguments, sys.argv = sys.argv, ["program", *words]
        try:
            with contextlib.redirect_stderr(io.StringIO()) as err:
                parse()
            return True
        except SystemExit as error:
            lines = err.getvalue().splitlines(keepends=True)
            text = "".join(line for line in lines if not line.startswith(("warning: ", "note: ")))
            assert error.code in (0, 2)
            if error.code:
                assert text.startswith("error: ") and text.count("\n") == 1, f"{text!r:.400}"
            return not error.code
        finally:
            sys.argv = arguments

    def train_flags(self, draws):
        """The command line of train.py."""
        names = [*map(utils.flag, self.settings), "--help", "--", "-x", "--no-reverse"]
        return self.flags(draws, names, lambda: parse_config(""))

    def evaluate_flags(self, draws):
        """The command line of evaluate.py."""
        run = self.new("config.json")
        run.write_text(json.dumps(self.settings))
        names = [utils.flag(field.name) for field in dataclasses.fields(Search)]
        names += ["--checkpoint", "--average", "--split", "--limit", "--corpus", "-h"]
        return self.flags(draws, [*names, str(run.parent)], evaluate.parse_flags)


# Of a hundred inputs; slow readers get few.
SHARES = {
    "corpus_folder": 14,
    "table": 9,
    "labelled_table": 7,
    "text": 1,
    "labelled_folder": 4,
    "configuration": 33,
    "tokenizer_model": 5,
    "lines_to_translate": 4,
    "text_to_translate": 4,
    "train_flags": 8.5,
    "evaluate_flags": 8.5,
    "checkpoint_files": 1.5,
    "encoded_corpus": 0.5,
}


class Hang(Exception):
    """Reading an input takes longer than LIMIT."""


def hang(number, frame):
    raise Hang(f"more than {LIMIT} s")


def try_input(read: Callable[[random.Random], bool], draws: random.Random) -> tuple[str, object]:
    """Read one input. Returns "accepted", "rejected" or "failed", and the error if there is one."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.alarm(60 * LIMIT)
    try:
        out = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            return "accepted" if read(draws) else "rejected", None
    except (UserError, OSError) as error:
        one_line = str(error).strip() and len(str(error).splitlines()) == 1
        return ("rejected", None) if one_line else ("failed", error)
    except (Exception, SystemExit) as error:
        return "failed", error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def main() -> None:
    """Read many inputs, and print a table of how many were accepted and rejected."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="number of inputs [100000]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damage [0]")
    parser.add_argument("--only", choices=SHARES, help="one reader only [all]")
    parser.add_argument("--number", type=int, help="one input only, with its traceback")
    flags = parser.parse_args()
    totals = Counter()
    print(f"{'reader':22}{'inputs':>8}{'accepted':>10}{'rejected':>10}{'failed':>8}{'ms':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        readers = Readers(Path(scratch))
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, hang)
        for name, share in ({flags.only: 100} if flags.only else SHARES).items():
            count = round(flags.inputs * share / 100)
            numbers = range(count) if flags.number is None else [flags.number]
            start, results, places = time.monotonic(), Counter(), Counter()
            for number in numbers:
                draws = random.Random(f"{flags.seed} {name} {number}")
                result, error = try_input(getattr(readers, name), draws)
                results[result] += 1
                if error:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    place = f"{Path(last.filename).name}:{last.lineno}"
                    places[place] += 1
                    if places[place] <= 9:
                        print(f"  failed: {name}, number {number}, {place}: {error!r:.300}")
                    if flags.number is not None:
                        traceback.print_exception(error)
            totals.update(results)
            spent = 1000 * (time.monotonic() - start) / max(1, len(numbers))
            columns = "{accepted:10,}{rejected:10,}{failed:8,}".format_map(results)
            print(f"{name:22}{len(numbers):8,}{columns}{spent:8.2f}", flush=True)
    columns = "{accepted:10,}{rejected:10,}{failed:8,}".format_map(totals)
    print(f"{'all':22}{totals.total():8,}{columns}")
    raise SystemExit(1 if totals["failed"] else 0)


if __name__ == "__main__":
    main()
