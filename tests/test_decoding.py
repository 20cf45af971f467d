"""Decoding: searches equal naive searches on lists, hand-worked examples."""

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

from data.tokenizer import BOS, EOS, PAD
from model import decoding
from model.decoding import beam_search, blockwise_top_k, filter_logits, greedy, sample

IDS = tf.TensorSpec([None, None], tf.int32)
SOURCE = tf.constant([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])

LIMITS = np.int32([9, 12, 7])
FLAVORS = {
    "post": {"norm": "post"},
    "pre_untied": {"norm": "pre", "key_dim": 6, "tie_embeddings": False},
    "learned": {"positions": "learned", "max_length": 3},  # shorter than the outputs
    "fixed_context": {"model": "recurrent", "recurrent_attention": "none"},
    "additive": {"model": "recurrent", "recurrent_attention": "additive"},
    "dot": {"model": "recurrent", "recurrent_attention": "dot", "num_layers": 1},
}


# In the fast tests, one Transformer and one recurrent model.
FAST = ("post", "additive")
SEARCHED = [
    pytest.param(
        flags, id=name, marks=[pytest.mark.invariant if name in FAST else pytest.mark.slow]
    )
    for name, flags in FLAVORS.items()
]


@pytest.fixture(scope="module", params=SEARCHED)
def varied(request, tiny):
    """A model with outputs of different length, and its log probabilities after a prefix."""
    # Untied and with initial weights, outputs vary; tied, a model repeats one token.
    model = tiny(**request.param | {"tie_embeddings": False, "num_layers": 1}, spread=0)
    model.output.bias.assign(tf.one_hot(EOS, 11) * 0.3 - tf.one_hot(PAD, 11) * 20)
    if "model" in request.param:  # an untrained recurrent model has similar logits everywhere
        model.output.kernel.assign(model.output.kernel * 9)

    @tf.function(input_signature=[IDS, IDS], autograph=False)
    def log_probs_after(source, prefix):
        target = tf.pad(prefix, [(0, 0), (0, 1)], constant_values=EOS)  # any token to predict
        logits = model.teacher_forced(source, target).logits
        logits = tf.reshape(logits, (tf.shape(prefix)[0], -1, logits.shape[1]))
        return tf.nn.log_softmax(logits[:, -1])

    return model, log_probs_after


def naive_greedy(log_probs_after, source, limit):
    """Decode one sentence; run the full decoder for each token."""
    tokens = [BOS]
    while tokens[-1] != EOS and len(tokens) <= limit:
        tokens.append(int(np.argmax(log_probs_after(source, np.int32([tokens]))[0])))
    return tokens[1:]


def unpadded(row):
    return [int(token) for token in row if token != PAD]


def test_greedy_equals_naive_loop_on_single_sentences(varied):
    model, log_probs_after = varied
    decode = tf.function(lambda source: greedy(model, source, BOS, EOS), [IDS], autograph=False)
    outputs = decode(SOURCE)
    lengths = []
    for row, output in zip(SOURCE, outputs, strict=True):
        single = row[row != PAD][tf.newaxis]
        expected = naive_greedy(log_probs_after, single, limit=2 * single.shape[1] + 20)
        lengths.append(len(expected))
        assert output.numpy().tolist() == expected + [PAD] * (len(output) - len(expected))
        assert decode(single)[0].numpy().tolist() == expected
    assert outputs.shape[1] == max(lengths)


class CountTo:
    """A model that outputs 5, 6, 7, … up to its source's first token, then EOS."""

    vocab_size = 100

    def init_decode(self, source):
        return {"last": source[:, 0], "caches": ()}

    def decode_step(self, token, state):
        following = tf.where(token == BOS, 5, token + 1)
        following = tf.where(token == state["last"], EOS, following)
        return tf.one_hot(following, self.vocab_size), state


