"""Attention weights of a text with their tokens, and neighbours of embeddings."""

import numpy as np
import pytest

from data import tokenizer
from evaluation.attention import attention_weights
from evaluation.neighbours import neighbours
from evaluation.translator import Translator
from model.masks import masks
from utils import UserError

TEXTS = ["the cat saw a dog", "a house by our bread", "old men ate some bread", "the dog"]


@pytest.fixture(scope="module")
def pieces():
    return tokenizer.train(TEXTS, 350)


def make_translator(tiny, pieces, target=None, **flags):
    model = tiny(pieces.vocab_size, (target or pieces).vocab_size, spread=0.05, **flags)
    return Translator(model, pieces, target or pieces, 20)


def test_weights_come_with_their_tokens(tiny, pieces):
    translator = make_translator(tiny, pieces)
    kinds, _ = attention_weights(translator, "the cat", "a dog")
    source, target_out = ["▁the", "▁cat", "</s>"], ["▁a", "▁dog", "</s>"]
    target_in = ["<s>", "▁a", "▁dog"]
    assert {name: value[1:] for name, value in kinds.items()} == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (target_out, target_in),
        "cross-attention": (target_out, source),
    }
    ids = [pieces.encode([text])[0] for text in ("the cat", "a dog")]
    source, target_in = np.int32([[*ids[0], 3]]), np.int32([[2, *ids[1]]])
    target_mask, source_mask = masks(source, target_in)
    memory = translator.model.encode(source, source_mask)
    _, layers = translator.model.decode(target_in, memory, target_mask, source_mask)
    for name, kind in ("decoder self-attention", "self"), ("cross-attention", "cross"):
        expected = [weights[kind][0] for weights in layers]  # one per layer
        np.testing.assert_allclose(kinds[name][0], expected, atol=1e-6)
    encoder = kinds["encoder self-attention"][0]
    assert encoder.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(encoder.sum(axis=-1), 1, atol=1e-5)


def test_without_a_target_the_output_of_the_model_is_used(tiny, pieces):
    translator = make_translator(tiny, pieces, tie_embeddings=False)
    kinds, output = attention_weights(translator, "the old dog")
    _, target_out, source = kinds["cross-attention"]
    assert [output] == translator.translate(["the old dog"])
    ids = [pieces.processor.piece_to_id(token) for token in target_out]
    assert pieces.decode([ids]) == [output]
    assert len(source) >= 4 and source[-1] == "</s>"


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_recurrent_models_have_cross_attention_or_none(tiny, pieces, kind):
    translator = make_translator(tiny, pieces, model="recurrent", recurrent_attention=kind)
    kinds, _ = attention_weights(translator, "the cat", "a dog")
    assert {name: value[0].shape for name, value in kinds.items()} == (
        {} if kind == "none" else {"cross-attention": (1, 1, 3, 3)}
    )


def test_classifiers_have_encoder_attention(tiny, pieces):
    labels = tokenizer.Labels(["neg", "pos"])
    kinds, label = attention_weights(
        make_translator(tiny, pieces, labels, model="classifier"), "the cat"
    )
    (name, (weights, queries, keys)) = kinds.popitem()
    assert label in ("neg", "pos")
    assert name == "encoder self-attention" and weights.shape == (2, 2, 3, 3)
    assert queries == keys == ["▁the", "▁cat", "</s>"]


def test_an_empty_text_is_rejected(tiny, pieces):
    with pytest.raises(UserError, match="empty"):
        attention_weights(make_translator(tiny, pieces), "")


def test_neighbours_have_the_highest_cosine_similarity(tiny, pieces):
    translator = make_translator(tiny, pieces)
    table = translator.model.source_embedding.table
    values = np.random.default_rng(0).normal(size=table.shape)
    cat, dog, house = (pieces.encode([word])[0][0] for word in ("cat", "dog", "house"))
    values[dog], values[house] = 5 * values[cat] + 0.1, -values[cat]  # parallel, opposite
    table.assign(values)
    ((token, others),) = neighbours(translator, "cat", count=pieces.vocab_size)
    assert token == "▁cat" and others[0][1] == "▁dog" and others[0][0] > 0.99
    finite = [other for cosine, other in others if np.isfinite(cosine)]
    assert finite[-1] == "▁house" and "▁cat" not in finite
    assert not {"<pad>", "<unk>", "<s>", "</s>"} & {*finite}
    for cosine, other in others[:9]:
        a, b = values[cat], values[pieces.processor.piece_to_id(other)]
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
