"""Whole models: who sees whom, padding that changes nothing, dropout and variables.

What every model that translates must do is asked of the recurrent ones too.
"""

import numpy as np
import pytest
import tensorflow as tf

from model import transformer
from model.attention import MultiHeadAttention
from model.layers import dropout
from model.loss import cross_entropy, teacher_forcing
from model.masks import look_ahead_mask, padding_mask

both_norms = pytest.mark.parametrize("norm", ["post", "pre"])
every_model = pytest.mark.parametrize(
    "flags",
    [{"norm": "post"}, {"norm": "pre"}]
    + [{"model": "recurrent", "recurrent_attention": a} for a in ("none", "additive", "dot")],
    ids=["post", "pre", "summary", "additive", "dot"],
)

SOURCE = np.int32([[3, 4, 5, 2]])
TARGET = np.int32([[1, 3, 4, 5, 6, 7, 2]])
# Sentence pairs of unlike lengths: in one batch, each side is padded.
PAIRS = [
    (np.int32([[3, 4, 5, 2]]), np.int32([[1, 6, 2]])),
    (np.int32([[7, 2]]), np.int32([[1, 5, 4, 3, 9, 2]])),
    (np.int32([[8, 3, 9, 4, 6, 2]]), np.int32([[1, 7, 7, 2]])),
]


def batch(sentences, extra=0):
    """Sentences as one array, padded to the longest and so much further."""
    length = max(sentence.shape[1] for sentence in sentences) + extra
    return np.vstack([np.pad(s, [(0, 0), (0, length - s.shape[1])]) for s in sentences])


# Who sees whom


@every_model
def test_no_logit_sees_a_later_token(tiny, flags):
    model = tiny(**flags)
    before, _ = teacher_forcing(model, SOURCE, TARGET)  # row i guesses token i + 1
    for j in range(1, 6):
        changed = TARGET.copy()
        changed[0, j] = 8
        after, _ = teacher_forcing(model, SOURCE, changed)
        change = np.max(np.abs(after - before), axis=1)
        assert np.all(change[:j] < 1e-6), f"token {j} is seen before it is guessed"
        assert np.all(change[j:] > 1e-4), f"token {j} is not seen by all that follow"


@every_model
def test_no_gradient_flows_back_from_a_later_token(tiny, flags):
    """All ids differ, so that a row of the embedding table is a position of the sentence."""
    model = tiny(**flags, shared_vocabulary=False)
    target_in, length = TARGET[:, :-1], TARGET.shape[1] - 1
    # A random direction: the sum over a norm's output is the same whatever its input.
    direction = np.float32(np.random.default_rng(0).normal(size=8))
    with tf.GradientTape(persistent=True) as tape:
        memory = model.encode(SOURCE, padding_mask(SOURCE))
        mask = look_ahead_mask(length, length)
        hidden, _ = model.decode(target_in, memory, mask, padding_mask(SOURCE))
        looks = [tf.tensordot(hidden[0, i], direction, 1) for i in range(length)]
    for i, look in enumerate(looks):
        rows = tf.convert_to_tensor(tape.gradient(look, model.output.embedding.table))
        seen = np.any(tf.gather(rows, target_in[0]) != 0, axis=1)
        np.testing.assert_array_equal(seen, np.arange(length) <= i)


