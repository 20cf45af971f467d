"""The Transformer: positions, dropout, norms and variables. See also test_invariants.py."""

import numpy as np
import pytest
import tensorflow as tf
from expect import expect

from config import Config
from model import transformer
from model.layers import LayerNorm, Seed, dropout, fold_in
from model.masks import look_ahead_mask, padding_mask

both_norms = pytest.mark.parametrize("norm", ["post", "pre"])

SOURCE = np.int32([[3, 4, 5, 2]])
TARGET = np.int32([[1, 3, 4, 5, 6, 7, 2]])


# Positions


def test_without_positions_the_source_is_a_bag_of_words(tiny):
    model, swapped = tiny(positions="none"), SOURCE[:, [1, 0, 2, 3]]
    logits = model.teacher_forced(SOURCE, TARGET).logits
    np.testing.assert_allclose(model.teacher_forced(swapped, TARGET).logits, logits, atol=1e-5)


# Dropout


@both_norms
@pytest.mark.exercise("layer")
def test_dropout_applies_to_a_sublayer_and_not_to_the_residual(norm):
    config = Config(d_model=64, num_heads=2, dropout_rate=0.5, norm=norm)
    layer, seed = transformer.Layer(config, Seed(0, -1)), Seed(0, 7)
    x, y, z = np.float32(np.random.default_rng(0).normal(size=(3, 2, 5, 64)))
    layer.attention.self_attend = lambda x, mask, seed, cache: (y, None, None)
    layer.feed_forward = lambda inputs: z

    def output(seeds=("attention", "feed_forward"), residuals=(1, 1)):
        result, post = x, (layer.attention_post_norm, layer.feed_forward_post_norm)
        for f, name, residual, norm in zip((y, z), seeds, residuals, post, strict=True):
            kept = dropout(tf.ones_like(f), 0.5, fold_in(seed, name)) if name else 1
            result = norm(residual * result + f * kept)  # kept: 0 or 1 / (1 − rate)
        return result

    mistakes = {
        "the residual of the attention is missing": output(residuals=(0, 1)),
        "the residual of the feed-forward network is missing": output(residuals=(1, 0)),
        "the feed-forward network's output has no dropout": output(("attention", None)),
        "the attention's output has no dropout": output((None, "feed_forward")),
        "both dropouts have the seed of the attention": output(("attention", "attention")),
    }
    expect(layer(x, None, seed)[0], output(), mistakes)


@pytest.mark.exercise("layer")
def test_cross_attention_reads_the_memory_with_the_mask_of_the_source():
    layer = transformer.Layer(Config(d_model=8, num_heads=2, dff=4), Seed(0, -1), cross=True)
    x, y, z = np.float32(np.random.default_rng(0).normal(size=(3, 1, 3, 8)))
    layer.attention.self_attend = lambda x, mask, seed, cache: (0.0, None, None)
    layer.feed_forward = lambda inputs: z
    self_mask, source_mask = look_ahead_mask(3), padding_mask(np.int32([[5, 6, 7, 0]]))
    calls = []
    layer.cross_attention.cross_attend = lambda *inputs: calls.append(inputs) or (y, "weights")
    output, intermediates, _ = layer(x, self_mask, None, None, "memory", source_mask)
    (_, memory, mask, _), *more = calls or [(None, None, None, None)]
    assert memory == "memory" and not more, "cross-attention must read the memory once"
    mistakes = {
        "the padding of the source is not masked in cross-attention": mask is None,
        "cross-attention has the mask of self-attention, not that of the source": mask is self_mask,
    }
    expect(mask is source_mask, True, mistakes)
    assert intermediates["cross"] == "weights"
    mistakes = {
        "the output of cross-attention is lost": x + z,
        "the residual of cross-attention is missing": y + z,
    }
    expect(output, x + y + z, mistakes)


