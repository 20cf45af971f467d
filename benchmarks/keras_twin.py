"""The Keras twin: the same model from stock Keras layers, under `compile` and `fit`.

    python -m experiments.keras_twin --epochs 3                      # train.py's flags and batches
    python -m experiments.keras_twin --resume runs/NAME --epochs 0   # a run's weights in the twin

What the high-level API takes off your hands, and what has to be known all the same:

- Masks. Keras hangs one on what `Embedding(mask_zero=True)` gives, and layers hand it on, unseen.
  `x * 2`, `x + y` and `Add` with anything that has none, as positions, drop it without a word, and
  all attend to padding. So here each attention is given its mask.
- The average. A loss is divided by the number of all positions, padding included, whatever their
  weights; "mean_with_sample_weight" divides by the sum of the weights. The loss that is printed is
  a mean over batches, each counted by its sentences, and a metric counts a row by the mean of its
  weights: a token in a short batch for more than one in a long batch. See `weighted`.
- Padding. The weights take it out of the loss, not out of the work: logits are made everywhere.
- Smoothing. Only one-hot labels are smoothed: each batch brings positions × vocabulary of them.
- Dropout. `fit` has it on, `evaluate` off, without an argument to be seen.
- Adam. What it makes of an embedding's gradient is not Adam's step: see `Adam`.
"""

# ruff: noqa: E402
from config import fail
from data import corpora
from training.records import parse_config

if __name__ == "__main__":  # as in train.py
    CONFIG = parse_config(__doc__.splitlines()[0])
    otherwise = CONFIG.precision != "float32" or CONFIG.word_dropout
    if CONFIG.model != "transformer" or (otherwise and CONFIG.epochs):
        fail("the twin is a Transformer and learns in float32, from all words")

from functools import reduce

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from data import pipeline
from data.batches import plan
from evaluation.translator import Translator, load
from model.transformer import Transformer


def sinusoids(length, size):
    """Section 3.5 → (length, size)."""
    column = np.arange(size)
    angle = np.arange(length)[:, None] / 10000 ** (column // 2 * 2 / size)
    return np.where(column % 2, np.cos(angle), np.sin(angle))


def build(config, source_vocab_size, target_vocab_size):
    """Source and target_in, (batch, length) → logits (batch, target_len, target_vocab_size).

    The name of a layer says where its weights are in our model.
    """
    size = config.d_model

    def embed(ids, table, name):
        x = table(ids) * size**0.5
        if config.positions != "none":
            # Eos makes the longest source longer by one, bos the longest target.
            shape, learned = (config.max_length + 1, size), config.positions == "learned"
            fixed = {} if learned else {"weights": [sinusoids(*shape)], "trainable": False}
            # A functional model is made before any length is known: the places are counted.
            places = ops.cumsum(ops.ones_like(ids), axis=1) - 1
            x = x + layers.Embedding(*shape, name=name, **fixed)(places)
        return layers.Dropout(config.dropout_rate)(x)

    def norm(x, name):
        return layers.LayerNormalization(epsilon=1e-6, name=name)(x)

    def around(x, name, sublayer):
        dropout = layers.Dropout(config.dropout_rate)
        if config.norm == "post":
            return norm(x + dropout(sublayer(x)), f"{name}.norm")
        return x + dropout(sublayer(norm(x, f"{name}.norm")))

    def attention(name, mask, memory=None, causal=False):
        layer = layers.MultiHeadAttention(config.num_heads, config.key_dim, name=name)
        options = {"attention_mask": mask, "use_causal_mask": causal}
        return lambda x: layer(x, x if memory is None else memory, **options)

    def feed_forward(name):
        inner = layers.Dense(config.dff, "relu", name=f"{name}.inner")
        outer = layers.Dense(size, name=f"{name}.outer")
        return lambda x: outer(inner(x))

    source, target_in = keras.Input([None], dtype="int32"), keras.Input([None], dtype="int32")
    # True = may attend: (batch, 1, key_len).
    source_mask, target_mask = (ops.not_equal(ids, 0)[:, None, :] for ids in (source, target_in))
    target_table = layers.Embedding(target_vocab_size, size, name="decoder.embedding")
    source_table = (
        target_table
        if config.shared_vocabulary and config.tie_embeddings
        else layers.Embedding(source_vocab_size, size, name="encoder.embedding")
    )
    x = embed(source, source_table, "encoder.positions")
    for i in range(config.num_layers):
        name = f"encoder.layers.{i}"
        x = around(x, f"{name}.attention_residual", attention(f"{name}.attention", source_mask))
        x = around(x, f"{name}.feed_forward_residual", feed_forward(f"{name}.feed_forward"))
    memory = norm(x, "encoder.last_norm") if config.norm == "pre" else x
    x = embed(target_in, target_table, "decoder.positions")
    for i in range(config.num_layers):
        name = f"decoder.layers.{i}"
        itself = attention(f"{name}.self_attention", target_mask, causal=True)
        x = around(x, f"{name}.self_residual", itself)
        across = attention(f"{name}.cross_attention", source_mask, memory)
        x = around(x, f"{name}.cross_residual", across)
        x = around(x, f"{name}.feed_forward_residual", feed_forward(f"{name}.feed_forward"))
    x = norm(x, "decoder.last_norm") if config.norm == "pre" else x
    if config.tie_embeddings:
        # Of the variable itself: `ops.transpose` of it is a copy, made now, that never learns.
        logits = ops.einsum("btd,vd->btv", x, target_table.embeddings)
    else:
        logits = layers.Dense(target_vocab_size, name="output")(x)
    return keras.Model([source, target_in], logits)


PARTS = {  # of a layer, in the order of its weights, by their names in our model
    layers.Embedding: ["table"],
    layers.LayerNormalization: ["scale", "offset"],
    layers.Dense: ["kernel", "bias"],
    layers.MultiHeadAttention: [
        f"{part}.{name}"
        for part in ("query", "key", "value", "output")
        for name in ("kernel", "bias")
    ],
}  # fmt: skip


def pairs(ours, twin):
    """The one list of what is what: (our variable, its twin), the same numbers in other shapes."""

    def found(path):
        step = lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name)  # noqa: E731
        return reduce(step, path.split("."), ours)

    return [
        (found(f"{layer.name}.{part}"), theirs)
        for layer in twin.layers
        if layer.trainable_weights
        for part, theirs in zip(PARTS[type(layer)], layer.weights, strict=True)
    ]