@every_model
def test_every_source_token_is_seen_by_every_logit(tiny, flags):
    model = tiny(**flags)
    before, _ = teacher_forcing(model, SOURCE, TARGET)
    for j in range(SOURCE.shape[1]):
        changed = SOURCE.copy()
        changed[0, j] = 8
        after, _ = teacher_forcing(model, changed, TARGET)
        assert np.all(np.max(np.abs(after - before), axis=1) > 1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_positions_tell_the_order_of_the_source(tiny, positions):
    model, swapped = tiny(positions=positions), SOURCE[:, [1, 0, 2, 3]]
    logits, _ = teacher_forcing(model, SOURCE, TARGET)
    assert np.max(np.abs(logits - teacher_forcing(model, swapped, TARGET)[0])) > 1e-3


def test_without_positions_the_source_is_a_bag_of_words(tiny):
    model, swapped = tiny(positions="none"), SOURCE[:, [1, 0, 2, 3]]
    logits, _ = teacher_forcing(model, SOURCE, TARGET)
    np.testing.assert_allclose(teacher_forcing(model, swapped, TARGET)[0], logits, atol=1e-5)


# Padding


@every_model
@pytest.mark.parametrize(("source_extra", "target_extra"), [(0, 0), (3, 0), (0, 4), (2, 5)])
def test_a_batch_is_its_sentences_one_by_one(tiny, flags, source_extra, target_extra):
    model = tiny(**flags)
    sources, targets = zip(*PAIRS, strict=True)
    together = batch(sources, source_extra), batch(targets, target_extra)
    alone = [teacher_forcing(model, *pair)[0] for pair in PAIRS]
    logits, _ = teacher_forcing(model, *together)
    np.testing.assert_allclose(logits, np.concatenate(alone), rtol=1e-5, atol=1e-5)


@every_model
def test_what_a_mask_hides_does_not_matter(tiny, flags):
    """Any ids may stand where the mask says False: in the source's keys and in the target's."""
    model = tiny(**flags)
    source, target_in = batch([SOURCE], 3), batch([TARGET], 2)
    length = target_in.shape[1]
    source_mask = padding_mask(source)
    target_mask = look_ahead_mask(length, length) & padding_mask(target_in)
    results = []
    for filler in (0, 9):
        filled, target_filled = (np.where(ids == 0, filler, ids) for ids in (source, target_in))
        memory = model.encode(filled, source_mask)
        hidden, _ = model.decode(target_filled, memory, target_mask, source_mask)
        results.append((memory[:, : SOURCE.shape[1]], hidden[:, : TARGET.shape[1]]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# Dropout


@both_norms
def test_dropout_follows_every_sublayer_and_both_embeddings_in_training_only(
    tiny, norm, monkeypatch
):
    model, seeds = tiny(norm=norm, num_layers=3, dropout_rate=0.3), []

    def spy(x, rate, seed):
        assert rate == 0.3
        seeds.append(seed if seed is None else tuple(seed.numpy()))
        return dropout(x, rate, seed)

    monkeypatch.setattr(transformer, "dropout", spy)
    places = 2 + 3 * (2 + 3)
    teacher_forcing(model, SOURCE, TARGET)
    assert seeds == [None] * places
    seeds.clear()
    teacher_forcing(model, SOURCE, TARGET, tf.constant([0, 7], tf.int64))
    assert None not in seeds
    assert len(set(seeds)) == len(seeds) == places


@pytest.mark.parametrize("kind", [transformer.PostNorm, transformer.PreNorm])
def test_dropout_drops_what_a_sublayer_adds_and_never_the_stream(kind):
    residual, seed = kind(64, 0.5), tf.constant([0, 7], tf.int64)
    x, y = np.float32(np.random.default_rng(0).normal(size=(2, 2, 5, 64)))
    kept = np.array(dropout(tf.ones_like(y), 0.5, seed))  # 0 or 1 / (1 − rate)
    expected = x + y * kept
    if kind is transformer.PostNorm:
        expected = residual.norm(expected)
    np.testing.assert_allclose(residual.leave(x, y, seed), expected, atol=1e-5)


def test_logits_hang_on_the_seed_and_without_one_on_no_dropout_at_all(tiny):
    model, without = tiny(dropout_rate=0.3), tiny(dropout_rate=0.0)

    def logits(model, *seed):
        return np.array(teacher_forcing(model, SOURCE, TARGET, *seed)[0])

    step_7, step_8 = tf.constant([[0, 7], [0, 8]], tf.int64)
    np.testing.assert_array_equal(logits(model), logits(without))
    np.testing.assert_array_equal(logits(model, step_7), logits(model, step_7))
    assert np.max(np.abs(logits(model, step_7) - logits(model))) > 0.01
    assert np.max(np.abs(logits(model, step_7) - logits(model, step_8))) > 0.01


# Variables


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("shared_vocabulary", [True, False])
@pytest.mark.parametrize(("norm", "positions"), [("post", "sinusoidal"), ("pre", "learned")])
def test_all_parameters_exist_at_once_and_their_number_is_the_formulas(
    tiny, norm, positions, shared_vocabulary, tie_embeddings
):
    """Section 3, counted on paper. A variable made at a call would come too late for Adam."""
    source_vocab = target_vocab = 11
    if not shared_vocabulary:
        source_vocab = 13
    layers, d_model, heads, key_dim, dff, longest = 2, 8, 2, 5, 12, 20
    model = tiny(
        source_vocab, target_vocab, num_layers=layers, key_dim=key_dim, max_length=longest,
        norm=norm, positions=positions, shared_vocabulary=shared_vocabulary,
        tie_embeddings=tie_embeddings,
    )  # fmt: skip
    at_once = [variable.ref() for variable in model.trainable_variables]

    width = heads * key_dim
    attention = 3 * (d_model * width + width) + (width * d_model + d_model)
    feed_forward = (d_model * dff + dff) + (dff * d_model + d_model)
    layer_norm = 2 * d_model
    count = layers * (attention + feed_forward + 2 * layer_norm)  # the encoder
    count += layers * (2 * attention + feed_forward + 3 * layer_norm)  # the decoder
    if norm == "pre":
        count += 2 * layer_norm  # each stack ends in one
    if positions == "learned":
        count += 2 * (longest + 1) * d_model  # bos or eos beside the longest sentence
    count += target_vocab * d_model
    if not (tie_embeddings and shared_vocabulary):
        count += source_vocab * d_model
    if not tie_embeddings:
        count += d_model * target_vocab + target_vocab
    assert sum(variable.shape.num_elements() for variable in model.trainable_variables) == count

    teacher_forcing(model, SOURCE, TARGET, tf.constant([0, 7], tf.int64))
    model.step(tf.constant([1]), model.start(SOURCE))
    assert [variable.ref() for variable in model.variables] == at_once


@pytest.mark.parametrize("tie_embeddings", [True, False])
@every_model
def test_gradient_reaches_every_variable(tiny, flags, tie_embeddings):
    learned = {} if "model" in flags else {"positions": "learned"}
    model = tiny(**flags, **learned, tie_embeddings=tie_embeddings, shared_vocabulary=False)
    # A query's scores all rise by as much, so that softmax does not see a key's bias.
    attentions = [module for module in model.submodules if isinstance(module, MultiHeadAttention)]
    key_biases = {attention.key.bias.ref() for attention in attentions}
    assert len(key_biases) == (0 if "model" in flags else 2 + 2 * 2)

    with tf.GradientTape() as tape:
        losses = cross_entropy(*teacher_forcing(model, SOURCE, TARGET))
    gradients = tape.gradient(losses, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None
        largest = np.max(np.abs(tf.convert_to_tensor(gradient)))
        if variable.ref() in key_biases:
            assert largest < 1e-5
        else:
            assert largest > 1e-5
