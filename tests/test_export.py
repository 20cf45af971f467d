"""Exported models give the same translations and scores as the search of this project."""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from data import tokenizer
from data.batches import Ragged
from evaluation import export
from evaluation.search import Search
from evaluation.translator import Translator, decode_with
from model.layers import Dense, TiedProjection
from utils import UserError

WORDS = "the cat saw a dog and old men ate some bread by our house".split()
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 9)) for i in range(40)]


@pytest.fixture(scope="module")
def trained_tokenizer():
    return tokenizer.train(TEXTS, 300)


def make_translator(tiny, pieces, search, eos_bias=0.6, **flags):
    """A random model without special tokens in its output, but eos with this bias."""
    flags = {"tie_embeddings": False} | flags
    model = tiny(pieces.vocab_size, pieces.vocab_size, spread=0.05, **flags)
    if isinstance(model.output, Dense):
        never = [-20.0] * 3  # padding, unknown, bos
        model.output.bias[:4].assign([*never, eos_bias])
        model.output.kernel.assign(model.output.kernel * 3)
    return Translator(model, pieces, pieces, 20, search)


@pytest.mark.parametrize(
    "flags",
    [
        {"norm": "post", "eos_bias": 2.2},
        {"norm": "pre", "eos_bias": 2.2, "key_dim": 5, "positions": "learned"},
        pytest.param(
            {"norm": "post", "eos_bias": 2.2, "positions": "none"}, marks=pytest.mark.slow
        ),
        pytest.param({"norm": "pre", "tie_embeddings": True}, marks=pytest.mark.slow),
    ],
    ids=["post", "key_dim_and_learned", "no_positions", "tied"],
)
@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_ctranslate2_gives_the_same_translations_and_scores(
    tiny, trained_tokenizer, tmp_path, flags, beam
):
    ctranslate2 = pytest.importorskip("ctranslate2")
    search = Search(beam, 0.0) if beam > 1 else Search()
    ours = make_translator(tiny, trained_tokenizer, search, **flags)
    export.export_ctranslate2(ours, tmp_path)
    theirs = ctranslate2.Translator(str(tmp_path), compute_type="float32", intra_threads=1)
    rows = trained_tokenizer.encode(TEXTS)
    results = theirs.translate_batch(
        [trained_tokenizer.tokens(row) for row in rows],
        beam_size=beam,
        length_penalty=0,
        return_scores=True,
        min_decoding_length=0,
        max_decoding_length=80,
    )
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
        elif beam == 1:  # truncated at our limit
            assert len(pieces) > 20 and pieces == expected[: len(pieces)]
    assert beam == 1 or isinstance(ours.model.output, TiedProjection) or len(lengths) > 3


def test_a_model_with_two_vocabularies_is_exported(tiny, trained_tokenizer, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    other = tokenizer.train([text.upper() for text in TEXTS], 280)
    flags = {"norm": "pre", "shared_vocabulary": False, "tie_embeddings": False}
    model = tiny(trained_tokenizer.vocab_size, other.vocab_size, **flags)
    ours = Translator(model, trained_tokenizer, other, 20)
    export.export_ctranslate2(ours, tmp_path)  # which compares log probabilities
    results = ctranslate2.Translator(str(tmp_path)).translate_batch([["▁the", "▁cat"]])
    assert set(results[0].hypotheses[0]) <= set(other.tokens(range(other.vocab_size)))


def test_the_epsilon_of_layer_norm_is_exported(tiny, trained_tokenizer, tmp_path):
    """Inputs whose variance is about epsilon: with any other, log probabilities would differ."""
    pytest.importorskip("ctranslate2")
    ours = make_translator(tiny, trained_tokenizer, Search(), norm="pre", positions="none")
    for stack in (ours.model.encoder, ours.model.decoder):
        stack.embedding.table.assign(stack.embedding.table * 0.01)
    export.export_ctranslate2(ours, tmp_path)  # which compares log probabilities


def test_an_edited_model_is_not_exported_to_ctranslate2(
    tiny, trained_tokenizer, tmp_path, monkeypatch
):
    """Only weights are exported: CTranslate2 must compute the same with them."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("tensorflow.nn.relu", tf.nn.gelu)
    ours = make_translator(tiny, trained_tokenizer, Search())
    with pytest.raises(UserError, match="edited"):
        export.export_ctranslate2(ours, tmp_path)
    key = ours.model.decoder.layers[0].cross_attention.key
    key.kernel = tf.Variable(key.kernel[:, 1:])  # of another shape, as with grouped queries
    with pytest.raises(UserError, match="edited"):
        export.export_ctranslate2(ours, tmp_path)
    del ours.model.decoder.layers[0].cross_attention.output
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
    served = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path), json.dumps(source.tolist())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert served.returncode == 0, served.stderr
    outcome = json.loads(served.stdout)
    ids, scores = decode_with(ours.search, ours.model, tf.constant(source))
    np.testing.assert_array_equal(outcome["ids"], ids)
    np.testing.assert_allclose(outcome["scores"], scores, rtol=1e-6)
    pair = tokenizer.load_pair(tmp_path / "assets")
    assert pair[0].encode(TEXTS) == trained_tokenizer.encode(TEXTS)


def test_a_source_ends_in_one_eos_whether_it_had_one():
    rows = [[5, 6, 3], [5, 6], [7, 3], [5, 1, 7, 8, 9], [5, 6, 7, 8, 9, 3], [5] * 6, []]
    expected = [[5, 6, 3], [5, 6, 3], [7, 3], [5, 1, 7, 8, 9, 3], [5, 6, 7, 8, 9, 3]]
    expected += [[5] * 5 + [3], [3]]
    ended = export.end_with_eos(tf.ragged.constant(rows, tf.int32).to_tensor(), max_length=5)
    np.testing.assert_array_equal(ended, tf.ragged.constant(expected).to_tensor())
    for row, result in zip(rows, expected, strict=True):  # depends on no other row
        alone = export.end_with_eos(tf.constant([row], tf.int32), max_length=5)
        np.testing.assert_array_equal(alone, [result])


def test_exports_need_a_new_directory_and_leave_none_if_they_fail(tmp_path, monkeypatch):
    def export_unfinished(_, folder):
        (folder / "model").write_text("unfinished")
        raise KeyboardInterrupt

    monkeypatch.setattr(export.command_line, "load", lambda _: None)
    monkeypatch.setattr(export.signal, "signal", lambda *_: None)
    monkeypatch.setitem(export.EXPORTS, "saved_model", export_unfinished)
    flags = argparse.Namespace(format="saved_model", folder=tmp_path / "a" / "b")
    with pytest.raises(KeyboardInterrupt):
        export.main(flags)
    assert not flags.folder.exists()
    flags.folder.mkdir()
    (flags.folder / "kept").write_text("kept")
    with pytest.raises(UserError, match="name a new directory"):
        export.main(flags)
    assert (flags.folder / "kept").read_text() == "kept"


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
    one, other = (ours.translate(["the cat"] * 40, batch_sentences=8) for _ in range(2))
    assert one == other and len(set(one)) > 30