@pytest.mark.exercise("greedy")
def test_outputs_are_padded_after_eos():
    outputs = greedy(CountTo(), tf.constant([[7, 2], [9, 2], [5, 2], [9, 2]]), BOS, EOS)
    longest = [5, 6, 7, 8, 9, EOS]
    expected = [[5, 6, 7, EOS, 0, 0], longest, [5, EOS, 0, 0, 0, 0], longest]
    ended = np.cumsum(np.equal(outputs, EOS), axis=1) - np.equal(outputs, EOS) > 0
    mistakes = {
        "the least likely token is chosen": not np.any(outputs),
        "decoding starts after eos: the first token follows bos": np.all(outputs[:, 0] == EOS + 1),
        "the end of the first sentence ends all": outputs.shape[1] < 6,
        "an output continues after eos: padding must follow": np.any(outputs.numpy()[ended]),
    }
    expect(outputs, expected, mistakes)


@pytest.mark.exercise("greedy")
def test_finished_sentences_leave_the_batch_and_the_others_keep_their_own_state():
    model, sizes = CountTo(), []
    step = model.decode_step

    def counting_step(token, state):
        sizes.append(int(tf.size(token)))
        return step(token, state)

    model.decode_step = counting_step
    ends = [7, 30, 5, 12, 9, 6]
    expected = [[*range(5, end + 1), EOS] for end in ends]
    source = tf.constant([[end, 5, 5, 2] for end in ends])
    assert [unpadded(row) for row in greedy(model, source, BOS, EOS)] == expected
    assert sizes[0] == 6 and sizes[-1] == 1 and sizes == sorted(sizes, reverse=True)

    def step_with_caches(token, state):
        logits, _ = counting_step(token, {"last": state["caches"][:, 0]})
        return 100 * logits, state

    sizes.clear()
    source = tf.repeat(source, 2, axis=0)
    model.init_decode = lambda source: {"last": source[:, 0], "caches": source[:, :1]}
    model.decode_step = step_with_caches
    outputs, _ = beam_search(model, source, BOS, EOS, 3)
    assert [unpadded(row) for row in outputs[:, 0]] == [x for x in expected for _ in range(2)]
    assert sizes[0] == 36 and sizes[-1] <= 6


@pytest.mark.exercise("greedy")
def test_output_limit_of_a_sentence_does_not_depend_on_its_batch():
    source = tf.constant([[99, 9, 9, 9, 2], [99, 2, 0, 0, 0], [6, 2, 0, 0, 0]])
    outputs = greedy(CountTo(), source, BOS, EOS)
    longer = {"an output has one token more than its limit": outputs.shape[1] == 2 * 5 + 21}
    expect(outputs.shape, (3, 2 * 5 + 20), longer)
    assert [len(unpadded(row)) for row in outputs] == [2 * 5 + 20, 2 * 2 + 20, 3]
    assert unpadded(outputs[1]) == list(range(5, 5 + 24))
    single = greedy(CountTo(), source[1:2, :2], BOS, EOS)
    assert unpadded(single[0]) == unpadded(outputs[1])


def test_source_is_encoded_once_and_the_graph_traced_once(tiny):
    model, calls = tiny(num_layers=1), []
    encode = model.encode
    model.encode = lambda *inputs: calls.append(inputs) or encode(*inputs)
    decode = tf.function(lambda source: greedy(model, source, BOS, EOS), [IDS], autograph=False)
    for batch, length in [(1, 1), (3, 4), (2, 9)]:
        assert decode(np.full((batch, length), 5, np.int32)).shape[0] == batch
    assert decode.experimental_get_tracing_count() == 1
    calls.clear()
    assert greedy(model, SOURCE, BOS, EOS, LIMITS).shape[1] > 1  # eagerly
    assert len(calls) == 1


class Table:
    """A model with fixed logits for each position and row: (positions, rows, vocab_size).

    Uses the first rows, so sentences must not leave the batch one after another.
    """

    def __init__(self, logits):
        self.logits = tf.constant(logits, tf.float32)

    def init_decode(self, source):
        return {"caches": tf.zeros((tf.shape(source)[0], 1), tf.int32)}  # position

    def decode_step(self, token, state):
        position = state["caches"]
        return self.logits[position[0, 0]][: tf.shape(token)[0]], {"caches": position + 1}