@both_norms
@pytest.mark.exercise("stack")
def test_a_stack_is_its_embedding_and_its_layers_in_order(norm):
    config = Config(d_model=8, num_heads=2, dff=4, num_layers=3, norm=norm)
    embedding = transformer.Embedding(11, 8, Seed(0, -1))
    stack, mask = transformer.Stack(config, embedding, Seed(0, -1)), padding_mask(SOURCE)
    added, calls = np.float32(np.random.default_rng(0).normal(size=(3, 8))), []

    def make_layer(i):
        def layer(x, mask, seed, *others):
            calls.append((mask, seed))
            return x + added[i], {"self": i}, f"cache {i}"

        return layer

    stack.layers = [make_layer(i) for i in range(3)]
    hidden, intermediates, caches = stack(SOURCE, mask, Seed(0, 7))
    embedded = dropout(
        embedding(SOURCE) + stack.positions(0, 4), 0.1, fold_in(Seed(0, 7), "embedding")
    )
    final = LayerNorm(8) if norm == "pre" else transformer.no_norm
    vectors = embedding(SOURCE) + added.sum(0)
    mistakes = {
        "the final norm is missing": embedded + added.sum(0),
        "the positions are missing": final(
            dropout(embedding(SOURCE), 0.1, fold_in(Seed(0, 7), "embedding")) + added.sum(0)
        ),
        "the positions and the dropout of the embedding are missing": final(vectors),
        "the embedding has no dropout": final(vectors + stack.positions(0, 4)),
        "the first layer is applied each time": final(embedded + 3 * added[0]),
        "each layer reads the embedding, not the output of the layer before": (
            final(embedded + added[2])
        ),
    }
    expect(hidden, final(embedded + added.sum(0)), mistakes)
    assert intermediates == [{"self": i} for i in range(3)]
    assert caches == [f"cache {i}" for i in range(3)], "return the cache of each layer"
    masks, seeds = zip(*calls, strict=True)
    expect([each is mask for each in masks], [True] * 3, {"the layers do not get the mask": True})
    same = {"all layers have the same seed, so the same dropout": len(set(seeds)) == 1}
    expect(len(set(seeds)), 3, same)


@pytest.mark.exercise("decode-step")
def test_each_step_of_decoding_is_one_position_further(tiny):
    model, starts, masks = tiny(), [], []
    source = np.pad(SOURCE, [(0, 0), (0, 2)])
    state, positions = model.init_decode(source), model.decoder.positions
    model.decoder.positions = lambda *bounds: starts.append(int(bounds[0])) or positions(*bounds)
    attend = model.decoder.layers[0].cross_attention.cross_attend
    spy = lambda *inputs: masks.append(inputs[2]) or attend(*inputs)  # noqa: E731
    model.decoder.layers[0].cross_attention.cross_attend = spy
    for i in range(1, 4):
        _, state = model.decode_step(tf.constant([4]), state)
        length = {"the cache is not part of the next state": state["caches"][0][0].shape[2] == 0}
        expect(state["caches"][0][0].shape[2], i, length)
    mistakes = {
        "the position in the state does not advance": int(state["position"][0]) == 0,
        "every token is embedded at position 0: start must be the position": [0, 0, 0],
    }
    expect(starts, [0, 1, 2], mistakes)
    unmasked = {"the padding of the source is not masked in decoding": masks[0] is None}
    expect(masks[0] is not None and np.array(masks[0]).tolist(), padding_mask(source), unmasked)


def test_a_decoder_layer_needs_the_memory():
    layer = transformer.Layer(Config(d_model=8, num_heads=2, dff=4), Seed(0, -1), cross=True)
    with pytest.raises(TypeError):
        layer(tf.zeros((1, 2, 8)), None)


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_logits_depend_on_the_seed_and_without_one_there_is_no_dropout(tiny, kind):
    model, without = (tiny(model=kind, num_layers=1, dropout_rate=rate) for rate in (0.3, 0.0))

    def logits(model, *seed):
        return np.array(model.teacher_forced(SOURCE, TARGET, *seed).logits)

    step_7, step_8 = Seed(0, 7), Seed(0, 8)
    np.testing.assert_array_equal(logits(model), logits(without))
    np.testing.assert_array_equal(logits(model, step_7), logits(model, step_7))
    assert np.max(np.abs(logits(model, step_7) - logits(model))) > 0.01
    assert np.max(np.abs(logits(model, step_7) - logits(model, step_8))) > 0.01
