"""Decoding: one token at a time is the whole sentence at once; the search does what it says."""

import numpy as np
import pytest
import tensorflow as tf

from model.decoding import beam_search, blockwise_top_k, filter_logits, greedy, output_limit, sample
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
        {"model": "recurrent", "recurrent_attention": "none"},
        {"model": "recurrent", "recurrent_attention": "additive"},
        {"model": "recurrent", "recurrent_attention": "dot", "num_layers": 1},
    ],
    ids=["post", "pre_untied", "learned", "summary", "additive", "dot"],
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
        return {"last": source[:, 0], "past": ()}

    def step(self, token, state):
        following = tf.where(token == BOS, 5, token + 1)
        following = tf.where(token == state["last"], EOS, following)
        return tf.one_hot(following, self.vocab_size), state


def test_rows_end_in_eos_and_are_padded_after():
    outputs = greedy(CountTo(), tf.constant([[7, 2], [9, 2], [5, 2]]), BOS, EOS)
    expected = [[5, 6, 7, 2, 0, 0], [5, 6, 7, 8, 9, 2], [5, 2, 0, 0, 0, 0]]
    np.testing.assert_array_equal(outputs, expected)


def test_the_limit_is_twice_the_source_and_twenty():
    np.testing.assert_array_equal(output_limit(np.int32([[9, 9, 2, 0], [9, 2, 0, 0]])), [26, 24])


def test_sentences_that_are_done_leave_the_batch_and_the_rest_goes_on():
    """Whatever is left of a batch, it is each sentence's own state that stays with it."""
    model, sizes = CountTo(), []
    says = model.step
    model.step = lambda token, state: sizes.append(int(tf.size(token))) or says(token, state)
    ends = [7, 30, 5, 12, 9, 6]
    expected = [[*range(5, end + 1), EOS] for end in ends]
    source = tf.constant([[end, 5, 5, 2] for end in ends])
    assert [unpadded(row) for row in greedy(model, source, BOS, EOS)] == expected
    assert sizes[0] == 6 and sizes[-1] == 1 and sizes == sorted(sizes, reverse=True)
    sizes.clear()
    source = tf.repeat(source, 2, axis=0)
    model.start = lambda source: {"last": source[:, 0], "past": source[:, :1]}
    model.step = lambda token, state: sizes.append(int(tf.size(token))) or (
        100 * says(token, {"last": state["past"][:, 0]})[0], state
    )  # fmt: skip
    outputs, _ = beam_search(model, source, BOS, EOS, 3)
    assert [unpadded(row) for row in outputs[:, 0]] == [x for x in expected for _ in range(2)]
    assert sizes[0] == 36 and sizes[-1] <= 6


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
    calls.clear()
    assert greedy(model, SOURCE, BOS, EOS).shape[1] > 1  # without a graph, step by step
    assert len(calls) == 1


class Table:
    """A model that says what a table has for the place and the row: (places, rows, vocab_size).

    It takes the first rows: good as long as no sentence leaves before another.
    """

    def __init__(self, logits):
        self.logits = tf.constant(logits, tf.float32)

    def start(self, source):
        return {"past": tf.zeros((tf.shape(source)[0], 1), tf.int32)}  # the place

    def step(self, token, state):
        place = state["past"]
        return self.logits[place[0, 0]][: tf.shape(token)[0]], {"past": place + 1}


