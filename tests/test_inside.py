"""Looking inside: the right weights beside the right words, neighbours, BLEU by length."""

import numpy as np
import pytest

from data import tokenizer
from data.corpora import Split
from evaluation import inside
from evaluation.metrics import bleu
from evaluation.translator import Translator
from model.masks import masks

TEXTS = ["the cat saw a dog", "a house by our bread", "old men ate some bread", "the dog"]


@pytest.fixture(scope="module")
def made():
    return tokenizer.train(TEXTS, 350)


def inference(tiny, made, target=None, **flags):
    model = tiny(made.vocab_size, (target or made).vocab_size, spread=0.05, **flags)
    return Translator(model, made, target or made, 20)


def test_weights_stand_beside_the_words_that_they_are_of(tiny, made):
    model = inference(tiny, made)
    found, _ = inside.attention(model, "the cat", "a dog")
    source, said = ["▁the", "▁cat", "</s>"], ["▁a", "▁dog", "</s>"]
    read = ["<s>", "▁a", "▁dog"]
    assert {name: value[1:] for name, value in found.items()} == {
        "encoder self-attention": (source, source),
        "decoder self-attention": (said, read),
        "cross-attention": (said, source),
    }
    ids = [made.encode([text])[0] for text in ("the cat", "a dog")]
    source, target_in = np.int32([[*ids[0], 3]]), np.int32([[2, *ids[1]]])
    target_mask, source_mask = masks(source, target_in)
    memory = model.model.encode(source, source_mask)
    _, layers = model.model.decode(target_in, memory, target_mask, source_mask)
    for name, kind in ("decoder self-attention", "self"), ("cross-attention", "cross"):
        expected = [weights[kind][0] for weights in layers]  # a layer
        np.testing.assert_allclose(found[name][0], expected, atol=1e-6)
    encoder = found["encoder self-attention"][0]
    assert encoder.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(encoder.sum(axis=-1), 1, atol=1e-5)


def test_without_a_target_the_models_own_output_is_shown(tiny, made):
    model = inference(tiny, made, tie_embeddings=False)
    found, output = inside.attention(model, "the old dog")
    _, said, source = found["cross-attention"]
    assert [output] == model.translate(["the old dog"])
    assert made.decode([[made.pieces.piece_to_id(piece) for piece in said]]) == [output]
    assert len(source) >= 4 and source[-1] == "</s>"


@pytest.mark.parametrize("kind", ["none", "additive", "dot"])
def test_a_recurrent_model_shows_where_it_looks(tiny, made, kind):
    model = inference(tiny, made, model="recurrent", recurrent_attention=kind)
    found, _ = inside.attention(model, "the cat", "a dog")
    assert {name: value[0].shape for name, value in found.items()} == (
        {} if kind == "none" else {"cross-attention": (1, 1, 3, 3)}
    )


def test_a_classifier_shows_its_encoder(tiny, made):
    model = inference(tiny, made, tokenizer.Labels(["neg", "pos"]), model="classifier")
    found, label = inside.attention(model, "the cat")
    (name, (weights, queries, keys)) = found.popitem()
    assert label in ("neg", "pos")
    assert name == "encoder self-attention" and weights.shape == (2, 2, 3, 3)
    assert queries == keys == ["▁the", "▁cat", "</s>"]


def test_an_empty_text_is_refused(tiny, made):
    with pytest.raises(ValueError, match="empty"):
        inside.attention(inference(tiny, made), "")


def test_neighbours_are_the_highest_cosines(tiny, made):
    model = inference(tiny, made)
    table = model.model.source_embedding.table
    values = np.random.default_rng(0).normal(size=table.shape)
    cat, dog, house = (made.encode([word])[0][0] for word in ("cat", "dog", "house"))
    values[dog], values[house] = 5 * values[cat] + 0.1, -values[cat]  # the same way, the opposite
    table.assign(values)
    ((piece, others),) = inside.neighbours(model, "cat", count=made.vocab_size)
    assert piece == "▁cat" and others[0][1] == "▁dog" and others[0][0] > 0.99
    finite = [other for cosine, other in others if np.isfinite(cosine)]
    assert finite[-1] == "▁house" and "▁cat" not in finite
    assert not {"<pad>", "<unk>", "<s>", "</s>"} & {*finite}
    for cosine, other in others[:9]:
        a, b = values[cat], values[made.pieces.piece_to_id(other)]
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)


def test_bleu_by_length_is_that_of_each_group():
    sources = ["w " * n for n in (3, 5, 6, 10, 45)]
    targets = [f"one two three four {n}" for n in range(5)]
    outputs = [*targets[:3], "one two three four five", "quite another one it is"]
    rows = inside.by_length(Split(sources, targets), outputs)
    assert [row[:3] for row in rows] == [(1, 5, 2), (6, 10, 2), (41, None, 1)]
    assert [row[3] for row in rows] == [
        pytest.approx(100), bleu(outputs[2:4], targets[2:4]), bleu(outputs[4:], targets[4:])
    ]  # fmt: skip
    many = Split(["w " * 3] * 99 + sources[2:], ["one two three four five"] * 102)
    rows = inside.by_length(many, many.targets)  # a hundred and two: one is too few to be alone
    assert [row[:3] for row in rows] == [(1, 5, 99), (6, None, 3)]