@pytest.mark.exercise("beam-search")
def test_length_penalty_is_that_of_the_formula():
    mistakes = {
        "the penalty is length^α: 5 is added to the length, and the sum divided by 6": 7**0.6,
        "the 5 is missing: ((5 + length) / 6)^α": (7 / 6) ** 0.6,
        "the division by 6 is missing: ((5 + length) / 6)^α": 12**0.6,
        "scores are divided by the penalty: it must grow with the length": 2**-0.6,
    }
    expect(decoding.penalty(7, 0.6), 2**0.6, mistakes)


@pytest.mark.exercise("beam-search")
def test_extensions_have_the_highest_sums_of_log_probabilities():
    """Of two hypotheses by two tokens each: (5 + 6 + 7 + 8) words, eos included."""
    rng = np.random.default_rng(0)
    tokens, scores = np.int32([[[BOS, 7], [BOS, 8]]]), np.float32([[-0.4, -0.5]])
    logits = np.float32(rng.normal(3, 1, (2, 9)))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def best(totals, count=4):
        flat = np.ravel(totals)
        order = np.argsort(-flat)[:count]
        parent, token = np.divmod(order, 9)
        return np.concatenate([tokens[0, parent], token[:, np.newaxis]], 1), flat[order], parent

    hypotheses = decoding.Hypotheses(tokens, scores)
    extended, parent = decoding.extend_hypotheses(hypotheses, tf.constant(logits), beam=2)
    right_tokens, right_scores, right_parent = best(scores.T + log_probs)
    mistakes = {
        "the logits are not normalized: subtract the logarithm of the sum of exp": (
            best(scores.T + logits)[1]
        ),
        "the scores of the hypotheses are not added": best(log_probs)[1],
        "only `beam` extensions remain: 2 · beam are needed, as half of them may end": (
            right_scores[:2]
        ),
    }
    expect(extended.scores[0], right_scores, mistakes)
    expect(parent[0], right_parent, {"the parent is wrong: it is index // width": True})
    mixed = {"the earlier tokens are not those of the parent": True}
    expect(extended.tokens[0, :, :2], right_tokens[:, :2], mixed)
    expect(extended.tokens[0], right_tokens)


