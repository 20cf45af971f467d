"""Decoding: one token at a time is the whole sentence at once, and the search does what it says."""

import numpy as np
import pytest
import tensorflow as tf

from model.decoding import greedy, output_limit
from model.masks import look_ahead_mask, padding_mask

PAD, BOS, EOS = 0, 1, 2
IDS = tf.TensorSpec([None, None], tf.int32)
SOURCE = tf.constant([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])

flavours = pytest.mark.parametrize(
    "flags",
    [
        {"norm": "post"},
        {"norm": "pre", "key_dim": 5, "tie_embeddings": False},
        {"norm": "pre", "positions": "learned", "max_length": 3},  # shorter than what is decoded
    ],
    ids=["post", "pre_untied", "learned"],
)


def full_logits(model, source, prefix):
    """The logits after a prefix, (batch, length), by the whole decoder at once, without a cache."""
    length, source_mask = tf.shape(prefix)[1], padding_mask(source)
    memory = model.encode(source, source_mask)
    hidden, _ = model.decode(prefix, memory, look_ahead_mask(length, length), source_mask)
    return model.logits(hidden)[:, -1]


@flavours
def test_every_cached_step_is_the_whole_decoder_on_the_prefix(tiny, flags):
    model = tiny(**flags)
    outputs = np.random.default_rng(0).integers(3, 11, (3, 12), np.int32)
    outputs[:, 0] = BOS
    state = model.start(SOURCE)
    for length in range(1, 13):
        logits, state = model.step(tf.constant(outputs[:, length - 1]), state)
        expected = full_logits(model, SOURCE, outputs[:, :length])
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def naive_greedy(logits_after, source, limit):
    """One sentence, re-running the whole decoder for each token."""
    tokens = [BOS]
    while tokens[-1] != EOS and len(tokens) <= limit:
        tokens.append(int(np.argmax(logits_after(source, np.int32([tokens]))[0])))
    return tokens[1:]


def unpadded(row):
    return [int(token) for token in row if token != PAD]


@flavours
def test_greedy_is_the_naive_loop_and_batched_is_one_by_one(tiny, flags):
    # Untied and as drawn, a model says this and that; tied, it says one thing for ever.
    model = tiny(**flags | {"tie_embeddings": False}, spread=0)
    decode = tf.function(lambda source: greedy(model, source, BOS, EOS), [IDS])
    logits_after = tf.function(lambda *given: full_logits(model, *given), [IDS, IDS])
    together = decode(SOURCE)
    lengths = []
    for row, output in zip(SOURCE, together, strict=True):
        alone = row[row != PAD][tf.newaxis]
        expected = naive_greedy(logits_after, alone, limit=2 * alone.shape[1] + 20)
        lengths.append(len(expected))
        assert output.numpy().tolist() == expected + [PAD] * (len(output) - len(expected))
        assert decode(alone)[0].numpy().tolist() == expected
    assert together.shape[1] == max(lengths)


class CountTo:
    """A model that says 5, 6, 7, … up to its source's first token, and then EOS."""

    vocab_size = 100

    def start(self, source):
        return {"last": source[:, 0]}

    def step(self, token, state):
        following = tf.where(token == BOS, 5, token + 1)
        following = tf.where(token == state["last"], EOS, following)
        return tf.one_hot(following, self.vocab_size), state


def test_rows_end_in_eos_and_are_padded_after():
    outputs = greedy(CountTo(), tf.constant([[7, 2], [9, 2], [5, 2]]), BOS, EOS)
    expected = [
        [5, 6, 7, 2, 0, 0],
        [5, 6, 7, 8, 9, 2],
        [5, 2, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(outputs, expected)


def test_the_limit_is_twice_the_source_and_twenty():
    np.testing.assert_array_equal(output_limit(np.int32([[9, 9, 2, 0], [9, 2, 0, 0]])), [26, 24])


def test_an_endless_output_stops_at_its_own_sentences_limit():
    """The second row's company makes the batch longer, not the row."""
    source = tf.constant([[99, 9, 9, 9, 2], [99, 2, 0, 0, 0], [6, 2, 0, 0, 0]])
    outputs = greedy(CountTo(), source, BOS, EOS)
    assert outputs.shape == (3, 2 * 5 + 20)
    assert [len(unpadded(row)) for row in outputs] == [2 * 5 + 20, 2 * 2 + 20, 3]
    assert unpadded(outputs[1]) == list(range(5, 5 + 24))
    alone = greedy(CountTo(), source[1:2, :2], BOS, EOS)
    assert unpadded(alone[0]) == unpadded(outputs[1])


def test_the_source_is_encoded_once_and_the_graph_traced_once(tiny):
    model, calls = tiny(), []
    encode = model.encode
    model.encode = lambda *given: calls.append(given) or encode(*given)
    decode = tf.function(lambda source: greedy(model, source, BOS, EOS), [IDS])
    for batch, length in [(1, 1), (3, 4), (2, 9)]:
        assert decode(np.full((batch, length), 5, np.int32)).shape[0] == batch
    assert decode.experimental_get_tracing_count() == 1
    assert len(calls) == 1
