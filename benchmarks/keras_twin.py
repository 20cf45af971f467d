"""Train the same Transformer with stock Keras layers, `compile` and `fit`.

    python -m benchmarks.keras_twin --epochs 3                      # data and model as in train.py
    python -m benchmarks.keras_twin --resume runs/NAME --epochs 0   # weights of a run in the twin

Where the high-level API takes care:

- Masks. `Embedding(mask_zero=True)` attaches a mask to its output, and layers pass it on. `x * 2`,
  `x + y`, and `Add` with an input without a mask, such as positions, drop it silently; then padding
  is attended to. Here, each attention layer gets an explicit mask.
- Averages. A loss is divided by the number of all positions, padding included, whatever their
  weights; "mean_with_sample_weight" divides by the sum of the weights. The printed loss is a mean
  over batches weighted by their sentences. A metric weights each row by the mean of its weights, so
  a token in a short batch counts more than one in a long batch: see `dataset`.
- Padding. Weights remove it from the loss, not from the work: it has logits, too.
- Label smoothing needs one-hot labels: positions × vocabulary per batch.
- Dropout is active in `fit` and not in `evaluate`, without a visible argument.
- Adam squares the gradient of an embedding row by row: see `Adam`.
"""

from training.command_line import parse_config
from training.machine import import_tensorflow
from utils import errors_in_one_line, fail

if __name__ == "__main__":
    CONFIG = parse_config(__doc__.splitlines()[0])  # before TensorFlow loads, as in train.py
    if CONFIG.model != "transformer":
        fail(f"--model {CONFIG.model}: the Keras twin needs --model transformer")
    if CONFIG.init_from:
        fail("the Keras twin takes the weights of a run by --resume, not by --init-from")
    if CONFIG.epochs and (CONFIG.precision != "float32" or CONFIG.word_dropout):
        fail("the Keras twin trains in float32 without word dropout: use --epochs 0")
    import_tensorflow()

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from benchmarks.sentences import sinusoids
from data import pipeline
from data.arrays import Pairs
from data.batches import plan_batches
from evaluation import loading
from evaluation.translator import Translator
from model.transformer import Transformer


def embed(ids: keras.KerasTensor, table: layers.Embedding, config, name: str):
    """ids (batch, length) → embeddings with positions, (batch, length, d_model)."""
    x = table(ids) * config.d_model**0.5
    if config.positions != "none":
        shape = config.max_length + 1, config.d_model  # one more: eos, or bos
        learned = config.positions == "learned"
        fixed = {} if learned else {"weights": [sinusoids(*shape)], "trainable": False}
        # Count positions, because a functional model is built before any length is known.
        positions = ops.cumsum(ops.ones_like(ids), axis=1) - 1
        x = x + layers.Embedding(*shape, name=f"{name}.positions", **fixed)(positions)
    return layers.Dropout(config.dropout_rate)(x)


def norm(x: keras.KerasTensor, name: str):
    return layers.LayerNormalization(epsilon=1e-6, name=name)(x)


def residual(x: keras.KerasTensor, name: str, sublayer: Callable, config):
    """Apply a sublayer with dropout, residual connection and layer norm."""
    dropout = layers.Dropout(config.dropout_rate)
    if config.norm == "post":
        return norm(x + dropout(sublayer(x)), f"{name}_post_norm")
    return x + dropout(sublayer(norm(x, f"{name}_pre_norm")))


def attention(name: str, config, mask, memory=None, causal: bool = False) -> Callable:
    """Return self-attention, or attention to the memory, as a function of x."""
    rate = config.attention_dropout_rate
    layer = layers.MultiHeadAttention(config.num_heads, config.head_dim, dropout=rate, name=name)
    options = {"attention_mask": mask, "use_causal_mask": causal}
    return lambda x: layer(x, x if memory is None else memory, **options)


def feed_forward(name: str, config) -> Callable:
    inner = layers.Dense(config.dff, "relu", name=f"{name}.inner")
    outer = layers.Dense(config.d_model, name=f"{name}.outer")
    return lambda x: outer(inner(x))


