"""Attention weights of a text with their tokens."""

import warnings

import numpy as np
import pytest

import utils
from data import tokenizer
from evaluation.figures import figure
from evaluation.translator import Translator
from model.masks import look_ahead_mask, padding_mask

TEXTS = ["the cat saw a dog", "a house by our bread", "old men ate some bread", "the dog"]


@pytest.fixture(scope="module")
def pieces():
    return tokenizer.train(TEXTS, 350)


def make_translator(tiny, pieces, target=None, **flags):
    model = tiny(pieces.vocab_size, (target or pieces).vocab_size, spread=0.05, **flags)
    return Translator(model, pieces, target or pieces, 20)


def test_weights_come_with_their_tokens(tiny, pieces):
    translator = make_translator(tiny, pieces)
    kinds = translator.attention("the cat", "a dog")
    source, target_out = ["▁the", "▁cat", "</s>"], ["▁a", "▁dog", "</s>"]
    target_in = ["<s>", "▁a", "▁dog"]
    assert {name: value[1:] for name, value in kinds.items()} == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (target_out, target_in),
        "cross-attention": (target_out, source),
    }
    ids = [pieces.encode([text])[0] for text in ("the cat", "a dog")]
    source, target_in = np.int32([[*ids[0], 3]]), np.int32([[2, *ids[1]]])
    source_mask, target_mask = padding_mask(source), look_ahead_mask(target_in.shape[1])
    memory, _ = translator.model.encode(source, source_mask)
    _, layers = translator.model.decode(target_in, memory, target_mask, source_mask)
    for name, kind in ("decoder self-attention", "self"), ("cross-attention", "cross"):
        expected = [weights[kind][0] for weights in layers]  # one per layer
        np.testing.assert_allclose(kinds[name][0], expected, atol=1e-6)
    encoder = kinds["encoder self-attention"][0]
    assert encoder.shape == (2, 4, 3, 3)
    np.testing.assert_allclose(encoder.sum(axis=-1), 1, atol=1e-5)


def test_without_a_target_the_output_of_the_model_is_used(tiny, pieces):
    translator = make_translator(tiny, pieces, tie_embeddings=False, num_layers=1)
    _, target_out, source = translator.attention("the old dog")["cross-attention"]
    ids = [pieces.processor.piece_to_id(token) for token in target_out]
    assert pieces.decode([ids]) == translator.translate(["the old dog"])
    assert len(source) >= 4 and source[-1] == "</s>"


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_recurrent_models_have_cross_attention_or_none(tiny, pieces, kind):
    translator = make_translator(tiny, pieces, model="recurrent", recurrent_attention=kind)
    kinds = translator.attention("the cat", "a dog")
    assert {name: value[0].shape for name, value in kinds.items()} == (
        {} if kind == "none" else {"cross-attention": (1, 1, 3, 3)}
    )


def test_a_long_target_is_truncated(tiny, pieces):
    kinds = make_translator(tiny, pieces).attention("the cat", "a dog " * 99)
    _, target_out, _ = kinds["cross-attention"]
    assert len(target_out) == 20 + 1 and target_out[-1] == "</s>"


def test_classifiers_have_encoder_attention(tiny, pieces):
    labels = tokenizer.Labels(["neg", "pos"])
    kinds = make_translator(tiny, pieces, labels, model="classifier").attention("the cat")
    (name, (weights, queries, keys)) = kinds.popitem()
    assert name == "encoder self-attention" and weights.shape == (2, 4, 3, 3)
    assert queries == keys == ["▁the", "▁cat", "</s>"]


def test_characters_without_a_font_are_reported_in_one_line(tmp_path, capsys):
    """U+10FFFD is for private use: no font has it. Other warnings are shown as they are."""
    utils.warn.cache_clear()
    with warnings.catch_warnings(record=True) as raised, figure(tmp_path / "a", 2, 2) as canvas:
        canvas.text(0.5, 0.5, "\U0010fffd and \U0010fffc")
        warnings.warn("another", UserWarning, stacklevel=1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("warning") and "font" in lines[0]
    assert [str(warning.message) for warning in raised] == ["another"]
