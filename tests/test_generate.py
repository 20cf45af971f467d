"""Texts that language models generate, and generate.py."""

import io
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from helpers import TINY, run_loop

from data import tokenizer
from data.tokenizer import EOS, PAD
from evaluation import loading
from evaluation.generator import Generator
from evaluation.predictor import GREEDY, decode_with
from evaluation.search import Sampling
from model import IDS

TEXT = [
    "We meet at noon 🙂.\n",
    "今天天气很好。\n",
    "Ça va, naïve café?\n",
    "👩‍👩‍👧 see you\n",
] * 20
PROMPTS = ["We meet", "", "We", "naïve café 🙂 see you at noon, we meet at noon. see", "今天"]
START, MAX_LENGTH = 1, 20


@pytest.fixture(scope="module")
def bpe():
    """A tokenizer that encodes rare characters as bytes, and no text as if it began a sentence."""
    return tokenizer.train(TEXT, 290, leading_space=False)


@pytest.fixture(scope="module")
def model(tiny, bpe):
    """A language model with varied outputs, some of which end in eos."""
    flags = {"model": "language_model", "max_length": MAX_LENGTH, "num_layers": 1}
    model = tiny(0, bpe.vocab_size, tie_embeddings=False, **flags)
    model.output.kernel.assign(model.output.kernel * 3)  # so that the context matters more
    model.output.bias.assign_add(tf.one_hot(EOS, bpe.vocab_size) * 0.5)
    return model


@pytest.fixture(scope="module")
def make(model, bpe):
    """Create the Generator of each search once: a new one has to be traced."""
    return cache(lambda search=GREEDY: Generator(model, bpe, MAX_LENGTH, START, search))


def full_log_probs(model):
    """Return a function of ids (batch, length): the log probabilities after each of them, computed
    without a cache.
    """
    forward = tf.function(model.teacher_forced, input_signature=[IDS, IDS], autograph=False)

    def log_probs(read):
        target = np.pad(np.int32(read), [(0, 0), (0, 1)], constant_values=EOS)  # any token
        logits = forward(target[:, :0], target).logits
        return tf.reshape(tf.nn.log_softmax(logits), (*np.shape(read), -1)).numpy()

    return log_probs


