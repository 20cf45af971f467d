"""evaluate.py, translate.py and the commands of evaluation/, on a run of train.py."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from helpers import TINY, edit_json, load_split, metrics_of, train_here, write, write_corpus
from pyarrow.parquet import write_table

from config import Config
from data import corpora, pipeline
from data.arrays import Pairs, Ragged
from data.splits import Split
from data.tokenizer import EOS, Labels
from evaluation import loading, report
from evaluation import scores as scoring
from evaluation.metrics import bleu
from evaluation.search import Search
from evaluation.translator import Translator
from model.decoding import filter_logits
from training.checkpoints import readable_checkpoints
from training.records import load_config, read_json
from utils import UserError

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "um carro e uma casa"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two epochs on a directory of texts, from Portuguese to English.

    English comes first in the alphabet, so that only --reverse makes it the target.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    directories = {"runs_dir": str(folder), "cache_dir": str(folder / "cache"), "name": "run"}
    settings = {"reverse": True, "word_dropout": 0.3, "epochs": 2}
    corpus = write_corpus(folder / "talks")
    return train_here(**TINY | directories | settings, corpus=str(corpus))


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that may be changed."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture(scope="module")
def texts(run):
    """The sources and targets of the test split."""
    return load_split(str(run.parent / "talks"), "test", reverse=True)


@pytest.fixture
def score(run_program):
    return lambda *flags: run_program("evaluate.py", *flags)


@pytest.fixture
def translate(run_program):
    return lambda *flags, **options: run_program("translate.py", *flags, **options)


@pytest.fixture
def measured(monkeypatch):
    """Let evaluate.py find these scores at once."""
    table = {name: ["a"] for name in ("source", "reference", "output", "chrf")}
    result = {"bleu": 1.0, "search": "greedy"}, table
    monkeypatch.setattr(scoring, "measure", lambda *_: result)


def written(run):
    """Return the names of the files that evaluate.py has written."""
    kinds = ("scores-", "outputs-")
    return {path.name for path in run.iterdir() if path.name.startswith(kinds)}


def files(name):
    return {f"scores-{name}.json", f"outputs-{name}.tsv"}


def keyword(result, *words):
    """Return whether a program has failed with one line that contains all words."""
    assert result.status == 2 and result.out == ""
    return result.err.startswith("error: ") and all(word in result.err for word in words)


# ---- Scores -------------------------------------------------------------------------------------


def test_the_table_and_the_file_have_every_score(copy, score, texts):
    status, out, _ = score(copy)
    assert status == 0
    scores = read_json(copy / "scores-test.json")
    names = "bleu chrf rouge_1 rouge_2 rouge_l meteor exact_match loss accuracy"
    for name in names.split():
        (shown,) = re.findall(rf"^{name} +(\S+)", out, re.MULTILINE)
        assert float(shown.replace(",", "")) == pytest.approx(scores[name], rel=1e-3, abs=0.01)
    assert scores["signatures"]["bleu"] in out and "tok:13a" in scores["signatures"]["bleu"]
    assert scores["texts"] == 30
    table = report.read_outputs(copy, "test")
    assert (table["source"], table["reference"]) == texts[:2]
    assert bleu(table["output"], texts.targets) == scores["bleu"]
    assert np.mean(list(map(float, table["exact_match"]))) == pytest.approx(scores["exact_match"])


def test_the_best_checkpoint_has_the_lowest_validation_loss(copy, score):
    """The loss in training is that of evaluate.py: without dropout, word dropout and smoothing."""
    losses = [line.get("validation_loss", np.inf) for line in metrics_of(copy)]
    for path in (copy / "checkpoints").glob("ckpt-[1-9]*"):
        path.unlink()  # the last checkpoint is not the best one
    assert score(copy, "--split", "validation", "--checkpoint", "best").status == 0
    assert written(copy) == files("validation-best")
    loss = read_json(copy / "scores-validation-best.json")["loss"]
    assert loss == pytest.approx(min(losses), rel=1e-5)
    assert len(report.read_outputs(copy, "validation-best")["output"]) == 20


def test_a_limit_writes_nothing(copy, score, measured):
    status, out, _ = score(copy, "--limit", "5", "--split", "validation")
    assert status == 0 and "5 texts of 20" in out
    assert written(copy) == set()


def test_a_changed_split_is_another_corpus(copy, score, tmp_path):
    """A corpus that has only moved keeps the names of its files."""
    talks = shutil.copytree(read_json(copy / "config.json")["corpus"], tmp_path / "talks")
    edit_json(copy / "config.json", corpus=str(talks))
    moved = talks.rename(tmp_path / "moved")
    assert keyword(score(copy), "talks")
    config = load_config(copy)
    assert report.load_split(copy, config, "test", str(moved))[1] == "test"
    moved.rename(talks)
    text = (talks / "test.pt").read_text("utf-8")
    (talks / "test.pt").write_text(text.replace("o", "a", 1), "utf-8")
    assert keyword(score(copy), "test split", "--corpus")
    _, name, _ = report.load_split(copy, config, "test", str(talks))
    assert re.fullmatch(r"talks-test-\w{8}", name)


def test_the_train_split_is_the_share_that_was_trained_on(tmp_path):
    config = Config(corpus="mini:300", train_share=0.5)
    summary = corpora.from_config(config).summarize("train", limit=300)
    record = {"languages": ["pt", "en"], "splits": {"train": {"sha256": summary.sha256}}}
    (tmp_path / "corpus.json").write_text(json.dumps(record))
    split, name, _ = report.load_split(tmp_path, config, "train")
    assert name == "train" and 100 < len(split.sources) < 200


def test_every_line_of_another_table_is_scored(copy, score, measured, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{a}\t{b}\n" for a, b in zip(*texts[:2], strict=True)]
    Path("news.tsv").write_text("".join(lines[:7]), "utf-8")
    assert score(copy, "--corpus", "news.tsv").status == 0
    config = load_config(copy)
    split, name, _ = report.load_split(copy, config, "all", "news.tsv")
    assert name.startswith("news-all-") and f"scores-{name}.json" in written(copy)
    assert split.sources == texts.sources[:7]
    for other in ("news.tsv", 100 * "é" + ".tsv"):  # the same name, and one that is too long
        Path(other).write_text(lines[9], "utf-8")
        _, another, _ = report.load_split(copy, config, "all", other)
        assert another != name and len(f"outputs-{another}.tsv".encode()) < 150


def test_texts_that_training_has_seen_are_counted(copy, score, measured, texts, tmp_path):
    """Four pairs of the test split, and twelve of training, in a table."""
    train = load_split(read_json(copy / "config.json")["corpus"], "train", reverse=True)
    pairs = [*zip(*train[:2], strict=True)][:12] + [*zip(*texts[:2], strict=True)][:4]
    news = write(tmp_path / "news.tsv", "".join(f"{one}\t{other}\n" for one, other in pairs))
    result = score(copy, "--corpus", news)
    assert result.status == 0 and "75.0%" in result.err and "in train" in result.err
    (name,) = (name for name in written(copy) if name.startswith("scores-"))
    assert read_json(copy / name)["seen"] == 0.75


def test_another_corpus_has_the_direction_of_the_run(copy, texts, tmp_path):
    config, corpus = load_config(copy), read_json(copy / "config.json")["corpus"]
    assert report.load_split(copy, config, "test", corpus) == (texts, "test", True)
    edit_json(copy / "corpus.json", languages=["en", "pt"])
    backward, *_ = report.load_split(copy, config, "test", corpus)
    assert (backward.sources, backward.targets) == (texts.targets, texts.sources)


def test_another_spreadsheet_has_the_columns_of_the_run(copy, texts, tmp_path):
    rows = zip(range(9), texts.targets, texts.sources, strict=False)  # the run reads pt → en
    news = write(
        tmp_path / "news.csv", "id,en,pt\n" + "".join(f'{n},"{a}","{b}"\n' for n, a, b in rows)
    )
    split, *_ = report.load_split(copy, load_config(copy), "all", news)
    assert split == texts.take(range(9))
    backward, *_ = report.load_split(copy, load_config(copy), "all", news, "id,en")
    assert backward.targets == texts.targets[:9]
    edit_json(copy / "corpus.json", languages=["nl", "de"])  # names that it does not have
    split, *_ = report.load_split(copy, load_config(copy), "all", news)
    assert split.targets == ["en", *texts.targets[:9]]


def test_tensorflow_is_set_up_before_a_corpus_is_read(copy, score, monkeypatch):
    """Reading a dataset of tensorflow_datasets starts it, after which its threads are fixed."""
    monkeypatch.setattr(report, "load_split", lambda *_: pytest.fail("read"))
    monkeypatch.setattr(loading, "load", lambda *_, **__: sys.exit(7))
    assert score(copy, "--corpus", "mini:300").status == 7


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("evaluate.py nosuch", "nosuch"),
        ("evaluate.py RUN --limit 0", "--limit"),
        ("evaluate.py RUN --stride 9", "--stride"),
        ("evaluate.py RUN --average 9", "--average"),
        ("evaluate.py RUN --average 2 --checkpoint best", "--average"),
        ("evaluate.py RUN --checkpoint third", "last"),
        ("evaluate.py RUN --n-best 2", "unrecognized"),
        ("evaluate.py RUN --languages en,de", "--corpus"),
        ("translate.py RUN --file nosuch", "nosuch"),
        ("translate.py RUN --n-best 2 a", "--beam 2"),
        ("translate.py RUN FILE", "--file"),
        ("translate.py RUN --sample --temperature 0 a", "--no-sample"),
        ("translate.py RUN --beam 0 a", "--beam"),
        ("translate.py RUN --top-k 3 a", "--top-k"),
        ("translate.py RUN --length-penalty 1 a", "--length-penalty"),
        ("translate.py RUN --beam 2 --length-penalty nan a", "--length-penalty"),
        ("translate.py RUN --sample --beam 2 a", "--beam"),
        ("translate.py RUN --sample --top-p 0 a", "--top-p"),
        ("translate.py RUN --sample --top-p 1.1 a", "--top-p"),
        ("evaluation/figures.py RUN nosuch", "nosuch"),
        ("evaluation/export.py RUN onnx DIR", "onnx"),
        ("evaluation/export.py RUN saved_model RUN", "exists"),
        ("evaluation/export.py RUN saved_model DIR\udcff", "UTF-8"),
        ("evaluation/export.py RUN saved_model /dev/null/DIR", "/dev/null"),
        ("evaluation/export.py RUN ctranslate2 DIR --beam 2", "search"),
    ],
)
def test_mistakes_are_one_line_before_tensorflow_loads(
    run, run_program, monkeypatch, command, word
):
    monkeypatch.setattr("training.machine.import_tensorflow", lambda: pytest.fail("loaded"))
    program, *flags = command.split()
    words = {"RUN": str(run), "FILE": __file__}
    result = run_program(program, *(words.get(flag, flag) for flag in flags))
    assert keyword(result, word) and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("split", "corpus"), [("nosuch", None), ("test", "nosuch"), ("no", "talks")]
)
def test_a_missing_corpus_or_split_is_an_error(run, split, corpus):
    corpus = str(run.parent / "talks") if corpus == "talks" else corpus
    with pytest.raises(UserError, match="no"):
        report.load_split(run, load_config(run), split, corpus)


# ---- Loading ------------------------------------------------------------------------------------


def test_changed_model_code_is_rejected_unless_accepted(copy, translate):
    attention = copy / "source" / "model" / "attention.py"
    attention.write_text(attention.read_text("utf-8") + "print('my own code')\n", "utf-8")
    own_code = f"{copy}/source"
    assert keyword(translate(copy, "a"), "model/attention.py", own_code, "--accept-changes")
    assert translate(copy, "a", "--accept-changes").status == 0
    assert (copy / "source" / "translate.py").exists()
    attention.unlink()
    assert keyword(translate(copy, "a"), "model/attention.py")


def test_an_exception_in_an_edited_model_keeps_its_traceback(run, translate, monkeypatch):
    def step(*arguments):
        raise ValueError("an edit")

    monkeypatch.setattr("model.transformer.Transformer.decode_step", step)
    with pytest.raises(ValueError, match="an edit"):
        translate(run, "a")


def test_a_checkpoint_of_another_model_is_rejected(copy, translate):
    for change in ({"num_layers": 2}, {"dff": 16}):
        before = edit_json(copy / "config.json", **change)
        assert keyword(translate(copy, "a"), "does not fit")
        edit_json(copy / "config.json", **before)


def test_an_average_is_the_mean_of_the_weights(run, score):
    paths = readable_checkpoints(run / "checkpoints", 2)
    readers = [tf.train.load_checkpoint(path) for path in paths]
    pattern = re.compile(r"model/.*embedding/table/.ATTRIBUTES/VARIABLE_VALUE")
    (name,) = filter(pattern.fullmatch, readers[0].get_variable_to_shape_map())
    tables = [reader.get_tensor(name) for reader in readers]
    assert not np.array_equal(*tables)
    for average, expected in ((1, tables[0]), (2, np.mean(tables, axis=0))):
        model = loading.load(run, load_config(run), average=average).model
        np.testing.assert_allclose(model.decoder.embedding.table, expected, atol=1e-7)


def test_a_damaged_checkpoint_is_skipped_with_a_warning(copy, translate):
    """However it is damaged: see test_train_loop.py."""
    newest, *older = readable_checkpoints(copy / "checkpoints", 9)
    Path(f"{newest}.index").write_bytes(b"")
    result = translate(copy, "a")
    assert result.status == 0 and f"{newest} is damaged" in result.err
    for path in older:
        Path(f"{path}.index").write_bytes(b"")
    result = translate(copy, "a")
    assert result.status == 2 and "every checkpoint is damaged" in result.err
    shutil.rmtree(copy / "checkpoints")
    assert keyword(translate(copy, "a"), "no checkpoint")


def test_bfloat16_runs_are_evaluated_in_float32(run, copy, translate):
    """Whatever the precision of training, so that its rounding is not part of the score."""
    edit_json(copy / "config.json", precision="bfloat16")
    models = [loading.load(path, load_config(path)).model for path in (run, copy)]
    hidden = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    np.testing.assert_array_equal(*(model.logits(hidden) for model in models))


# ---- Translating --------------------------------------------------------------------------------

LINES = [
    "o menino lê um livro .",
    "",
    " \t ",
    "👩‍👩‍👧 😀",
    "日本語 العربية ქართული",
    "carriage return\r",  # as in a file from Windows
    "a line separator \u2028 and a form feed \f end no line",
    "nothing\x00left out",
    "x" * 100_000,
    "o menino lê " * 5_000,
    "½ ﬁ",
    "o menino lê um livro .",
]
TEXT = "\n".join(LINES).encode() + b" \xff"  # not all of it UTF-8, and no newline at the end


def test_each_line_has_one_translation_which_does_not_depend_on_the_others(
    run, translate, tmp_path
):
    """Nor on whether they come from a file or from standard input."""
    status, out, err = translate(run, stdin=TEXT)
    assert status == 0 and out.endswith("\n") and "\r" not in out
    lines = out.split("\n")[:-1]
    assert len(lines) == len(LINES)
    assert [i for i, line in enumerate(lines) if not line] == [1, 2]  # empty stays empty
    assert "3 texts cut off" in err and "not valid" in err
    assert "cut off at the maximum" in err  # it is hardly trained
    assert err.count("\n") == 3
    (tmp_path / "lines.txt").write_bytes("\n".join(LINES[::-1]).encode())
    reversed_lines = translate(run, "--file", tmp_path / "lines.txt").out.split("\n")[:-1]
    assert lines[:-1] == reversed_lines[:0:-1]  # the last one has another byte


def test_a_closed_pipe_ends_without_a_traceback():
    program = "import utils\nutils.handle_signals()\nwhile True: print('line')"
    command = ["bash", "-c", f'"{sys.executable}" -c "$0" | head -1', program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"line\n", b"")


def test_translating_needs_only_config_tokenizer_and_checkpoints(run, translate, tmp_path):
    for name in ("config.json", "tokenizer.model", "checkpoints"):
        copy = shutil.copytree if (run / name).is_dir() else shutil.copy
        copy(run / name, tmp_path / name)
    status, out, err = translate(tmp_path, SENTENCE)
    assert status == 0 and "error" not in err and out.count("\n") == 1 and out.strip()
    assert translate(tmp_path, "").out == "\n"


@pytest.mark.parametrize(
    ("margin", "search", "expected"), [(35, Search(beam=2), 41), (20, Search(max_tokens=9), 9)]
)
def test_outputs_have_the_length_that_training_targets_need(
    tiny, margin, search, expected, monkeypatch
):
    """Twice the source plus a margin, or --max-tokens. Outputs that reach it are counted."""
    model, warnings = tiny(300, 300, max_length=60, num_layers=1), []
    never_eos = tf.one_hot([7], 300, 99.0)
    monkeypatch.setattr(model, "logits", lambda x: tf.repeat(never_eos, tf.shape(x)[0], axis=0))
    pieces = SimpleNamespace(encode=lambda texts: [[9, 8]] * 2, decode=lambda rows: ["a"])
    translator = Translator(model, pieces, pieces, 60, search, margin)
    ids, _ = translator.decode(np.int32([[9, 8, EOS]]), 0)
    assert ids.shape[-1] == expected
    translator.translate(["a b", "a b"])
    monkeypatch.setattr("evaluation.translator.warn", warnings.append)
    translator.print_warnings()
    assert len(warnings) == 1 and warnings[0].startswith("2 outputs")


def test_a_margin_suffices_for_all_but_one_in_a_thousand_training_targets():
    for count, expected in ((1, 20), (10, 90 - 1 - 2 * 3)):
        targets = [[9] * 4] * (5000 - count) + [[9] * 90] * count
        pairs = Pairs(Ragged.of([[9] * 3] * 5000), Ragged.of(targets))
        assert pipeline.output_margin(*pairs) == expected


def test_a_model_has_the_margin_of_its_run(copy):
    edit_json(copy / "corpus.json", output_margin=33)
    assert loading.load(copy).margin == 33


def test_input_may_have_any_unicode_form_and_white_space(run, translate):
    """Invalid bytes are replaced, with a warning."""
    text = "O menino não é só avô."
    texts = [
        *(text, unicodedata.normalize("NFD", text), text.replace(" ", "\u00a0 \t")),
        *(f"\u3000{text}\x0b", "As casas são azuis.", "ol\udce1", "ol\ufffd"),
    ]
    result = translate(run, *texts)
    *same, other, invalid, replaced = result.out.splitlines()
    assert same == 4 * same[:1] and other != same[0] and invalid == replaced
    assert "not valid UTF-8" in result.err


def test_every_translation_is_one_line():
    """Whatever characters the model writes."""
    fake = SimpleNamespace(encode=lambda texts: [[5]], decode=lambda rows: ["a\r\nb\x1dc\u2028d"])
    model = Translator(None, fake, fake, 128)
    model.decode = lambda source, number: (tf.constant([[[5]]]), tf.constant([[0.0]]))
    assert model.translate(["a"]) == ["a b c d"]


# ---- Searching ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_n_best_prints_number_score_and_text(run, translate):
    text = f"{SENTENCE}\n\num menino\n".encode()
    status, out, _ = translate(run, "--beam", "3", "--n-best", "2", stdin=text)
    rows = [line.split("\t") for line in out.split("\n")[:-1]]
    assert status == 0 and [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3"]
    for (_, first, _), (_, second, _) in zip(rows[::2], rows[1::2], strict=True):
        assert float(first) >= float(second)
    assert rows[2][1:] == rows[3][1:] == ["0.0000", ""]
    best = translate(run, "--beam", "3", stdin=text).out.split("\n")[:-1]
    assert best == [text for _, _, text in rows[::2]]


def test_sampling_flags_reach_the_search(run, translate, monkeypatch):
    filters = []

    def record(logits, *settings):
        filters.append(settings)
        return filter_logits(logits, *settings)

    monkeypatch.setattr("model.decoding.filter_logits", record)
    flags = ["--sample", "--temperature=0.7", "--top-k=9", "--top-p=0.8"]
    drawn = translate(run, *flags, SENTENCE)
    assert translate(run, *flags, *drawn.err.split()[:2], SENTENCE).out == drawn.out
    assert set(filters) == {(0.7, 9, 0.8)}


# ---- Measuring ----------------------------------------------------------------------------------


def test_validation_translates_a_fixed_number_of_sentences_of_the_whole_split():
    texts = [f"a text of six words {i}" for i in range(100)]
    words = SimpleNamespace(lowercase=False)
    model = SimpleNamespace(labelled=False, target_tokenizer=words, translate=lambda x, **_: x)
    model.loss_and_accuracy = lambda pairs: (1.0, 0.5)
    dataset = SimpleNamespace(validation=None, validation_texts=Split(texts, texts))
    values, samples = scoring.validation_metrics(model, dataset, 9)
    assert values["validation_bleu"] == pytest.approx(100)
    assert [sample[0] for sample in samples] == [texts[0], texts[49], texts[99]]


def test_references_are_in_lower_case_if_translations_are():
    labels = SimpleNamespace(encode=lambda texts: [[5]] * len(texts), ending=[3], lowercase=True)
    facts = {"max_length": 9, "labelled": False, "num_parameters": 1, "search": "greedy"}
    model = SimpleNamespace(source_tokenizer=labels, target_tokenizer=labels, **facts)
    model.n_best = lambda texts, progress: [[(0.0, "a house")]] * len(texts)
    model.loss_and_accuracy = lambda pairs: (1.0, 0.5)
    scores, table = scoring.measure(model, Split(["Uma Casa"], ["A House"]))
    assert scores["exact_match"] == 100
    assert (table["source"], table["reference"]) == (["Uma Casa"], ["a house"])


def test_labels_are_checked_before_texts_are_labelled():
    words = SimpleNamespace(encode=lambda texts: [[5]] * len(texts), ending=[3], lowercase=False)
    tokenizers = {"source_tokenizer": words, "target_tokenizer": Labels(["bad", "good"])}
    model = SimpleNamespace(max_length=9, labelled=True, **tokenizers)
    model.n_best = lambda texts, progress: pytest.fail("labelled")
    with pytest.raises(UserError, match="'fair'"):
        scoring.measure(model, Split(["a film"], ["fair"]))


def test_scores_that_cannot_be_written_are_printed(copy, score, measured, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "write", full)
    result = score(copy)
    assert result.status == 2 and "No space left" in result.err and "\nbleu " in result.out


def test_a_full_disk_leaves_the_old_outputs(tmp_path, monkeypatch):
    columns = dict.fromkeys(("source", "reference", "output", "chrf"), ["1"])
    report.write(tmp_path, "test", {"loss": 1}, columns)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path, text, *_, **options):
        path.write_bytes(text.encode()[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError):
        report.write(tmp_path, "test", {"loss": 2}, columns | {"output": ["2"]})
    assert {path: path.read_bytes() for path in before} == before


def test_scores_are_written_before_they_are_printed(copy, score, measured, monkeypatch):
    """The reader of the output may close it, as `head` does."""

    def closed(scores):
        raise BrokenPipeError

    monkeypatch.setattr(report, "print_scores", closed)
    score(copy, "--beam", 3, "--length-penalty", 1, "--average", 2)
    assert written(copy) == files("test-average2-beam3-length-penalty1")


# ---- The other commands -------------------------------------------------------------------------


def test_figures_are_named_for_the_outputs_that_they_show(copy, run_program):
    assert keyword(run_program("evaluation/figures.py", copy), "evaluate.py")
    assert keyword(run_program("evaluation/figures.py", copy.parent), "not a run directory")
    (copy / "outputs-test.tsv").write_text("source\treference\toutput\tchrf\n")
    with pytest.raises(UserError, match="outputs-test.tsv is damaged"):
        report.read_outputs(copy, "test")
    texts = [f"a b c d {i}" for i in range(9)]
    table = {"source": texts, "reference": texts, "output": texts, "chrf": ["1"] * 9}
    about = dict.fromkeys(("split", "corpus", "checkpoint", "search"), "beam 2") | {"bleu": 1.0}
    report.write(copy, "test-beam2", about, table)
    status, out, _ = run_program("evaluation/figures.py", copy)
    stem = f"{copy}/figures/bleu-by-length-test-beam2"
    assert (status, out.splitlines()) == (0, [f"{stem}.png", f"{stem}.svg"])
    assert "beam 2" in Path(f"{stem}.svg").read_text("utf-8")


def programs():
    """Return the Python programs of docs/commands.md."""
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["saved_model", "ctranslate2"])
def test_documented_programs_use_exports_which_are_never_overwritten(
    run, run_program, translate, tmp_path, kind
):
    """In a process that does not find the code of this project."""
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    status, _, err = run_program("evaluation/export.py", run, kind, tmp_path / "out")
    assert status == 0, err
    (program,) = (text for text in programs() if f"{kind}." in text or f"import {kind}" in text)
    command = [sys.executable, "-c", program.replace('"DIR"', repr(str(tmp_path / "out")))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (translation,) = ast.literal_eval(done.stdout)
    expected = translate(run, re.search(r'texts = \["(.*)"\]', program)[1]).out.strip()
    assert expected and translation.startswith(expected)  # CTranslate2 has a higher limit
    assert keyword(run_program("evaluation/export.py", run, kind, tmp_path / "out"), "exists")


def test_a_run_is_loaded_in_a_notebook(run):
    (program,) = (text for text in programs() if "model.attention" in text)
    names = {}
    exec(program.replace('"runs/NAME"', repr(str(run))), names)
    weights, queries, keys = names["weights"], names["queries"], names["keys"]
    assert weights.shape == (1, 2, len(queries), len(keys))


def test_a_file_that_a_run_was_trained_on_is_divided_in_the_same_way_again(tmp_path):
    name = str(tmp_path / "rows.parquet")  # of three columns
    write_table(pyarrow.table({x: [f"{x} {i}" for i in range(600)] for x in "abc"}), name)
    config = Config(corpus=name, held_out_share=0.1, languages="b,a")
    corpus = corpora.from_config(config)
    recorded = {"test": {"sha256": corpus.summarize("test", 0).sha256}}
    info = {"languages": [*corpus.languages], "splits": recorded}
    (tmp_path / "corpus.json").write_text(json.dumps(info))
    expected = corpus.load("test")
    moved = tmp_path / "moved" / Path(name).name
    for given in None, name, os.path.relpath(name), str(moved):
        if given == str(moved):
            moved.parent.mkdir()
            Path(name).rename(moved)
        loaded, identity, _ = report.load_split(tmp_path, config, "test", given)
        assert loaded == expected and identity == "test"
    with pytest.raises(UserError, match="--corpus"):
        report.load_split(tmp_path, config, "test")