def test_beam_search_passes_the_test_of_tensor2tensor():
    """Two sentences: the length penalty reverses the order of the outputs in the first only."""
    table = [
        [[0.1, 0.1, 0.8]] * 4,
        [[0.4, 0.5, 0.1], [0.2, 0.4, 0.4], [0.3, 0.6, 0.1], [0.2, 0.4, 0.4]],
        [[0.05, 0.9, 0.05], [0.4, 0.4, 0.2]] * 2,
    ]
    model, settings = Table(np.log(table)), {"beam": 2, "length_penalty": 3.5, "n_best": 2}
    outputs, scores = beam_search(model, [[5], [5]], bos=0, eos=1, limit=[3, 3], **settings)
    assert outputs.numpy().tolist() == [[[2, 0, 1], [2, 1, 0]], [[2, 1, 0], [2, 0, 1]]]
    longer, shorter = (8 / 6) ** 3.5, (7 / 6) ** 3.5
    expected = [
        [np.log(0.8 * 0.4 * 0.9) / longer, np.log(0.8 * 0.5) / shorter],
        [np.log(0.8 * 0.6) / shorter, np.log(0.8 * 0.3 * 0.9) / longer],
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_beam_search_continues_while_a_longer_output_may_still_win():
    """The unfinished hypothesis has the lower score now, and the higher one at its end."""
    table = np.log([[1e-9, 0.45, 0.05, 0.5], [1e-9, 0.98, 0.01, 0.01], [1e-9, 0.01, 0.01, 0.98]])
    model = Table(np.repeat(table[:, np.newaxis], 2, axis=1))
    outputs, scores = beam_search(model, [[5]], BOS, EOS, 2, length_penalty=2.0, limit=[3])
    assert outputs.numpy().tolist() == [[[1, 1, EOS]]]
    np.testing.assert_allclose(scores, [[np.log(0.45 * 0.98 * 0.98) / (8 / 6) ** 2]], rtol=1e-5)


@pytest.mark.parametrize("beam", [3, 4, 6])
def test_beam_may_be_wider_than_the_vocabulary(beam):
    logits = tf.nn.log_softmax(np.random.default_rng(0).normal(size=(4, 4))).numpy()
    logits[:, PAD] = -30
    model = Table(np.repeat(logits[:, np.newaxis], beam, axis=1))
    outputs, scores = beam_search(model, [[5]], BOS, EOS, beam, 0.6, n_best=beam, limit=[4])
    log_probs = tf.nn.log_softmax(tf.constant(logits, tf.float32)).numpy()
    expected = naive_beam(lambda alive: [log_probs[len(x)] for x in alive], beam, 0.6, beam, 4)
    assert [unpadded(output) for output in outputs[0]] == [list(tokens) for _, tokens in expected]
    np.testing.assert_allclose(scores[0], [score for score, _ in expected], atol=1e-5)


def naive_beam(next_log_probs, beam, length_penalty, n_best, limit):
    """Beam search of one sentence on lists, up to the limit, without early stopping.

    next_log_probs: function of a list of hypotheses of equal length.
    """
    alive, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        log_probs = next_log_probs([tokens for _, tokens in alive])
        extended = [
            (score + log_prob, (*tokens, token))
            for (score, tokens), row in zip(alive, log_probs, strict=True)
            for token, log_prob in enumerate(row)
        ]
        extended = sorted(extended, key=lambda pair: -pair[0])[: 2 * beam]
        for score, tokens in extended[:beam]:
            if tokens[-1] == EOS or length == limit:
                finished.append((score / ((5 + length) / 6) ** length_penalty, tokens))
        alive = [pair for pair in extended if pair[1][-1] != EOS][:beam]
    return sorted(finished, key=lambda pair: -pair[0])[:n_best]


@pytest.mark.parametrize(
    "beam, length_penalty, n_best",
    [
        pytest.param(1, 0.0, 1, marks=pytest.mark.slow),
        (3, 0.6, 3),
        pytest.param(6, 1.5, 2, marks=pytest.mark.slow),
    ],
)
def test_beam_search_equals_naive_search_on_single_sentences(varied, beam, length_penalty, n_best):
    """The scores of the naive search are those of teacher forcing, with the full decoder."""
    model, log_probs_after = varied

    @tf.function(input_signature=[IDS, tf.TensorSpec([None], tf.int32)], autograph=False)
    def search(source, limit):
        return beam_search(model, source, BOS, EOS, beam, length_penalty, n_best, limit)

    lengths = set()
    for row, limit, outputs, scores in zip(SOURCE, LIMITS, *search(SOURCE, LIMITS), strict=True):
        single = row[row != PAD][tf.newaxis]

        def next_log_probs(alive, single=single):
            prefixes = np.int32([[BOS, *tokens] for tokens in alive])
            return log_probs_after(np.repeat(single, len(alive), axis=0), prefixes).numpy()

        expected = naive_beam(next_log_probs, beam, length_penalty, n_best, limit)
        assert [unpadded(output) for output in outputs] == [list(tokens) for _, tokens in expected]
        np.testing.assert_allclose(scores, [score for score, _ in expected], atol=1e-4)
        lengths |= {len(tokens) for _, tokens in expected}
    assert len(lengths) > 1 or beam == 1  # greedy outputs of an edited model may be equally long


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_beam_search_stops_when_no_other_output_can_win(length_penalty):
    model, steps = CountTo(), []
    step = model.decode_step

    def confident_step(token, state):
        steps.append(token)
        logits, state = step(token, state)
        return 50.0 * logits, state  # probabilities near 1

    model.decode_step = confident_step
    outputs, _ = beam_search(model, [[7, 2, 2, 2]], BOS, EOS, 4, length_penalty)  # limit 28
    assert outputs.numpy().tolist() == [[[5, 6, 7, EOS]]] and len(steps) == 4


@pytest.mark.parametrize("length, k", [(5, 5), (63, 1), (320, 5), (321, 5), (8089, 8), (1000, 40)])
def test_blockwise_top_k_equals_top_k(length, k):
    rng = np.random.default_rng(length)
    shuffled = tf.constant(rng.normal(size=(7, length)), tf.float32)
    for x in (shuffled, tf.sort(shuffled)):  # sorted: the highest are in the last block
        values, index = tf.math.top_k(x, k)
        np.testing.assert_array_equal(blockwise_top_k(x, k)[0], values)
        np.testing.assert_array_equal(blockwise_top_k(x, k)[1], index)


def kept(logits, **settings):
    """Number the tokens that `filter_logits` keeps in the first row."""
    return np.flatnonzero(filter_logits(logits, **settings)[0] > -np.inf).tolist()


@pytest.mark.exercise("top-p")
def test_filter_logits_keeps_the_most_likely_tokens():
    logits = np.log(np.float32([[0.5, 0.1, 0.3, 0.06, 0.04], [0.1, 0.2, 0.3, 0.1, 0.3]]))
    np.testing.assert_array_equal(filter_logits(logits), logits)
    product = {"the logits are multiplied by the temperature: divide them": 0.5 * logits}
    expect(filter_logits(logits, temperature=0.5), logits / 0.5, product)
    mistakes = {
        "filtered logits must be −∞": np.all(np.isfinite(filter_logits(logits, top_k=1))),
        "nothing is filtered: add the probabilities, not the logits, the highest first": range(5),
        "the token with which the sum reaches p is dropped: it is the last one kept": [0],
    }
    expect(kept(logits, top_p=0.79), [0, 2], mistakes)
    assert kept(logits, top_p=0.81) == [0, 1, 2]
    expect(kept(logits, top_k=2), [0, 2], {"top_k keeps one token too many": [0, 1, 2]})
    assert kept(logits, top_p=0.001) == [0]
    assert kept(logits[1:], top_p=0.001) == [2, 4]  # a tie
    assert kept(logits[1:], top_k=2) == [2, 4]
    # Top-p is applied to the tempered distribution of the top k.
    assert kept(logits, top_p=0.7, temperature=0.5) == [0]  # 0.5² / Σ p² = 0.704
    assert kept(logits, top_p=0.7, temperature=2.0) == [0, 1, 2]
    assert kept(logits, top_p=0.62, top_k=2) == [0]  # 0.5 / 0.8 = 0.625


def test_samples_follow_the_softmax_and_depend_on_the_seed():
    rows, probabilities = 5_000, np.array([0.5, 0.25, 0.15, 0.1])
    model = Table(np.log(np.tile(probabilities, (20, rows, 1))))

    def draw(seed, **settings):
        return sample(model, np.zeros((rows, 1), np.int32), BOS, 3, [seed, 0], **settings).numpy()

    first = draw(0)
    deviation = np.sqrt(probabilities * (1 - probabilities) / rows)
    share = np.bincount(first[:, 0], minlength=4) / rows
    assert (abs(share - probabilities) < 5 * deviation).all()
    unfinished = first[:, 0] != 3
    share = np.bincount(first[unfinished, 1], minlength=4) / unfinished.sum()
    assert (abs(share - probabilities) < 6 * deviation).all()
    # Draws at two positions are independent.
    assert abs(np.corrcoef(first[unfinished, 0], first[unfinished, 1])[0, 1]) < 0.07
    np.testing.assert_array_equal(first, draw(0))
    assert (draw(1)[:, 0] != first[:, 0]).mean() > 0.5
    sharper = np.bincount(draw(0, temperature=0.5)[:, 0], minlength=4) / rows
    expected = probabilities**2 / (probabilities**2).sum()
    assert (abs(sharper - expected) < 0.035).all()
    assert set(draw(0, top_k=2)[:, 0]) == {0, 1}
    assert set(draw(0, top_p=0.8)[:, 0]) == {0, 1, 2}
    assert set(draw(0, top_p=0.8, temperature=0.5)[:, 0]) == {0, 1}
