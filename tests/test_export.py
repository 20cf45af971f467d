"""Exported models give the same outputs and scores as the searches of this project."""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from data import tokenizer
from data.arrays import Ragged
from evaluation import export
from evaluation.generator import Generator
from evaluation.predictor import decode_with
from evaluation.search import Search
from evaluation.translator import Translator
from model.layers import Dense, TiedProjection
from utils import UserError

WORDS = "the cat saw a dog and old men ate some bread by our house".split()
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 9)) for i in range(40)]


@pytest.fixture(scope="module")
def trained_tokenizer():
    return tokenizer.train(TEXTS, 300)


@pytest.fixture(scope="module")
def characters():
    """A tokenizer of characters, which has a line feed."""
    return tokenizer.train([text + "\n" for text in TEXTS], 300, kind="char", leading_space=False)


def make_model(tiny, pieces, eos_bias, **flags):
    """A random model without special tokens in its output, but eos with this bias."""
    flags = {"tie_embeddings": False} | flags
    model = tiny(pieces.vocab_size, pieces.vocab_size, spread=0.05, **flags)
    if isinstance(model.output, Dense):
        model.output.bias[:4].assign([-20.0, -20.0, -20.0, eos_bias])
        model.output.kernel.assign(model.output.kernel * 3)
    return model


def make_translator(tiny, pieces, search, eos_bias=0.6, **flags):
    return Translator(make_model(tiny, pieces, eos_bias, **flags), pieces, pieces, 20, search)


def make_generator(tiny, pieces, search, start=tokenizer.EOS, eos_bias=2.0, **flags):
    model = make_model(tiny, pieces, eos_bias, model="language_model", **flags)
    return Generator(model, pieces, 20, start, search)


SLOW = pytest.mark.slow
VARIANTS = pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"norm": "post"}, id="post"),
        pytest.param({"key_dim": 5, "positions": "learned"}, id="key_dim_and_learned", marks=SLOW),
        pytest.param({"tie_embeddings": True}, id="tied", marks=SLOW),
    ],
)


@VARIANTS
def test_ctranslate2_gives_the_same_translations_and_scores(
    tiny, trained_tokenizer, tmp_path, flags
):
    ctranslate2 = pytest.importorskip("ctranslate2")
    ours = make_translator(tiny, trained_tokenizer, Search(4, 0.0), eos_bias=2.5, **flags)
    export.export_ctranslate2(ours, tmp_path)
    theirs = ctranslate2.Translator(str(tmp_path), compute_type="float32", intra_threads=1)
    rows = trained_tokenizer.encode(TEXTS)
    options = {"beam_size": 4, "length_penalty": 0, "return_scores": True}
    options |= {"min_decoding_length": 0, "max_decoding_length": 80}
    results = theirs.translate_batch([trained_tokenizer.tokens(row) for row in rows], **options)
    source = Ragged.of([[*row, tokenizer.EOS] for row in rows]).padded(np.arange(len(rows)))
    ids, scores = decode_with(ours.search, ours.model, tf.constant(source))
    lengths, special = set(), trained_tokenizer.tokens(range(tokenizer.EOS + 1))
    for output, score, result in zip(ids[:, 0].numpy(), scores[:, 0], results, strict=True):
        pieces = trained_tokenizer.tokens([i for i in output if i > tokenizer.EOS])
        expected = [piece for piece in result.hypotheses[0] if piece not in special]
        if tokenizer.EOS in output:
            assert pieces == expected
            np.testing.assert_allclose(score, result.scores[0], atol=1e-3)
            lengths.add(len(pieces))
    assert isinstance(ours.model.output, TiedProjection) or len(lengths) > 3