def stack(ids, table: layers.Embedding, config, name: str, memory=None, memory_mask=None):
    """ids (batch, length) → (batch, length, d_model), by an encoder or a decoder of this name.

    memory, memory_mask: of the encoder, for a decoder with cross-attention.
    """
    x = embed(ids, table, config, name)
    mask = ops.not_equal(ids, 0)[:, None, :]  # True = may attend: (batch, 1, key_len)
    for i in range(config.num_layers):
        layer = f"{name}.layers.{i}"
        own = attention(f"{layer}.attention", config, mask, causal=name == "decoder")
        x = residual(x, f"{layer}.attention", own, config)
        if memory is not None:
            cross = attention(f"{layer}.cross_attention", config, memory_mask, memory)
            x = residual(x, f"{layer}.cross", cross, config)
        feed = feed_forward(f"{layer}.feed_forward", config)
        x = residual(x, f"{layer}.feed_forward", feed, config)
    return norm(x, f"{name}.final_norm") if config.norm == "pre" else x


def build(config, source_vocab_size: int, target_vocab_size: int) -> keras.Model:
    """Build the twin: source and target_in, (batch, length) → logits (batch, length, vocab_size).

    Each layer is named after the attribute of our model that holds its weights. The twin of a
    language model does not read the source.
    """
    source, target_in = keras.Input([None], dtype="int32"), keras.Input([None], dtype="int32")
    target_table = layers.Embedding(target_vocab_size, config.d_model, name="decoder.embedding")
    memory = memory_mask = None
    if config.model == "transformer":
        source_table = target_table
        if not (config.shared_vocabulary and config.tie_embeddings):
            source_table = layers.Embedding(
                source_vocab_size, config.d_model, name="encoder.embedding"
            )
        memory = stack(source, source_table, config, "encoder")
        memory_mask = ops.not_equal(source, 0)[:, None, :]
    x = stack(target_in, target_table, config, "decoder", memory, memory_mask)
    if config.tie_embeddings:
        # The variable itself: `ops.transpose` would copy it now, and the copy would not train.
        logits = ops.einsum("btd,vd->btv", x, target_table.embeddings)
    else:
        logits = layers.Dense(target_vocab_size, name="output")(x)
    return keras.Model([source, target_in], logits)


WEIGHTS = {  # attributes of our layers, in the order of Keras' `layer.weights`
    layers.Embedding: ["table"],
    layers.LayerNormalization: ["scale", "offset"],
    layers.Dense: ["kernel", "bias"],
    layers.MultiHeadAttention: [
        f"{part}.{name}"
        for part in ("query", "key", "value", "output")
        for name in ("kernel", "bias")
    ],
}


def attribute(module: object, path: str) -> object:
    """Return a nested attribute or list item, such as "encoder.layers.0.attention"."""
    for name in path.split("."):
        module = module[int(name)] if name.isdigit() else getattr(module, name)
    return module


def matched_variables(
    ours: Transformer, twin: keras.Model
) -> list[tuple[tf.Variable, keras.Variable]]:
    """Return each of our variables with its twin, which may have another shape."""
    return [
        (attribute(ours, f"{layer.name}.{name}"), theirs)
        for layer in twin.layers
        if layer.trainable_weights
        for name, theirs in zip(WEIGHTS[type(layer)], layer.weights, strict=True)
    ]


def to_keras(ours: Transformer, twin: keras.Model) -> None:
    """Copy our weights to the twin."""
    for mine, theirs in matched_variables(ours, twin):
        theirs.assign(tf.reshape(mine, theirs.shape))