def to_keras(ours, twin):
    """Give the twin our model's weights."""
    for mine, theirs in pairs(ours, twin):
        theirs.assign(tf.reshape(mine, theirs.shape))


def from_keras(ours, twin):
    """Give our model the twin's weights."""
    for mine, theirs in pairs(ours, twin):
        mine.assign(tf.reshape(theirs.value, mine.shape))


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Section 5.3, eq. 3."""

    def __init__(self, config):
        self.scale = config.learning_rate_scale * config.d_model**-0.5
        self.warmup_steps = config.warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts from 0
        return self.scale * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)


class Adam(keras.optimizers.Adam):
    """Keras' Adam, made right for embeddings. Where they are not tied their gradient comes as rows,
    one for each place where a token stands, and of three, Keras 3.15 takes g₁² + g₂² + g₃² for
    (g₁ + g₂ + g₃)².
    """

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(tf.convert_to_tensor(gradient), variable, learning_rate)


def compile_as_ours(twin, config):
    """train.py's objective and optimizer; as metrics nats a token, not smoothed, and accuracy."""
    smoothed = {"label_smoothing": config.label_smoothing, "reduction": "mean_with_sample_weight"}
    nats = keras.metrics.CategoricalCrossentropy("nats", from_logits=True)
    twin.compile(
        Adam(WarmUp(config), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        keras.losses.CategoricalCrossentropy(from_logits=True, **smoothed),
        weighted_metrics=[nats, "accuracy"],
        jit_compile=False,  # "auto" compiles for each shape anew
    )


def dataset(pairs, batches, vocab_size):
    """Batches for `fit`: (source, target_in), one-hot target_out, weights. Padding weighs nothing.

    batches: index arrays into the Pairs.
    """

    def padded():
        for source, target in map(pairs.batch, batches):
            yield (source, target[:, :-1]), target[:, 1:]

    def weighted(inputs, labels):
        # A token weighs the batch's length, for a metric takes the mean over it of a row's weights.
        weights = tf.where(labels != 0, tf.cast(tf.shape(labels)[1], tf.float32), 0.0)
        return inputs, tf.one_hot(labels, vocab_size), weights

    ids = tf.TensorSpec([None, None], tf.int32)
    made = tf.data.Dataset.from_generator(padded, output_signature=((ids, ids), ids)).map(weighted)
    return made.apply(tf.data.experimental.assert_cardinality(len(batches))).prefetch(1)


def main(config):
    """Train the twin from where train.py begins, or from a run's weights, on train.py's batches.

    No run folder is made. Raises corpora.CorpusError, OSError and ValueError.
    """
    keras.utils.set_random_seed(config.seed)  # dropout's
    data = pipeline.load(config)
    tokenizers = (data.source_tokenizer, data.target_tokenizer)
    limits = (config.batch_tokens, config.batch_sentences)
    vocab_sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    ours = load(config.resume, config).model if config.resume else Transformer(config, *vocab_sizes)
    twin = build(config, *vocab_sizes)
    to_keras(ours, twin)
    compile_as_ours(twin, config)
    validation = dataset(data.validation, plan(data.validation, *limits), vocab_sizes[1])
    steps = 0
    for epoch in range(config.epochs):
        batches = plan(data.train, *limits, config.seed, epoch)
        batches = batches[: config.max_steps and config.max_steps - steps]
        twin.fit(
            dataset(data.train, batches, vocab_sizes[1]), validation_data=validation,
            initial_epoch=epoch, epochs=epoch + 1, shuffle=False,  # the plan has shuffled
        )  # fmt: skip
        steps += len(batches)
        if steps == config.max_steps:
            break
    theirs = twin.evaluate(validation, verbose=0, return_dict=True)["nats"]
    from_keras(ours, twin)
    mine, _ = Translator(ours, *tokenizers, config.max_length).loss_and_accuracy(data.validation)
    print(f"validation loss: {theirs:.4f} by Keras, {mine:.4f} by our model with the same weights")


if __name__ == "__main__":
    try:
        main(CONFIG)
    except (corpora.CorpusError, ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