def test_beam_search_finds_what_tensor2tensor_finds():
    """Its test of two sentences: a strong penalty turns the order round in the first alone."""
    table = [
        [[0.1, 0.1, 0.8]] * 4,
        [[0.4, 0.5, 0.1], [0.2, 0.4, 0.4], [0.3, 0.6, 0.1], [0.2, 0.4, 0.4]],
        [[0.05, 0.9, 0.05], [0.4, 0.4, 0.2]] * 2,
    ]
    outputs, scores = beam_search(
        Table(np.log(table)), [[5], [5]], bos=0, eos=1, beam=2, length_penalty=3.5, n_best=2,
        limit=[3, 3],
    )  # fmt: skip
    assert outputs.numpy().tolist() == [[[2, 0, 1], [2, 1, 0]], [[2, 1, 0], [2, 0, 1]]]
    longer, shorter = (8 / 6) ** 3.5, (7 / 6) ** 3.5
    expected = [
        [np.log(0.8 * 0.4 * 0.9) / longer, np.log(0.8 * 0.5) / shorter],
        [np.log(0.8 * 0.6) / shorter, np.log(0.8 * 0.3 * 0.9) / longer],
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_beam_search_finds_what_tensorflows_own_model_garden_finds():
    """There the end of a sentence is never said, and the limit cuts."""
    table = [
        [[0.2, 0.7, 0.1], [0.1, 0.8, 0.1]],
        [[0.5, 0.3, 0.2], [0.3, 0.4, 0.3]],
        [[0.1, 0.8, 0.1], [0.2, 0.1, 0.7]],
    ]
    outputs, _ = beam_search(
        Table(table), [[5]], bos=0, eos=9, beam=2, length_penalty=0.6, n_best=2, limit=[3]
    )
    assert outputs.numpy().tolist() == [[[1, 0, 1], [1, 1, 2]]]


def test_a_search_goes_on_while_a_longer_output_may_still_win():
    """Now the one that is alive is worse, by either penalty; its length will make up for it."""
    table = np.log([[1e-9, 0.45, 0.5, 0.05], [1e-9, 0.98, 0.01, 0.01], [1e-9, 0.01, 0.98, 0.01]])
    model = Table(np.repeat(table[:, np.newaxis], 2, axis=1))
    outputs, scores = beam_search(model, [[5]], BOS, EOS, 2, length_penalty=2.0, limit=[3])
    assert outputs.numpy().tolist() == [[[1, 1, EOS]]]
    np.testing.assert_allclose(scores, [[np.log(0.45 * 0.98 * 0.98) / (8 / 6) ** 2]], rtol=1e-5)


@pytest.mark.parametrize("beam", [3, 4, 6])
def test_a_beam_may_be_wider_than_the_vocabulary(beam):
    logits = tf.nn.log_softmax(np.random.default_rng(0).normal(size=(4, 4))).numpy()
    logits[:, PAD] = -30
    model = Table(np.repeat(logits[:, np.newaxis], beam, axis=1))
    outputs, scores = beam_search(model, [[5]], BOS, EOS, beam, 0.6, n_best=beam, limit=[4])
    log_probs = tf.nn.log_softmax(tf.constant(logits, tf.float32)).numpy()
    expected = naive_beam(lambda tokens: log_probs[len(tokens)], beam, 0.6, beam, 4)
    assert [unpadded(output) for output in outputs[0]] == [list(tokens) for _, tokens in expected]
    np.testing.assert_allclose(scores[0], [score for score, _ in expected], atol=1e-5)


def forced_score(model, source, output, length_penalty):
    """An output's score, by one look of the whole decoder at it."""
    output = unpadded(output)
    source_mask, length = padding_mask(source), len(output)
    hidden, _ = model.decode(
        tf.constant([[BOS, *output[:-1]]]), model.encode(source, source_mask),
        look_ahead_mask(length, length), source_mask,
    )  # fmt: skip
    log_probs = tf.nn.log_softmax(model.logits(hidden))[0].numpy().astype(float)
    return log_probs[range(length), output].sum() / ((5 + length) / 6) ** length_penalty


def naive_beam(next_log_probs, beam, length_penalty, n_best, limit):
    """The same search on lists, to the very end: nothing is cut short but by the limit."""
    alive, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        extended = [
            (score + log_prob, (*tokens, token))
            for score, tokens in alive
            for token, log_prob in enumerate(next_log_probs(tokens))
        ]
        extended = sorted(extended, key=lambda pair: -pair[0])[: 2 * beam]
        for score, tokens in extended[:beam]:
            if tokens[-1] == EOS or length == limit:
                finished.append((score / ((5 + length) / 6) ** length_penalty, tokens))
        alive = [pair for pair in extended if pair[1][-1] != EOS][:beam]
    return sorted(finished, key=lambda pair: -pair[0])[:n_best]


LIMITS = np.int32([9, 12, 7])


@flavours
@pytest.mark.parametrize("beam, length_penalty, n_best", [(1, 0.0, 1), (3, 0.6, 3), (6, 1.5, 2)])
def test_beam_search_stops_early_and_loses_nothing(tiny, flags, beam, length_penalty, n_best):
    """Batched and stopped early, it finds what the naive search finds in each sentence alone; and
    its scores are those of teacher forcing.
    """
    model = tiny(**flags | {"tie_embeddings": False}, spread=0)
    # Its outputs should end at all kinds of places, and hold no padding, as no trained model's do.
    model.output.bias.assign(tf.one_hot(EOS, 11) * 0.5 - tf.one_hot(PAD, 11) * 20)
    if "model" in flags:  # untrained, a recurrent one says much the same everywhere
        model.output.kernel.assign(model.output.kernel * 9)
    search = tf.function(
        lambda source, limit: beam_search(
            model, source, BOS, EOS, beam, length_penalty, n_best, limit
        ),
        [IDS, tf.TensorSpec([None], tf.int32)],
    )
    whole = tf.function(lambda *given: tf.nn.log_softmax(full_logits(model, *given)), [IDS, IDS])
    outputs, scores = search(SOURCE, LIMITS)
    lengths = set()
    for row, limit, found, found_scores in zip(SOURCE, LIMITS, outputs, scores, strict=True):
        alone = row[row != PAD][tf.newaxis]
        expected = naive_beam(
            lambda tokens, alone=alone: whole(alone, np.int32([[BOS, *tokens]]))[0].numpy(),
            beam, length_penalty, n_best, limit,
        )  # fmt: skip
        assert [unpadded(output) for output in found] == [list(tokens) for _, tokens in expected]
        np.testing.assert_allclose(found_scores, [score for score, _ in expected], atol=1e-4)
        for output, score in zip(found, found_scores, strict=True):
            forced = forced_score(model, alone, output, length_penalty)
            np.testing.assert_allclose(score, forced, atol=1e-4)
            lengths.add(len(unpadded(output)))
    assert len(lengths) > 1


@flavours
def test_a_beam_of_one_is_greedy(tiny, flags):
    model = tiny(**flags | {"tie_embeddings": False}, spread=0)
    outputs, _ = beam_search(model, SOURCE, BOS, EOS, beam=1)
    expected = greedy(model, SOURCE, BOS, EOS)
    assert [unpadded(row) for row in outputs[:, 0]] == [unpadded(row) for row in expected]


class Stops(CountTo):
    """Says how often it was asked."""

    def __init__(self):
        self.steps = 0

    def step(self, token, state):
        self.steps += 1
        logits, state = super().step(token, state)
        return 50.0 * logits, state


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_search_that_is_sure_stops_at_its_end(length_penalty):
    model = Stops()
    outputs, _ = beam_search(model, [[7, 2, 2, 2]], BOS, EOS, 4, length_penalty)  # limit 28
    assert outputs.numpy().tolist() == [[[5, 6, 7, EOS]]]
    assert model.steps == 4


@pytest.mark.parametrize("length, k", [(5, 5), (63, 1), (320, 5), (321, 5), (8089, 8), (1000, 40)])
def test_the_highest_are_tensorflows_top_k(length, k):
    rng = np.random.default_rng(length)
    spread = tf.constant(rng.normal(size=(7, length)), tf.float32)
    gathered = tf.sort(spread)  # the highest side by side, in the last block and what is left
    for x in (spread, gathered):
        values, index = tf.math.top_k(x, k)
        np.testing.assert_array_equal(blockwise_top_k(x, k)[0], values)
        np.testing.assert_array_equal(blockwise_top_k(x, k)[1], index)


def test_truncated_keeps_the_likeliest():
    logits = np.log(np.float32([[0.5, 0.1, 0.3, 0.06, 0.04], [0.1, 0.2, 0.3, 0.1, 0.3]]))
    inf = float("inf")
    np.testing.assert_array_equal(filter_logits(logits), logits)
    np.testing.assert_array_equal(filter_logits(logits, temperature=0.5), logits / 0.5)
    # The first token that takes the sum to p is the last one kept.
    kept = filter_logits(logits[:1], top_p=0.79).numpy() > -inf
    assert kept.tolist() == [[True, False, True, False, False]]
    kept = filter_logits(logits[:1], top_p=0.81).numpy() > -inf
    assert kept.tolist() == [[True, True, True, False, False]]
    assert (filter_logits(logits, top_p=0.001).numpy() > -inf).sum(axis=1).tolist() == [
        1,
        2,
    ]  # a tie
    assert (filter_logits(logits, top_k=2).numpy() > -inf).sum(axis=1).tolist() == [2, 2]


def test_sampling_draws_from_the_softmax_and_hangs_on_the_seed():
    rows, probabilities = 20_000, np.array([0.5, 0.25, 0.15, 0.1])
    model = Table(np.log(np.tile(probabilities, (20, rows, 1))))

    def draw(seed, **how):
        return sample(model, np.zeros((rows, 1), np.int32), BOS, 3, [seed, 0], **how).numpy()

    first = draw(0)
    deviation = np.sqrt(probabilities * (1 - probabilities) / rows)
    share = np.bincount(first[:, 0], minlength=4) / rows
    assert (abs(share - probabilities) < 5 * deviation).all()
    going_on = first[:, 0] != 3
    share = np.bincount(first[going_on, 1], minlength=4) / going_on.sum()
    assert (abs(share - probabilities) < 6 * deviation).all()
    # Places and rows draw apart.
    assert abs(np.corrcoef(first[going_on, 0], first[going_on, 1])[0, 1]) < 0.04
    np.testing.assert_array_equal(first, draw(0))
    assert (draw(1)[:, 0] != first[:, 0]).mean() > 0.5
    sharper = np.bincount(draw(0, temperature=0.5)[:, 0], minlength=4) / rows
    expected = probabilities**2 / (probabilities**2).sum()
    assert (abs(sharper - expected) < 0.02).all()
    assert set(draw(0, top_k=2)[:, 0]) == {0, 1}
    assert set(draw(0, top_p=0.8)[:, 0]) == {0, 1, 2}


def test_sampling_the_likeliest_alone_is_greedy(tiny):
    model = tiny(norm="pre", tie_embeddings=False, spread=0)
    expected = greedy(model, SOURCE, BOS, EOS)
    np.testing.assert_array_equal(sample(model, SOURCE, BOS, EOS, [0, 0], top_k=1), expected)
