"""Runs of language models: training and resuming, scores, figures."""

import gzip
import math
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf
from helpers import TINY, assert_same_state, edit_json, metrics_of, state, steps_saved, train_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from data.arrays import Ragged, Text
from data.splits import Split
from data.tokenizer import UNK
from evaluation import loading, report
from evaluation import scores as scoring
from evaluation.attention import attention_image
from evaluation.generator import Generator
from model import IDS
from model.loss import UNKNOWN_LOSS
from training.logs import markdown
from training.records import read_json
from utils import UserError

LINE = "Line {}: it's “wörld” 🙂, not a | b.\n"
CONTENT = "".join(LINE.format(i) + "\n" * (i % 5 == 0) for i in range(300))
STEPS = 6
BLOCK = 16


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "a.txt").write_text(CONTENT, "utf-8")
    directories = {"runs_dir": str(folder / "runs"), "cache_dir": str(folder / "cache")}
    corpus = {"model": "language_model", "corpus": str(folder / "a.txt"), "tokenizer": "char"}
    sizes = {"max_length": BLOCK, "batch_tokens": 128, "max_steps": STEPS, "total_steps": 10}
    return TINY | directories | corpus | sizes | {"shards": 1}


@pytest.fixture(scope="module")
def run(settings):
    return train_here(**settings, name="run")


@pytest.fixture(scope="module")
def scored(run, tmp_path_factory):
    """A copy of the run with the scores of its test split."""
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("scored") / "one"))
    generator = loading.load(copy)
    split, name, documents = report.load_split(copy, loading.load_config(copy), "test")
    scores, table = scoring.measure_text(generator, split, documents)
    about = {"corpus": "a.txt", "split": "test", "checkpoint": "last checkpoint"}
    report.write(copy, name, scores | about, table)
    return copy


@pytest.fixture
def copy(scored, tmp_path):
    """A scored run that may be changed."""
    return Path(shutil.copytree(scored, tmp_path / "copy"))


# ---- Training ------------------------------------------------------------------------------------


