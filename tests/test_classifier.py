"""The classifier: what is pooled, what padding may not change, and a label as a search finds it."""

import numpy as np
import pytest
import tensorflow as tf

from data import tokenizer
from data.corpora import Split
from evaluation.labels import confusion, f1_scores, mistakes
from evaluation.search import Search
from evaluation.translator import Translator
from model.attention import MultiHeadAttention
from model.classifier import POOLING, Bigrams
from model.decoding import greedy
from model.loss import cross_entropy, teacher_forcing

SOURCES = [[3, 4, 5, 2], [7, 2], [8, 3, 9, 4, 6, 2]]
TARGET = np.int32([[2, 4], [2, 5], [2, 5]])  # bos, label

every_pooling = pytest.mark.parametrize("pooling", ["max", "mean", "first"])


def batch(rows, extra=0):
    length = max(map(len, rows)) + extra
    return np.int32([row + [0] * (length - len(row)) for row in rows])


def test_poolings_by_hand():
    memory = np.float32([[[1, -5], [3, -7], [99, 99]]])
    real = np.array([[True, True, False]])
    for name, expected in {"max": [3, -5], "mean": [2, -6], "first": [1, -5]}.items():
        np.testing.assert_array_equal(POOLING[name](memory, real), [expected])


def test_bigrams_by_hand():
    made = Bigrams(11, 4, 50, [0, 0])
    made.pairs.assign(np.random.default_rng(0).normal(size=(50, 4)))
    ids = np.int32([[5, 6, 7, 3, 0], [6, 0, 7, 10, 3]])  # two texts and their ends; a hidden word
    pairs = {(0, 1): (5, 6), (0, 2): (6, 7), (1, 3): (7, 10)}
    expected = made.table.numpy()[ids]
    for place, (first, second) in pairs.items():
        expected[place] += made.pairs.numpy()[(first * 1_000_003 + second) % 50]
    np.testing.assert_allclose(made(ids), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize("bigrams", [0, 500])
def test_without_positions_only_bigrams_tell_an_order(tiny, bigrams):
    flags = {"model": "classifier", "positions": "none", "target_vocab": 6, "bigrams": bigrams}
    model = tiny(**flags)
    texts = [[7, 8, 9, 3], [9, 8, 7, 3]]
    logits, _ = teacher_forcing(model, batch(texts), TARGET[:2])
    assert (np.max(np.abs(logits[0] - logits[1])) > 1e-3) == bool(bigrams)
    longer, _ = teacher_forcing(model, batch(texts, 3), TARGET[:2])
    np.testing.assert_allclose(logits, longer, atol=1e-5)


@every_pooling
@pytest.mark.parametrize("extra", [0, 4])
def test_a_batch_is_its_texts_one_by_one(tiny, pooling, extra):
    model = tiny(model="classifier", pooling=pooling, target_vocab=6)
    together, labels = teacher_forcing(model, batch(SOURCES, extra), TARGET)
    np.testing.assert_array_equal(labels, TARGET[:, 1])
    for row, target, logits in zip(SOURCES, TARGET, together, strict=True):
        alone, _ = teacher_forcing(model, np.int32([row]), target[np.newaxis])
        np.testing.assert_allclose(alone[0], logits, atol=1e-5)


@every_pooling
def test_every_token_has_a_say(tiny, pooling):
    model, source = tiny(model="classifier", pooling=pooling, target_vocab=6), batch(SOURCES[:1])
    before, _ = teacher_forcing(model, source, TARGET[:1])
    for place in range(source.shape[1]):
        changed = source.copy()
        changed[0, place] = 9
        after, _ = teacher_forcing(model, changed, TARGET[:1])
        assert np.max(np.abs(after - before)) > 1e-4


@every_pooling
def test_gradient_reaches_every_variable(tiny, pooling):
    model = tiny(model="classifier", pooling=pooling, target_vocab=6, positions="learned")
    with tf.GradientTape() as tape:
        losses = cross_entropy(*teacher_forcing(model, batch(SOURCES), TARGET))
    attentions = [module for module in model.submodules if isinstance(module, MultiHeadAttention)]
    key_biases = {attention.key.bias.ref() for attention in attentions}
    gradients = tape.gradient(losses, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if variable.ref() not in key_biases:
            assert np.max(np.abs(tf.convert_to_tensor(gradient))) > 1e-6


def test_dropout_reaches_the_pooled_vector_in_training_only(tiny):
    model = tiny(model="classifier", target_vocab=6, dropout_rate=0.5)
    memory, mask = tf.ones((2, 3, 8)), tf.ones((2, 1, 1, 3), bool)
    pooled = model.decode(None, memory, None, mask, tf.constant([0, 7], tf.int64))[0].numpy()
    assert set(np.unique(pooled)) == {0.0, 2.0}
    np.testing.assert_array_equal(model.decode(None, memory, None, mask)[0], tf.ones((2, 1, 8)))


# As a search finds it


@pytest.fixture(scope="module")
def tokenizers():
    texts = ["a good film", "a bad film", "not good", "not bad , not bad at all"]
    return tokenizer.train(texts, 300), tokenizer.Labels(["neg", "pos"])


def test_a_label_is_one_token_and_its_score_its_log_probability(tiny, tokenizers):
    model = tiny(tokenizers[0].vocab_size, 6, spread=0.05, model="classifier")
    model.output.bias[:4].assign([9.0] * 4)  # they are no labels, whatever they say
    texts = ["a good film", "not bad at all", "a film", ""]
    best = Translator(model, *tokenizers, 20).n_best(texts)
    both = Translator(model, *tokenizers, 20, Search(beam=2, n_best=2)).n_best(texts)
    for text, (found,), ranked in zip(texts[:3], best[:3], both[:3], strict=True):
        source = np.int32([[*tokenizers[0].encode([text])[0], tokenizer.EOS]])
        logits, _ = teacher_forcing(model, source, TARGET[:1])
        log_probs = dict(zip(["neg", "pos"], tf.nn.log_softmax(logits[0, 4:]).numpy(), strict=True))
        assert found[1] == max(log_probs, key=log_probs.get)
        assert {label for _, label in ranked} == {"neg", "pos"}
        for score, label in [found, *ranked]:
            assert score == pytest.approx(log_probs[label], abs=1e-5)
    assert best[3] == [(0.0, "")]


def test_greedy_search_stops_after_the_label(tiny):
    model = tiny(11, 6, model="classifier")
    outputs = greedy(model, batch(SOURCES), 2, 3, limit=tf.ones(3, tf.int32))
    expected = 4 + tf.argmax(teacher_forcing(model, batch(SOURCES), TARGET)[0][:, 4:], axis=1)
    np.testing.assert_array_equal(outputs[:, 0], expected)
    assert outputs.shape[1] == 1


# How it did


def test_confusion_f1_and_mistakes_by_hand():
    true = ["a", "a", "a", "b", "b", "c"]
    said = ["a", "a", "b", "b", "a", "b"]
    matrix = confusion(said, true, ["a", "b", "c"])
    np.testing.assert_array_equal(matrix, [[2, 1, 0], [1, 1, 0], [0, 1, 0]])
    # a: 2 right, said 3 times, true 3 times; b: 1 right, said 3, true 2; c: never said.
    np.testing.assert_allclose(f1_scores(matrix), [4 / 6, 2 / 5, 0])
    found = list(zip([-0.1, -0.2, -0.5, -0.1, -0.3, -0.4], said, strict=True))
    assert mistakes(Split(list("uvwxyz"), true), found) == [4, 5, 2]  # the surest first


def test_labels_are_ids_after_the_special_ones_and_back(tmp_path):
    labels = tokenizer.Labels(["neg", "pos"])
    assert labels.encode(["pos", "neg"]) == [[5], [4]] and labels.vocab_size == 6
    assert labels.decode([[5], [4, 0], np.int32([2, 5]), [3]]) == ["pos", "neg", "pos", ""]
    with pytest.raises(ValueError, match="no text with the label 'neutral', only neg, pos"):
        labels.encode(["pos", "neutral"])
    texts = tokenizer.train(["some text"], 300)
    tokenizer.save_pair(tmp_path, texts, labels)
    source, target = tokenizer.load_pair(tmp_path)
    assert source.model == texts.model and target.names == labels.names


def test_words_are_set_apart_from_marks_and_the_rare_ones_are_unknown():
    made = tokenizer.train(["It isn't bad, is it?"] * 5 + ["rare"], 260, lowercase=True, words=True)
    ids = made.encode(["IT is,bad unheard"])[0]
    assert [piece.lstrip("▁") for piece in made.tokens(ids)] == ["it", "is", ",", "bad", "<unk>"]
    assert made.decode([ids]) == ["it is , bad"]
    # Vowel signs and accents that are characters of their own cut no word.
    for word in "हिन्दी", "cafe\u0301":
        assert tokenizer.prepared([f"({word})"], False, True) == [f"( {word} )"]
