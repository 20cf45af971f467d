"""The tutorial's training loop on Keras 3, with subclassed layers, and its loop for decoding."""

import keras
import numpy as np
import tensorflow as tf

from benchmarks import sentences

layers = keras.layers
IDS = tf.TensorSpec((None, None), tf.int32)


class Attention(layers.Layer):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim, self.d_model = num_heads, d_model // num_heads, d_model
        self.wq, self.wk, self.wv = (layers.Dense(d_model) for _ in range(3))
        self.dense = layers.Dense(d_model)

    def split(self, x):
        x = tf.reshape(x, (tf.shape(x)[0], -1, self.num_heads, self.head_dim))
        return tf.transpose(x, (0, 2, 1, 3))

    def call(self, v, k, q, mask):
        q, k, v = self.split(self.wq(q)), self.split(self.wk(k)), self.split(self.wv(v))
        scores = tf.matmul(q, k, transpose_b=True) / tf.math.sqrt(float(self.head_dim))
        weights = tf.nn.softmax(scores + mask * -1e9)
        heads = tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))
        return self.dense(tf.reshape(heads, (tf.shape(q)[0], -1, self.d_model)))


class Layer(layers.Layer):
    """An encoder layer, or with `cross` a decoder layer."""

    def __init__(self, d_model, num_heads, dff, rate, cross):
        super().__init__()
        self.attentions = [Attention(d_model, num_heads) for _ in range(1 + cross)]
        self.inner, self.outer = layers.Dense(dff, activation="relu"), layers.Dense(d_model)
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2 + cross)]
        self.dropouts = [layers.Dropout(rate) for _ in range(2 + cross)]

    def call(self, x, mask, memory=None, memory_mask=None, training=False):
        y = self.attentions[0](x, x, x, mask)
        x = self.norms[0](x + self.dropouts[0](y, training=training))
        if memory is not None:
            y = self.attentions[1](memory, memory, x, memory_mask)
            x = self.norms[1](x + self.dropouts[1](y, training=training))
        y = self.outer(self.inner(x))
        return self.norms[-1](x + self.dropouts[-1](y, training=training))


class Stack(layers.Layer):
    def __init__(self, sizes, vocab_size, cross):
        super().__init__()
        num_layers, self.d_model, num_heads, dff, rate = sizes
        self.embedding = layers.Embedding(vocab_size, self.d_model)
        self.positions = tf.constant(sentences.sinusoids(1000, self.d_model), tf.float32)
        self.stack = [Layer(self.d_model, num_heads, dff, rate, cross) for _ in range(num_layers)]
        self.dropout = layers.Dropout(rate)

    def call(self, ids, mask, memory=None, memory_mask=None, training=False):
        x = self.embedding(ids) * tf.math.sqrt(float(self.d_model))
        x = self.dropout(x + self.positions[: tf.shape(x)[1]], training=training)
        for layer in self.stack:
            x = layer(x, mask, memory, memory_mask, training=training)
        return x


class Transformer(keras.Model):
    def __init__(self, sizes, vocab_size):
        super().__init__()
        self.encoder, self.decoder = Stack(sizes, vocab_size, False), Stack(sizes, vocab_size, True)
        self.final = layers.Dense(vocab_size)

    def call(self, inputs, training=False):
        source, target = inputs
        padding = tf.cast(source == 0, tf.float32)[:, None, None, :]
        length = tf.shape(target)[1]
        ahead = 1 - tf.linalg.band_part(tf.ones((length, length)), -1, 0)
        ahead = tf.maximum(tf.cast(target == 0, tf.float32)[:, None, None, :], ahead)
        memory = self.encoder(source, padding, training=training)
        return self.final(self.decoder(target, ahead, memory, padding, training=training))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup):
        self.d_model, self.warmup = float(d_model), warmup

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        scale = tf.math.rsqrt(self.d_model)
        return scale * tf.minimum(tf.math.rsqrt(step + 1), (step + 1) * self.warmup**-1.5)


def train(job: dict) -> dict:
    """Time training in random batches of 64, with the two metrics of the tutorial."""
    config = job["config"]
    sizes = [config[x] for x in ("num_layers", "d_model", "num_heads", "dff", "dropout_rate")]
    model = Transformer(sizes, job["vocab_size"])
    model((tf.zeros((1, 2), tf.int32), tf.zeros((1, 2), tf.int32)))  # Keras 3 builds at a call
    schedule = Schedule(config["d_model"], config["warmup_steps"])
    optimizer = keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    train_loss = keras.metrics.Mean()
    train_accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function(input_signature=[IDS, IDS])
    def train_step(source, target):
        target_in, target_out = target[:, :-1], target[:, 1:]
        with tf.GradientTape() as tape:
            logits = model((source, target_in), training=True)
            mask = tf.cast(target_out != 0, tf.float32)
            loss = tf.reduce_sum(cross_entropy(target_out, logits) * mask) / tf.reduce_sum(mask)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss.update_state(loss)
        train_accuracy.update_state(target_out, logits, sample_weight=mask)
        return loss

    pairs, batches = job["pairs"], job["batches"]
    padded = [pairs.batch(indices) for indices in sentences.shuffled(batches, 64)]
    return sentences.time_training(job, lambda *ids: float(train_step(*ids)), padded)


def search(job: dict) -> dict:
    """Time greedy decoding with our model, one sentence at a time and without a cache."""
    # Here, because `train` is measured without these imports.
    from data import tokenizer
    from evaluation import loading
    from model.decoding import output_limit
    from model.masks import look_ahead_mask, padding_mask
    from training.records import load_config

    ours = loading.load(job["run"], load_config(job["run"]))
    model = ours.model

    @tf.function(input_signature=[IDS, IDS])
    def logits(source, prefix):
        mask = padding_mask(source)
        memory, _ = model.encode(source, mask)
        hidden, _ = model.decode(prefix, memory, look_ahead_mask(tf.shape(prefix)[1]), mask)
        return model.logits(hidden[0])[-1]  # of one sentence

    def translate(texts):
        outputs = []
        for text in texts:
            row = ours.source_tokenizer.encode([text])[0][: ours.max_length]
            source = np.int32([[*row, tokenizer.EOS]])
            prefix, limit = [tokenizer.BOS], int(output_limit(source)[0])
            while prefix[-1] != tokenizer.EOS and len(prefix) <= limit:
                prefix.append(int(np.argmax(logits(source, np.int32([prefix])))))
            outputs.append(prefix[1:])
        return ours.target_tokenizer.decode(outputs)

    return sentences.time_decoding(job, translate)