def test_validation_scores_belong_together(run):
    (line,) = (line for line in metrics_of(run) if "validation_loss" in line)
    names = {"loss", "accuracy", "perplexity", "nats_per_character"}
    assert line.keys() == {"step", "epoch"} | {f"validation_{name}" for name in names}
    loss = line["validation_loss"]
    assert line["validation_nats_per_character"] == pytest.approx(loss)  # one character per token
    assert line["validation_perplexity"] == pytest.approx(math.exp(loss))
    assert loss == pytest.approx(math.log(30), abs=1) and line["step"] == STEPS
    split, _, documents = report.load_split(run, loading.load_config(run), "validation")
    scores, _ = scoring.measure_text(loading.load(run), split, documents)
    assert scores["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(run, settings):
    stopped = train_here(**settings | {"max_steps": STEPS // 2}, name="stopped")
    assert steps_saved(stopped)[-1] == STEPS // 2
    train_here(resume=str(stopped), cache_dir=settings["cache_dir"], max_steps=STEPS)
    assert_same_state(state(stopped), state(run))
    assert metrics_of(stopped)[-1] == metrics_of(run)[-1]


# ---- TensorBoard ---------------------------------------------------------------------------------


def test_samples_are_prompts_with_references_and_continuations(run):
    events = EventAccumulator(str(run / "validation"), size_guidance={"tensors": 0}).Reload()
    validation = "".join(report.load_split(run, loading.load_config(run), "validation")[0].targets)
    for number in (1, 2, 3):
        (event,) = events.Tensors(f"samples/{number}")
        html = markdown_to_safe_html(tf.make_ndarray(event.tensor_proto).item())
        rows = cells(html)
        assert [name for name, _ in rows] == ["prompt", "reference", "continuation"]
        prompt, reference, _ = (text for _, text in rows)
        assert prompt and prompt + reference in validation  # with line feeds and “|”
        assert {len(prompt), len(reference)} <= {BLOCK // 2, BLOCK // 2 - 1}  # but for spaces
    names = ("loss", "accuracy", "nats_per_character", "perplexity")
    assert {f"metrics/{name}" for name in names} <= {*events.Tags()["tensors"]}


def cells(html):
    """Return the rows of the only table of a page, as text with line feeds."""
    root = ElementTree.fromstring(html.replace("<br>", "\n"))
    assert root.tag == "table"
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


@pytest.mark.parametrize(
    "text",
    ["a | b\nc || d", "", "*a* __b__ _c_ ~~d~~ `e` [f](g) ![h](i)", "<b>&amp; </td>", "\\| \\n",
     "# a\n1. b\n- c\n---\n> d", "snake_case “ß” 你好 🙂 http://a.b/c"],
)  # fmt: skip
def test_texts_in_tensorboard_are_not_markup(text):
    rows = "".join(f"| **{name}** | {markdown(text)} |\n" + "| --- | --- |\n" * (name == "a")
                   for name in ("a", "b"))  # fmt: skip
    assert cells(markdown_to_safe_html(rows)) == [["a", text], ["b", text]]


# ---- Scores --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generator(tiny):
    """A Generator of a model that reads at most 6 tokens, learned positions included."""
    flags = {"positions": "learned", "tie_embeddings": False, "num_layers": 1}
    return Generator(tiny(0, 9, model="language_model", max_length=6, **flags), None, 6, start=4)


@pytest.fixture(scope="module")
def last_log_probs(generator):
    """Return a function of ids: the log probabilities of what follows them, (vocab_size,)."""

    @tf.function(input_signature=[IDS], autograph=False)
    def log_probs(target):
        return tf.nn.log_softmax(generator.model.teacher_forced(target[:, :0], target).logits[-1])

    return lambda read: log_probs(np.int32([[*read, 4]])).numpy()  # 4: any token to predict


def naive_losses(last_log_probs, ids, first, stride, block):
    """The loss of each token in nats, each computed on its own from the tokens of its block."""
    losses, contexts = [], []
    for i, token in enumerate(ids):
        begin = 0 if i < block else math.ceil((i + 1 - block) / stride) * stride
        read = [first, *ids][begin : i + 1]
        losses.append(-float(last_log_probs(read)[token]))
        contexts.append(len(read))
    return losses, contexts


@pytest.mark.parametrize("count", [1, 6, 7, 12, 23])
def test_token_scores_equal_a_computation_for_each_token(generator, last_log_probs, count):
    ids = np.random.default_rng(count).integers(4, 9, count)
    text = Text(Ragged(ids, np.array([0, count])), start=4, block=6)
    for stride in (None, 1, 4):
        scores = generator.token_scores(text, stride)
        losses, contexts = naive_losses(last_log_probs, ids, 4, stride or 6, 6)
        np.testing.assert_allclose(scores.losses, losses, rtol=1e-5)
        assert scores.context.tolist() == contexts
    loss, accuracy = generator.loss_and_accuracy(text)
    plain = generator.token_scores(text)
    assert loss == pytest.approx(np.mean(plain.losses)) and accuracy == np.mean(plain.correct)


class Uniform:
    """A model that finds all of its 8 tokens equally likely."""

    trainable_variables, init_decode = (), None

    def teacher_forced(self, source, target, seed=None):
        labels = tf.boolean_mask(target[:, 1:], target[:, 1:] != 0)
        return tf.zeros((tf.size(labels), 8)), labels, []


class Characters:
    """A tokenizer of four characters and an unknown one. It ignores blanks."""

    vocab_size = 8

    def __init__(self, lowercase=False):
        self.lowercase = lowercase

    def encode(self, texts):
        ids = {"a": 4, "b": 5, "é": 6, "日": 7}
        return [[ids.get(x, UNK) for x in text.replace(" ", "")] for text in texts]


def measured(monkeypatch, tokenizer, texts, documents):
    """Return the scores of a uniform model that reads at most four tokens."""
    generator = Generator(Uniform(), tokenizer, 4, start=3)
    return scoring.measure_text(generator, Split([""] * len(texts), texts), documents)


@pytest.mark.parametrize("documents", [False, True])
def test_the_scores_of_a_uniform_model_are_those_worked_by_hand(monkeypatch, documents):
    """Two texts with 3 + 2 characters of 3 + 6 bytes, in tokens of one character."""
    scores, table = measured(monkeypatch, Characters(), ["ab?", "日日"], documents)
    ends = 2 * documents
    assert scores["tokens"] == 5 + ends and scores["characters"] == 5
    nats = (5 + ends) * math.log(8) + UNKNOWN_LOSS
    assert scores["loss"] == pytest.approx(nats / (5 + ends))
    assert scores["perplexity"] == pytest.approx(math.exp(nats / (5 + ends)))
    assert scores["nats_per_character"] == pytest.approx(nats / 5)
    assert scores["bits_per_byte"] == pytest.approx(nats / math.log(2) / 9)
    assert scores["unknown"] == 1 / (5 + ends)
    assert table["tokens"] == [str(3 + documents), str(2 + documents)]
    first, second = ((n + documents) * math.log(8) for n in (3, 2))
    assert table["nats"] == [f"{first + UNKNOWN_LOSS:.6g}", f"{second:.6g}"]


def test_texts_without_tokens_have_no_nats(monkeypatch):
    _, table = measured(monkeypatch, Characters(), [" ", "ab", " ", "é", " "], False)
    expected = [n * math.log(8) for n in (0, 2, 0, 1, 0)]
    assert [float(x) for x in table["nats"]] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="no tokens"):
        measured(monkeypatch, Characters(), [" ", "  "], False)


def test_a_lowercase_model_is_scored_on_texts_in_lower_case(monkeypatch):
    _, table = measured(monkeypatch, Characters(lowercase=True), ["Éb"], False)
    assert table["text"] == ["éb"] and table["characters"] == ["2"]


# ---- evaluate.py ---------------------------------------------------------------------------------


def test_another_text_is_compared_with_the_training_text(copy, run_program, tmp_path):
    """Its second half is new."""
    text = CONTENT[:3000]
    (tmp_path / "half.txt").write_text(text + text[::-1], "utf-8")
    result = run_program("evaluate.py", copy, "--corpus", tmp_path / "half.txt", "--split", "all")
    assert result.status == 0 and "in train" in result.err
    (path,) = copy.glob("scores-half-*.json")
    assert read_json(path)["seen"] == pytest.approx(0.5, abs=0.1)


def test_scores_outputs_and_mistakes_are_written_for_every_stride(copy, run_program):
    before = {path.name for path in copy.iterdir()}
    result = run_program("evaluate.py", copy, "--stride", BLOCK // 4)
    assert result.status == 0, result.err
    new = {path.name for path in copy.iterdir()} - before
    assert len(new) == 2 and all(f"-test-stride{BLOCK // 4}." in name for name in new)
    scores = read_json(copy / f"scores-test-stride{BLOCK // 4}.json")
    for name in "loss perplexity nats_per_character bits_per_byte accuracy context".split():
        assert f"\n{name} " in result.out
    assert "lines" in result.out.splitlines()[0] and "one every 4" in scores["search"]
    texts = report.load_split(copy, loading.load_config(copy), "test")[0].targets
    table = report.read_outputs(copy, f"test-stride{BLOCK // 4}")
    assert table["text"] == [line.replace("\n", " ") for line in texts]
    plain = read_json(copy / "scores-test.json")
    assert scores["tokens"] == plain["tokens"] and scores["context"] > plain["context"]


@pytest.mark.parametrize("name", ["news.txt", "news.txt.gz", "news.tsv"])
def test_every_line_of_another_text_is_scored(copy, tmp_path, monkeypatch, name):
    """However few there are. A model of one text ends others with a line feed, not with `</s>`."""
    content = b"a house\tnot a line\nb\tnor b\n"
    content = content if name.endswith(".tsv") else content.replace(b"\t", b" ")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    monkeypatch.chdir(tmp_path)
    table, config = name.endswith(".tsv"), loading.load_config(copy)
    lines = ["not a line\n", "nor b\n"] if table else ["a house not a line\n", "b nor b\n"]
    split, stem, documents = report.load_split(copy, config, "all", name)
    assert re.fullmatch(r"news-all-\w{8}", stem) and (split.targets, documents) == (lines, False)
    edit_json(copy / "corpus.json", documents=True)  # as if it had been trained on a table
    split, _, documents = report.load_split(copy, config, "all", name)
    assert split.targets == [x.rstrip() if table else x for x in lines] and documents == table


# ---- Figures -------------------------------------------------------------------------------------


def test_neither_a_search_nor_a_figure_is_of_a_text(copy, run_program):
    assert run_program("evaluate.py", copy, "--beam", 2).status == 2
    assert run_program("evaluate.py", copy, "--stride", BLOCK + 1).status == 2
    result = run_program("evaluation/figures.py", copy)
    assert result.status == 2 and "translations" in result.err


def test_attention_in_a_text_is_drawn(copy, run_program):
    """With line feeds as a character that can be seen."""
    status, out, err = run_program("evaluation/attention.py", copy, "ab:\nit")
    assert status == 0, err
    folder = copy / "attention"
    names = ("decoder-self-attention.png", "decoder-self-attention.svg", "attention.html")
    assert out.splitlines() == [f"{folder}/{name}" for name in names]
    svg = (folder / "decoder-self-attention.svg").read_text("utf-8")
    assert ">⏎<" in svg
    page = (folder / "attention.html").read_text("utf-8")
    assert '"name":"decoder self-attention"' in page and "→" not in page.partition("</title>")[0]
    result = run_program("evaluation/attention.py", copy, "Ω")
    assert result.status == 2 and "known" in result.err
    assert attention_image(loading.load(copy), Split(["Ω"], ["Ω"])) is None  # in training


def test_a_model_of_texts_needs_to_know_whether_they_are_documents(copy):
    (copy / "corpus.json").write_text("{}")
    with pytest.raises(UserError, match="corpus.json.*documents"):
        loading.load(copy)