def from_keras(ours: Transformer, twin: keras.Model) -> None:
    """Copy the weights of the twin to our model."""
    for mine, theirs in matched_variables(ours, twin):
        mine.assign(tf.reshape(theirs.value, mine.shape))


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of section 5.3, eq. 3."""

    def __init__(self, config):
        self.scale = config.learning_rate_scale * config.d_model**-0.5
        self.warmup_steps = config.warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts from 0
        return self.scale * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)


class Adam(keras.optimizers.Adam):
    """Keras' Adam with dense gradients.

    The gradient of an embedding that is not tied has a row for each occurrence of a token. Of three
    occurrences, Keras 3.15 takes g₁² + g₂² + g₃² instead of (g₁ + g₂ + g₃)².
    """

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(tf.convert_to_tensor(gradient), variable, learning_rate)


def compile_twin(twin: keras.Model, config, measure_loss: bool = True) -> None:
    """Compile with the objective and optimizer of train.py.

    Metrics are the accuracy and, with `measure_loss`, "nats": the loss per token without smoothing.
    """
    options = {"from_logits": True, "reduction": "mean_with_sample_weight"}
    if config.label_smoothing:
        options["label_smoothing"] = config.label_smoothing
        loss = keras.losses.CategoricalCrossentropy(**options)
        nats = keras.metrics.CategoricalCrossentropy("nats", from_logits=True)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(**options)
        nats = keras.metrics.SparseCategoricalCrossentropy("nats", from_logits=True)
    twin.compile(
        Adam(WarmUp(config), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss,
        weighted_metrics=[nats, "accuracy"] if measure_loss else ["accuracy"],
        jit_compile=False,  # "auto" would compile anew for each shape
    )


def dataset(
    pairs: Pairs, batches: Sequence[np.ndarray], vocab_size: int, config
) -> tf.data.Dataset:
    """Return batches for `fit`: (source, target_in), target_out and weights, 0 for padding.

    target_out is one-hot with label smoothing. batches: index arrays into the pairs.
    """

    def padded():
        for source, target in map(pairs.batch, batches):
            yield (source, target[:, :-1]), target[:, 1:]

    def weighted(inputs, labels):
        # Proportional to the length, because a metric takes the mean of the weights of a row.
        weights = tf.where(labels != 0, tf.cast(tf.shape(labels)[1], tf.float32), 0.0)
        labels = tf.one_hot(labels, vocab_size) if config.label_smoothing else labels
        return inputs, labels, weights

    ids = tf.TensorSpec([None, None], tf.int32)
    data = tf.data.Dataset.from_generator(padded, output_signature=((ids, ids), ids)).map(weighted)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches))).prefetch(1)


def main(config) -> None:
    """Train the twin from the initial weights of train.py, or from those of a run.

    The batches are those of train.py. No run directory is created. Raises UserError and OSError.
    """
    keras.utils.set_random_seed(config.seed)  # of dropout
    data = pipeline.load(config)
    tokenizers = (data.source_tokenizer, data.target_tokenizer)
    limits = (config.batch_tokens, config.batch_sentences)
    vocab_sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    if config.resume:
        ours = loading.load(config.resume, config, accept_changes=config.accept_changes).model
    else:
        ours = Transformer(config, *vocab_sizes)
    twin = build(config, *vocab_sizes)
    to_keras(ours, twin)
    compile_twin(twin, config)
    batches = plan_batches(data.validation, *limits)
    validation = dataset(data.validation, batches, vocab_sizes[1], config)
    steps = 0
    for epoch in range(config.epochs):
        batches = plan_batches(data.train, *limits, config.seed, epoch)
        batches = batches[: config.max_steps and config.max_steps - steps]
        train = dataset(data.train, batches, vocab_sizes[1], config)
        epochs = {"initial_epoch": epoch, "epochs": epoch + 1}
        twin.fit(train, validation_data=validation, shuffle=False, **epochs)
        steps += len(batches)
        if steps == config.max_steps:
            break
    theirs = twin.evaluate(validation, verbose=0, return_dict=True)["nats"]
    from_keras(ours, twin)
    scorer = Translator(ours, *tokenizers, config.max_length)
    mine, _ = scorer.loss_and_accuracy(data.validation)
    print(f"validation loss: {theirs:.4f} by Keras, {mine:.4f} by our model with the same weights")


if __name__ == "__main__":
    with errors_in_one_line():
        main(CONFIG)