@VARIANTS
def test_ctranslate2_continues_texts_in_the_same_way(
    tiny, trained_tokenizer, characters, tmp_path, flags
):
    """After eos, or after a line feed if the tokens are characters."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    pieces, start = trained_tokenizer, tokenizer.EOS
    if flags == {"norm": "post"}:
        pieces, start = characters, characters.encode(["\n"])[0][0]
    ours = make_generator(tiny, pieces, Search(), start, eos_bias=1.0, **flags)
    export.export_ctranslate2(ours, tmp_path)
    theirs = ctranslate2.Generator(str(tmp_path), compute_type="float32", intra_threads=1)
    first = json.loads((tmp_path / "config.json").read_text("utf-8"))["bos_token"]
    prompts = [row[: i % 8] for i, row in enumerate(pieces.encode(TEXTS))]
    options = {"max_batch_size": 1, "beam_size": 1, "max_length": 12}  # of different lengths
    options |= {"include_prompt_in_result": False, "return_end_token": True}
    results = theirs.generate_batch([[first, *pieces.tokens(row)] for row in prompts], **options)
    lengths = set()
    for prompt, result in zip(prompts, results, strict=True):
        output = [*ours.ids(prompt, 12)]
        assert pieces.tokens(output) == result.sequences[0]
        lengths.add(len(output))
    assert isinstance(ours.model.output, TiedProjection) or len(lengths) > 3


def test_two_vocabularies_and_the_epsilon_of_layer_norm_are_exported(
    tiny, trained_tokenizer, tmp_path
):
    """Inputs whose variance is about epsilon: with any other, log probabilities would differ."""
    pytest.importorskip("ctranslate2")
    other = tokenizer.train([text.upper() for text in TEXTS], 280)
    flags = {"norm": "pre", "positions": "none", "shared_vocabulary": False}
    sizes = trained_tokenizer.vocab_size, other.vocab_size
    model = tiny(*sizes, **flags, tie_embeddings=False, spread=0.05)
    for stack in (model.encoder, model.decoder):
        stack.embedding.table.assign(stack.embedding.table * 0.01)
    ours = Translator(model, trained_tokenizer, other, 20)
    export.export_ctranslate2(ours, tmp_path)
    assert np.isclose(*export.log_probabilities(ours, tmp_path), rtol=1e-4)


@pytest.mark.parametrize("model", ["recurrent", "classifier"])
def test_only_transformers_with_a_decoder_are_exported_to_ctranslate2(
    tiny, trained_tokenizer, tmp_path, model
):
    pytest.importorskip("ctranslate2")
    model = tiny(300, 300, model=model)
    ours = Translator(model, trained_tokenizer, trained_tokenizer, 20)
    with pytest.raises(UserError, match="saved_model"):
        export.export_ctranslate2(ours, tmp_path)


@pytest.mark.parametrize(
    "make, name", [(make_translator, "cross_attention"), (make_generator, "attention")]
)
def test_an_edited_model_is_not_exported_to_ctranslate2(
    tiny, trained_tokenizer, tmp_path, monkeypatch, make, name
):
    """Only weights are exported: CTranslate2 must compute the same with them."""
    pytest.importorskip("ctranslate2")
    ours = make(tiny, trained_tokenizer, Search())
    attention = getattr(ours.model.decoder.layers[0], name)
    for edit in ("activation", "grouped queries", "no output"):
        if edit == "activation":
            monkeypatch.setattr("tensorflow.nn.relu", tf.nn.gelu)
        elif edit == "grouped queries":
            monkeypatch.undo()
            attention.key.kernel = tf.Variable(attention.key.kernel[:, 1:])
        else:
            del attention.output
        with pytest.raises(UserError, match="edited"):
            export.export_ctranslate2(ours, tmp_path)


SERVE = """
import json, sys
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
outcome = served.translate(tf.constant(json.loads(sys.argv[2]), tf.int32))
print(json.dumps({name: value.numpy().tolist() for name, value in outcome.items()}))
"""


@pytest.mark.slow
def test_a_saved_model_needs_no_code_of_this_project(tiny, trained_tokenizer, tmp_path):
    ours = make_translator(tiny, trained_tokenizer, Search(3, 0.6, n_best=2), norm="pre")
    export.export_saved_model(ours, tmp_path)
    rows = [[*row, 3] for row in trained_tokenizer.encode(TEXTS[:5])]
    source = Ragged.of(rows).padded(np.arange(5))
    command = [sys.executable, "-c", SERVE, str(tmp_path), json.dumps(source.tolist())]
    served = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    outcome = json.loads(served.stdout)
    ids, scores = decode_with(ours.search, ours.model, tf.constant(source))
    np.testing.assert_array_equal(outcome["ids"], ids)
    np.testing.assert_allclose(outcome["scores"], scores, rtol=1e-6)
    pair = tokenizer.load_pair(tmp_path / "assets")
    assert pair[0].encode(TEXTS) == trained_tokenizer.encode(TEXTS)


def test_a_saved_classifier_gives_the_same_labels_and_scores(tiny, trained_tokenizer, tmp_path):
    labels = tokenizer.Labels(["bad", "fair", "good"])
    sizes = trained_tokenizer.vocab_size, labels.vocab_size
    model = tiny(*sizes, model="classifier", spread=0.05)
    ours = Translator(model, trained_tokenizer, labels, 20, Search(3, 0.0, n_best=3))
    export.export_saved_model(ours, tmp_path)
    served = tf.saved_model.load(tmp_path)
    rows = trained_tokenizer.encode(TEXTS)
    outcome = served.translate(Ragged.of(rows).padded(np.arange(len(rows))))
    # A source may end in eos, and have tokens that are unknown, which translate.py leaves out.
    ended = [[tokenizer.UNK, *row, tokenizer.EOS] for row in rows]
    again = served.translate(Ragged.of(ended).padded(np.arange(len(rows))))
    np.testing.assert_array_equal(again["scores"], outcome["scores"])
    long = np.int32([rows[0] * 30])
    for name in outcome:  # and is truncated
        expected = served.translate(long[:, :20])[name]
        np.testing.assert_array_equal(served.translate(long)[name], expected)
    assert outcome["ids"].shape == (len(rows), 3, 1)
    best = ours.n_best(TEXTS)
    names = [[name for _, name in of_text] for of_text in best]
    assert [labels.decode(row) for row in outcome["ids"].numpy()] == names
    assert {of_text[0] for of_text in names} == set(labels.names)
    scores = [[score for score, _ in of_text] for of_text in best]
    np.testing.assert_allclose(outcome["scores"], scores, atol=1e-5)


@pytest.mark.parametrize(
    "search",
    [Search(), pytest.param(Search(sample=True, temperature=0.7, seed=4), marks=pytest.mark.slow)],
    ids=["greedy", "sample"],
)
def test_a_saved_language_model_continues_texts_as_the_generator_does(
    tiny, characters, tmp_path, search
):
    """Of samples the first: the others of a batch are different ones."""
    start = characters.encode(["\n"])[0][0]
    ours = make_generator(tiny, characters, search, start, norm="post", eos_bias=1.0)
    export.export_saved_model(ours, tmp_path)
    served = tf.saved_model.load(tmp_path)
    text = characters.encode(["the cat saw a dog and old men ate some bread"])[0]
    for length in (0, 6, 20, 30):
        prompts = np.int32([text[i : i + length] for i in range(4)])
        # The model reads 20 tokens; of a longer prompt, it reads the last 10 and has room for 11.
        room = 20 - length if length < 20 else 11
        for tokens in (room - 3, 100):
            best = served.generate(prompts, tokens)["ids"].numpy()[:, 0]
            outputs = [[int(i) for i in row if i != tokenizer.PAD] for row in best]
            rows = prompts[: 1 if search.sample else 4].tolist()
            expected = [[*ours.ids(row, min(tokens, room))] for row in rows]
            assert outputs[: len(rows)] == expected
        if length == 0:
            assert len(set(map(tuple, outputs))) == (4 if search.sample else 1)


def test_exports_leave_no_directory_if_they_fail(tmp_path, monkeypatch):
    def export_unfinished(_, folder):
        (folder / "model").write_text("unfinished")
        raise KeyboardInterrupt

    monkeypatch.setattr(export.command_line, "load", lambda _: None)
    monkeypatch.setitem(export.EXPORTS, "saved_model", export_unfinished)
    about = {"folder": tmp_path / "a" / "b", "config": Config(), "search": Search()}
    flags = argparse.Namespace(format="saved_model", **about)
    with pytest.raises(KeyboardInterrupt):
        export.main(flags)
    assert not flags.folder.exists()


def test_what_cannot_be_exported_is_rejected_before_the_model_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(export.command_line, "load", lambda _: pytest.fail("loaded"))
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda _: None)
    about = {"folder": tmp_path / "model", "config": Config(), "search": Search()}
    with pytest.raises(UserError, match="pip install"):
        export.main(argparse.Namespace(format="ctranslate2", **about))
    about |= {"config": Config(model="language_model"), "search": Search(max_tokens=3)}
    with pytest.raises(UserError, match="--max-tokens"):
        export.main(argparse.Namespace(format="saved_model", **about))


@pytest.mark.slow
def test_translations_of_many_batches_and_threads_are_in_order(tiny, trained_tokenizer):
    """Whichever batch is finished first; empty lines stay empty."""
    ours = make_translator(
        tiny, trained_tokenizer, Search(2, 0.5, n_best=2), norm="post", eos_bias=2.2
    )
    ours.pool = ThreadPoolExecutor(4)
    texts = [text for pair in zip(TEXTS, [""] * len(TEXTS), strict=True) for text in pair]
    outputs = ours.n_best(texts, batch_sentences=3)
    for text, best in zip(texts, outputs, strict=True):
        single = ours.n_best([text])[0]
        assert [line for _, line in best] == [line for _, line in single]
        np.testing.assert_allclose([s for s, _ in best], [s for s, _ in single], atol=1e-4)
    assert len({best[0][1] for best in outputs}) > 10


def test_batches_have_different_samples(tiny, trained_tokenizer):
    ours = make_translator(tiny, trained_tokenizer, Search(sample=True), norm="pre", eos_bias=2.0)
    one, other = (ours.translate(["the cat"] * 24, batch_sentences=8) for _ in range(2))
    assert one == other and len(set(one)) > 18