def naive_greedy(log_probs, row, tokens):
    """Continue ids; compute everything anew for each token."""
    read, new = [START, *row], []
    while len(new) < tokens and EOS not in new:
        if len(read) > MAX_LENGTH:
            read = read[-(MAX_LENGTH // 2) :]
        new.append(int(np.argmax(log_probs([read])[0, -1])))
        read.append(new[-1])
    return [*row, *new]


# ---- Searching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_greedy_search_equals_full_computation_for_each_token(tiny, make, bpe, positions):
    """Also when more tokens are generated than the model can read, and for long prompts."""
    generator = make()
    if positions == "learned":
        flags = {"model": "language_model", "max_length": MAX_LENGTH, "positions": positions}
        model = tiny(0, bpe.vocab_size, norm="post", **flags)
        generator = Generator(model, bpe, MAX_LENGTH, START)
    rows, log_probs = bpe.encode(PROMPTS), full_log_probs(generator.model)
    assert any(len(row) > MAX_LENGTH for row in rows)
    expected = [naive_greedy(log_probs, row, 2 * MAX_LENGTH) for row in rows]
    assert any(len(row) > 2 * MAX_LENGTH for row in expected)
    assert [[*row, *generator.ids(row, 2 * MAX_LENGTH)] for row in rows] == expected


class Reciter:
    """A model that predicts given ids in their order, whatever it reads."""

    def __init__(self, ids, vocab_size):
        self.ids, self.vocab_size = tf.constant(ids, tf.int32), vocab_size

    def init_decode(self, source):
        batch, length = tf.unstack(tf.shape(source))
        return {"caches": tf.fill([batch], length)}

    def decode_step(self, token, state):
        ids = tf.gather(self.ids, state["caches"])
        return 9 * tf.one_hot(ids, self.vocab_size), {"caches": state["caches"] + 1}


def reciter(bpe, ids, max_length=99, search=GREEDY):
    ids = [*ids, *[EOS] * max_length]
    return Generator(Reciter(ids, bpe.vocab_size), bpe, max_length, START, search)


def test_eos_ends_a_text(bpe):
    (ids,) = bpe.encode(["We meet at noon"])
    generator = reciter(bpe, ids)
    assert [*generator.ids([], 90)] == [*ids, EOS]
    assert generator.generate("", 90) == "We meet at noon"
    assert [*generator.ids([], len(ids))] == ids


def test_padding_is_a_token_like_any_other(bpe):
    """A model that was not trained may predict it. Waiting for another token would not end."""
    generator = reciter(bpe, [PAD] * 30, max_length=8)
    assert [*generator.ids([], 12)] == [PAD] * 12 and generator.generate("", 12) == ""


# ---- Streams -------------------------------------------------------------------------------------

SAMPLED = Sampling(seed=3, temperature=1.5)


def test_a_sample_is_drawn_from_the_softmax_as_by_a_translator(make, bpe):
    """Token by token as by the loop in a graph, where the model has room; and in parts."""
    generator, row = make(SAMPLED), bpe.encode(["We meet"])[0]
    read, limit = [START, *row], MAX_LENGTH - len(row)
    options = {"bos": read[-1], "limit": [limit], "batch_number": 2**20}
    ids, _ = decode_with(SAMPLED, generator.model, np.int32([read[:-1]]), **options)
    assert [*generator.ids(row, limit, 1)] == ids[0, 0].numpy().tolist()
    assert len([*generator.stream("We meet", limit, 1)]) > 3


def test_a_part_ends_after_a_whole_character(bpe):
    """Whatever the prompt, and though characters are encoded as up to four bytes."""
    text = "é你😀好 ok 👩‍👩‍👧…ß"
    for before in ("", "a", "😀", "We 你 meet"):
        (start,), (whole,) = bpe.encode([before]), bpe.encode([before + text])
        assert whole[: len(start)] == start
        parts = [*reciter(bpe, whole).stream(before, len(whole) - len(start))]
        assert "".join(parts) == text and "\ufffd" not in "".join(parts)
        assert len([*filter(None, parts)]) >= len(text.replace("ok", "").replace(" ", ""))


def test_a_text_never_ends_in_half_a_character(bpe):
    (ids,) = bpe.encode(["😀é你"])
    generator, texts = reciter(bpe, ids), set()
    for length in range(1, len(ids) + 1):
        texts.add(generator.generate("", length))
    assert texts == {"", "😀", "😀é", "😀é你"}


def test_a_continuation_begins_with_its_space(bpe):
    for pieces in bpe, tokenizer.train(TEXT, 300, kind="word", leading_space=False):
        (ids,) = pieces.encode(["We meet at noon"])
        assert reciter(pieces, ids).generate("We meet", 9) == " at noon"


# ---- generate.py ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of no more than initial weights, on one text, character by character."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "a.txt").write_text("".join(TEXT), "utf-8")
    settings = {"model": "language_model", "corpus": str(folder / "a.txt"), "tokenizer": "char"}
    directories = {"runs_dir": str(folder), "cache_dir": str(folder / "cache"), "name": "run"}
    run_loop(TINY | settings | directories | {"max_steps": 1, "max_length": 12})
    return folder / "run"


@pytest.fixture
def generate(run, run_program):
    return lambda *flags, **options: run_program("generate.py", run, *flags, **options)


@pytest.fixture(scope="module")
def greedy_texts(run):
    """Prompts with their continuations by greedy search."""
    generator = loading.load(run)
    return lambda *prompts, tokens: [x + generator.generate(x, tokens) for x in prompts]


LINE = "-" * 40 + "\n"


def test_samples_of_a_prompt_depend_on_the_seed_which_is_printed_if_it_is_drawn(generate):
    result = generate("We", "--tokens", 20, "--samples", 4)
    flag, seed = result.err.split()
    texts = result.out.split(LINE)
    assert (result.status, flag) == (0, "--seed") and len({*texts}) > 1 and len(texts) == 4
    assert all(text.startswith("We") and len(text) <= 2 + 20 + 1 for text in texts)
    again = generate("We", "--tokens", 20, "--samples", 4, flag, seed)
    assert (again.out, again.err) == (result.out, "")


def test_each_line_of_standard_input_is_a_prompt(generate, greedy_texts):
    """As it is, without a byte order mark and carriage returns."""
    text = "\ufeffWe meet\r\n\nnaïve\u2028café\nol".encode() + b"\xe1"
    result = generate("--no-sample", "--tokens", 9, stdin=text)
    prompts = ["We meet", "", "naïve\u2028café", "ol\ufffd"]
    assert result.out.removesuffix("\n").split("\n" + LINE) == greedy_texts(*prompts, tokens=9)
    assert "UTF-8" in result.err and "3 tokens" in result.err and result.err.count("\n") == 2


def test_without_a_prompt_a_text_is_generated_from_its_start(generate, greedy_texts):
    """Of the most likely token only, sampling is greedy search."""
    result = generate("--top-k", 1, "--tokens", 15, "--seed", 1)
    assert (result.status, result.err) == (0, "")
    assert [result.out.removesuffix("\n")] == greedy_texts("", tokens=15)
    notebook = io.StringIO("not read")
    assert generate("--no-sample", "--tokens", 15, stdin=notebook).out == result.out


def test_unknown_characters_are_left_out_and_counted(generate, greedy_texts):
    """A shell does not replace \\n by a line feed, and this model has no backslash."""
    odd = generate("We⊕⊗ meet", "--no-sample", "--tokens", 9)
    (plain,) = greedy_texts("We meet", tokens=9)
    assert odd.out == plain.replace("We", "We⊕⊗", 1) + "\n" and "2 tokens" in odd.err
    assert "$'" in generate("We\\n", "--no-sample", "--tokens", 1).err


@pytest.mark.parametrize(
    ("flags", "word"),
    [("--beam 2", "--beam"), ("--no-sample --samples 2", "--samples"), ("one two", "two")],
)
def test_invalid_flags_are_rejected_before_tensorflow_loads(generate, monkeypatch, flags, word):
    monkeypatch.setattr("training.machine.import_tensorflow", lambda: pytest.fail("loaded"))
    result = generate(*flags.split())
    assert result.status == 2 and result.out == "" and result.err.count("\n") == 1
    assert result.err.startswith("error: ") and word in result.err
    assert "--beam" not in generate("--help").out


def test_a_run_of_another_task_names_the_program_to_use(run, run_program, tmp_path):
    refused = run_program("translate.py", run, "We")
    assert refused.status == 2 and f"python generate.py {run}" in refused.err
    (tmp_path / "config.json").write_text('{"model": "transformer"}')
    refused = run_program("generate.py", tmp_path, "We")
    assert refused.status == 2 and f"python translate.py {tmp_path}" in refused.err
    assert "--seed" not in refused.err and refused.err.count("\n") == 1
    assert run_program("generate.py", tmp_path / "nosuch").err.count("\n") == 1
