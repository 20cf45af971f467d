"""The whole model beside a twin made of Keras' own layers, with the same weights.

The twin's wiring, its masks and its positions are written here a second time; it takes nothing from
the model but the values of the variables.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from model.loss import cross_entropy, teacher_forcing

keras = tf.keras

SOURCE = np.int32([[3, 4, 5, 2, 0, 0], [8, 3, 9, 4, 6, 2], [7, 2, 0, 0, 0, 0]])
TARGET = np.int32([[1, 6, 5, 4, 9, 3, 2], [1, 7, 2, 0, 0, 0, 0], [1, 5, 4, 3, 2, 0, 0]])
D_MODEL, HEADS, KEY_DIM, DFF, LAYERS = 8, 2, 5, 12, 2

FLAVOURS = {
    "post_norm_tied_shared": {"norm": "post"},
    "pre_norm_tied": {"norm": "pre", "shared_vocabulary": False},
    "pre_norm_untied_learned": {
        "norm": "pre", "tie_embeddings": False, "positions": "learned", "shared_vocabulary": False,
    },
}  # fmt: skip


class Twin:
    """A functional Keras model, made of stock layers as the paper's figure 1 is drawn.

    `pairs` holds (our variable, its twin).
    """

    def __init__(self, ours, norm, shared_vocabulary=True, tie_embeddings=True, positions=None):
        self.norm, self.learned, self.pairs = norm, positions == "learned", []
        source, target = keras.Input([None], dtype="int32"), keras.Input([None], dtype="int32")
        source_places, target_places = keras.Input([None]), keras.Input([None])  # 0, 1, 2, …
        # Each (query_len, key_len), True = may attend.
        source_keys, target_keys, cross_keys = (
            keras.Input([None, None], dtype="bool") for _ in range(3)
        )

        encoder, decoder = ours.encoder, ours.decoder
        table = keras.layers.Embedding(*decoder.embedding.table.shape)
        x = self.use(table, [decoder.embedding.table], target)
        if shared_vocabulary and tie_embeddings:
            y = table(source)
        else:
            source_table = keras.layers.Embedding(*encoder.embedding.table.shape)
            y = self.use(source_table, [encoder.embedding.table], source)
        y = self.add_positions(encoder, source_places, y)
        x = self.add_positions(decoder, target_places, x)

        for layer in encoder.layers:
            y = self.around(
                y, layer.attention_residual.norm, self.attention, layer.attention,
                mask=source_keys,
            )  # fmt: skip
            y = self.around(
                y, layer.feed_forward_residual.norm, self.feed_forward, layer.feed_forward
            )
        memory = y if norm == "post" else self.layer_norm(encoder.last_norm, y)
        for layer in decoder.layers:
            x = self.around(
                x, layer.self_residual.norm, self.attention, layer.self_attention,
                mask=target_keys,
            )  # fmt: skip
            x = self.around(
                x, layer.cross_residual.norm, self.attention, layer.cross_attention,
                mask=cross_keys, memory=memory,
            )  # fmt: skip
            x = self.around(
                x, layer.feed_forward_residual.norm, self.feed_forward, layer.feed_forward
            )
        if norm == "pre":
            x = self.layer_norm(decoder.last_norm, x)
        if not tie_embeddings:
            x = self.dense(ours.output, x)
        inputs = [source, target, source_places, target_places, source_keys, target_keys]
        self.model = keras.Model([*inputs, cross_keys], x)
        self.table = table if tie_embeddings else None

    def use(self, layer, variables, *inputs, **options):
        """Call a Keras layer and give it our values."""
        output = layer(*inputs, **options)
        for mine, twin in zip(variables, layer.weights, strict=True):
            twin.assign(tf.reshape(mine, twin.shape))
            self.pairs.append((mine, twin))
        return output

    def around(self, x, norm, sublayer, *given, **named):
        """A residual connection around a sublayer."""
        if self.norm == "post":
            x = keras.layers.Add()([x, sublayer(x, *given, **named)])
            return self.layer_norm(norm, x)
        return keras.layers.Add()([x, sublayer(self.layer_norm(norm, x), *given, **named)])

    def layer_norm(self, ours, x):
        layer = keras.layers.LayerNormalization(epsilon=1e-6)
        return self.use(layer, [ours.scale, ours.offset], x)

    def dense(self, ours, x, activation=None):
        layer = keras.layers.Dense(ours.bias.shape[0], activation)
        return self.use(layer, [ours.kernel, ours.bias], x)

    def feed_forward(self, x, ours):
        return self.dense(ours.outer, self.dense(ours.inner, x, "relu"))

    def attention(self, x, ours, mask, memory=None):
        parts = [ours.query, ours.key, ours.value, ours.output]
        weights = [weight for part in parts for weight in (part.kernel, part.bias)]
        layer = keras.layers.MultiHeadAttention(HEADS, KEY_DIM)
        return self.use(layer, weights, x, x if memory is None else memory, attention_mask=mask)

    def add_positions(self, stack, places, x):
        if self.learned:
            table = keras.layers.Embedding(*stack.positions.table.shape)
            encodings = self.use(table, [stack.positions.table], places)
        else:
            table = keras.layers.Embedding(10, D_MODEL, weights=[sinusoids(10)], trainable=False)
            encodings = table(places)
        return keras.layers.Add()([keras.layers.Rescaling(math.sqrt(D_MODEL))(x), encodings])

    def __call__(self, source, target):
        """Logits and labels of the real tokens, as `teacher_forcing` gives them."""
        target_in, target_out = target[:, :-1], target[:, 1:]
        places = [np.zeros_like(ids) + np.arange(ids.shape[1]) for ids in (source, target_in)]
        logits = self.model([source, target_in, *places, *masks(source, target_in)])
        if self.table is not None:
            logits = tf.matmul(logits, self.table.embeddings.value, transpose_b=True)
        real = target_out != 0
        return tf.boolean_mask(logits, real), target_out[real]


def masks(source, target):
    """(batch, query_len, key_len), True = may attend, one entry at a time."""
    batch, source_len, target_len = len(source), source.shape[1], target.shape[1]
    source_keys = np.zeros((batch, source_len, source_len), bool)
    target_keys = np.zeros((batch, target_len, target_len), bool)
    cross_keys = np.zeros((batch, target_len, source_len), bool)
    for b in range(batch):
        for j in range(source_len):
            source_keys[b, :, j] = cross_keys[b, :, j] = source[b, j] != 0
        for i in range(target_len):
            for j in range(i + 1):
                target_keys[b, i, j] = target[b, j] != 0
    return source_keys, target_keys, cross_keys


def sinusoids(length):
    table = np.zeros((length, D_MODEL))
    for p in range(length):
        for i in range(D_MODEL // 2):
            angle = p / 10000 ** (2 * i / D_MODEL)
            table[p, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    return table


@pytest.fixture(scope="module", params=FLAVOURS.values(), ids=FLAVOURS.keys())
def twins(request, tiny):
    sizes = {"num_layers": LAYERS, "d_model": D_MODEL, "num_heads": HEADS, "key_dim": KEY_DIM,
             "dff": DFF}  # fmt: skip
    shared = request.param.get("shared_vocabulary", True)
    ours = tiny(11 if shared else 13, 11, **sizes, **request.param)
    return ours, Twin(ours, **request.param)


def difference(ours, theirs):
    return np.max(np.abs(tf.convert_to_tensor(ours) - tf.reshape(theirs, ours.shape)))


def test_the_twins_have_the_same_parameters(twins):
    ours, twin = twins
    assert {mine.ref() for mine, _ in twin.pairs} == {v.ref() for v in ours.trainable_variables}
    assert len(twin.pairs) == len(twin.model.trainable_weights)


def test_the_twins_have_the_same_logits(twins):
    ours, twin = twins
    logits, labels = teacher_forcing(ours, SOURCE, TARGET)
    keras_logits, keras_labels = twin(SOURCE, TARGET)
    np.testing.assert_array_equal(labels, keras_labels)
    assert np.std(logits) > 0.5  # there is something to compare
    largest = difference(logits, keras_logits)
    assert largest < 1e-5, f"the largest difference is {largest:.1e}"


def test_the_twins_have_the_same_loss_and_gradients(twins):
    ours, twin = twins
    mine, theirs = zip(*twin.pairs, strict=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(cross_entropy(*teacher_forcing(ours, SOURCE, TARGET), 0.1))
    gradients = tape.gradient(loss, mine)
    with tf.GradientTape() as tape:
        logits, labels = twin(SOURCE, TARGET)
        smoothed = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        keras_loss = smoothed(tf.one_hot(labels, 11), logits)
    keras_gradients = tape.gradient(keras_loss, [weight.value for weight in theirs])
    assert float(loss) == pytest.approx(float(keras_loss), abs=1e-5)
    differences = [
        difference(*map(tf.convert_to_tensor, pair))
        for pair in zip(gradients, keras_gradients, strict=True)
    ]
    assert max(differences) < 1e-4, f"the largest difference is {max(differences):.1e}"
