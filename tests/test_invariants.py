"""Properties of every model, edited or new: causality, padding, variables, training, decoding.

Run these tests after an edit: python -m pytest -m invariant. They are the same for all models of
`model.MODELS`; conftest.py has the settings of each.
"""

import typing

import numpy as np
import pytest
import tensorflow as tf
from conftest import VARIANTS, variants

import train
from config import TASKS, Config
from data.tokenizer import BOS, EOS
from model import MODELS
from model.layers import Embedding, Seed, trainable_variables
from model.masks import FIRST_WORD, look_ahead_mask, padding_mask

pytestmark = pytest.mark.invariant

VOCAB = 11  # ids from FIRST_WORD on are words or labels
LOCAL = "right only for local attention"
MARGIN = 0.9  # by which ten train steps lower the objective
TOTAL_STEPS = 20_000  # of the training that the updates of these tests belong to
TRANSLATION, CLASSIFICATION, TEXT = "translation", "classification", "language modeling"
every_model = pytest.mark.parametrize("flags", variants(TRANSLATION, CLASSIFICATION, TEXT))
with_source = pytest.mark.parametrize("flags", variants(TRANSLATION, CLASSIFICATION))
with_words = pytest.mark.parametrize("flags", variants(TRANSLATION, TEXT))

RANDOM = np.random.default_rng(0)
SOURCE = np.int32([[4, 5, 6, EOS]])
TARGET = np.int32([[BOS, 4, 5, 6, 7, 8, EOS]])
LONG = RANDOM.integers(4, VOCAB, 39)  # beyond the distances that relative positions distinguish
# Sentence pairs of unlike lengths: in one batch, each side is padded.
SHORT_PAIRS = [
    (np.int32([[4, 5, 6, EOS]]), np.int32([[BOS, 7, EOS]])),
    (np.int32([[8, EOS]]), np.int32([[BOS, 6, 5, 4, 10, EOS]])),
]
MODEL_OF = {}  # by the text of its flags


def make(tiny, flags, vocab=VOCAB, **others):
    """Return a tiny model with random variables, which are as large as trained ones."""
    return tiny(vocab, vocab, max_length=45, total_steps=TOTAL_STEPS, **flags | others)


def shared(tiny, flags):
    """Return the model of these flags, which is created once. Tests that change it use `make`."""
    key = repr(flags)
    MODEL_OF[key] = MODEL_OF.get(key) or make(tiny, flags)
    return MODEL_OF[key]


def long_text(flags):
    """Return ids. Those of a recurrent model are few, because it computes them in turn."""
    return LONG[: 12 if flags["model"] == "recurrent" else None]


def as_task(flags, source, target):
    """Return a pair as it is for a model: a source without tokens, or a target that is a label."""
    task = TASKS[flags["model"]]
    if task == TEXT:
        return source[:, :0], target
    return source, target[:, :2] if task == CLASSIFICATION else target


def batch_of(sentences, extra=0):
    """Return sentences as one array, padded to the longest one and `extra` more columns."""
    length = max(sentence.shape[1] for sentence in sentences) + extra
    return np.vstack([np.pad(s, [(0, 0), (0, length - s.shape[1])]) for s in sentences])


def batch_for(flags, source_extra=0, target_extra=0, pairs=None):
    """Return pairs as one batch, and one by one."""
    text = long_text(flags)
    pairs = pairs or [*SHORT_PAIRS, (np.int32([[*text, EOS]]), np.int32([[BOS, *text[::-1], EOS]]))]
    pairs = [as_task(flags, *pair) for pair in pairs]
    sources, targets = zip(*pairs, strict=True)
    if TASKS[flags["model"]] == TEXT:
        source_extra = 0
    return (batch_of(sources, source_extra), batch_of(targets, target_extra)), pairs


def settings_of(flags):
    """Return the Config that belongs to a model of `make`, for train.py."""
    return Config(**flags, num_layers=2, shards=1, word_dropout=0.0, total_steps=TOTAL_STEPS)


def test_every_model_is_tested():
    """A new model is tested with its defaults. `TASKS` says whether it has a source."""
    tested = {param.values[0]["model"] for param in variants(TRANSLATION, CLASSIFICATION, TEXT)}
    assert tested == MODELS.keys() == TASKS.keys() and VARIANTS.keys() <= tested
    assert tested == {*typing.get_args(typing.get_type_hints(Config)["model"])}


# Causality


@with_words
def test_logits_do_not_depend_on_later_tokens(tiny, flags):
    """Each text of a batch differs in one token from a batch of equal texts.

    Texts are compared at the same place in the batch, or sums would be rounded in other orders.
    """
    model, (source, target) = shared(tiny, flags), as_task(flags, SOURCE, TARGET)
    source, target = (np.repeat(ids, 6, axis=0) for ids in (source, target))
    before = tf.reshape(model.teacher_forced(source, target).logits, (6, 6, VOCAB))
    for j in range(1, 6):
        target[j, j] = 9
    logits = tf.reshape(model.teacher_forced(source, target).logits, (6, 6, VOCAB))
    for j in range(1, 6):
        change = np.max(np.abs(logits[j] - before[j]), axis=1)  # row i predicts token i + 1
        assert np.all(change[:j] < 1e-6), f"token {j} is seen before it is predicted"
        assert np.all(change[j:] > 1e-4), f"token {j} is not seen by all later ones: {LOCAL}"


@with_words
def test_no_gradient_reaches_later_tokens(tiny, flags):
    """All ids differ, so that a row of the embedding table is a position of the sentence."""
    model = make(tiny, flags, shared_vocabulary=False)
    source, target = as_task(flags, SOURCE, TARGET)
    target_in, length = target[:, :-1], target.shape[1] - 1
    # A random direction, because the sum of a layer norm's output is constant.
    direction = np.float32(np.random.default_rng(0).normal(size=16))
    with tf.GradientTape(persistent=True) as tape:
        memory, _ = model.encode(source, padding_mask(source))
        self_mask = look_ahead_mask(length)
        hidden, _ = model.decode(target_in, memory, self_mask, padding_mask(source))
        outputs = [tf.tensordot(hidden[0, i], direction, 1) for i in range(length)]
    for i, output in enumerate(outputs):
        rows = tf.convert_to_tensor(tape.gradient(output, model.output.embedding.table))
        seen = np.any(tf.gather(rows, target_in[0]) != 0, axis=1)
        assert not np.any(seen[i + 1 :]), f"position {i} sees a later token"
        assert np.all(seen[: i + 1]), f"position {i} does not see all earlier tokens: {LOCAL}"


@with_source
def test_every_logit_depends_on_every_source_token(tiny, flags):
    if flags.get("pooling") == "first" and flags.get("positions") == "none":
        pytest.skip("the first position reads the others as a bag of words")
    model, (source, target) = shared(tiny, flags), as_task(flags, SOURCE, TARGET)
    source, target = (np.repeat(ids, 5, axis=0) for ids in (source, target))
    for j in range(4):
        source[j + 1, j] = 9
    logits = tf.reshape(model.teacher_forced(source, target).logits, (5, -1, VOCAB))
    assert np.all(np.max(np.abs(logits[1:] - logits[:1]), axis=2) > 1e-4)


@with_words
def test_in_training_logits_do_not_depend_on_later_tokens(tiny, flags):
    """With one seed, random draws are the same: they depend on names, shapes and steps only.

    All ids differ, so that a label tells its row and position, even if not all are predicted.
    """
    rows, length = 48, 12
    model = make(tiny, flags, FIRST_WORD + rows * length)
    words = np.arange(rows * length, dtype=np.int32).reshape(rows, length) + FIRST_WORD
    target = np.insert(words, 0, BOS, axis=1)
    first = np.arange(rows) % length + 1  # the first token that changes, by row
    changed = np.where(np.arange(length + 1) < first[:, np.newaxis], target, np.roll(target, 1, 1))
    source, _ = as_task(flags, np.repeat(SOURCE, rows, axis=0), target)
    for step in range(2):
        before, after = (model.teacher_forced(source, x, Seed(0, step)) for x in (target, changed))
        row, column = np.divmod(before.labels - FIRST_WORD, length)
        change = np.max(np.abs(after.logits - before.logits), axis=1)
        seen = (change > 1e-5) & (column + 1 <= first[row])
        assert not np.any(seen), "a token is seen in training before it is predicted"


# Padding


@every_model
def test_a_batch_equals_its_sentences_one_by_one(tiny, flags):
    model, (together, pairs) = shared(tiny, flags), batch_for(flags, 2, 5)
    single = [model.teacher_forced(*pair).logits for pair in pairs]
    logits = model.teacher_forced(*together).logits
    np.testing.assert_allclose(logits, np.concatenate(single), rtol=1e-4, atol=1e-5)


@every_model
def test_the_objective_does_not_depend_on_the_vectors_of_padding(tiny, flags):
    """The padding remains, because random draws depend on shapes."""
    model = make(tiny, flags, tie_embeddings=False)
    tables = [module.table for module in model.submodules if isinstance(module, Embedding)]
    batch, _ = batch_for(flags, 2, 5, SHORT_PAIRS)
    for seed in (None, Seed(0, 1)):
        objectives = []
        for scale in (1.0, 5.0):
            for table in tables:
                table.assign(tf.concat([scale * tf.ones_like(table[:1]), table[1:]], axis=0))
            objectives.append(batch_sums(model, batch, flags, seed)["objective"])
        np.testing.assert_allclose(*objectives, rtol=1e-5)


# The objective, as train.py computes it


def batch_sums(model, batch, flags, seed=None):
    """Return the sums of `train.batch_sums` by name."""
    sums = train.batch_sums(model, *map(tf.constant, batch), seed, settings_of(flags))
    return {"objective": sums.objective, "loss": sums.loss, **sums.others}


@every_model
def test_the_objective_does_not_depend_on_padding(tiny, flags):
    """Nor do the other sums. The loss, but not every auxiliary loss, is a sum over sentences."""
    model, (padded, pairs) = shared(tiny, flags), batch_for(flags, 5, 5)
    sums = batch_sums(model, batch_for(flags)[0], flags)
    for name, value in batch_sums(model, padded, flags).items():
        np.testing.assert_allclose(value, sums[name], rtol=1e-5, err_msg=name)
    single = [batch_sums(model, pair, flags)["loss"] for pair in pairs]
    np.testing.assert_allclose(sums["loss"], np.sum(single), rtol=1e-4)


@every_model
def test_the_objective_depends_on_exactly_the_trainable_variables(tiny, flags, monkeypatch):
    """A variable outside a tf.Module is never trained; an unused one does nothing.

    A scalar among the intermediates of a layer is an auxiliary loss, which it depends on, too.
    """
    model, inputs = shared(tiny, flags), {}
    variables, forward = trainable_variables(model), model.teacher_forced

    def spy(*words):
        predictions = forward(*words)
        for number, layer in enumerate(predictions.intermediates):
            inputs.update({f"{name}, {number}": x for name, x in layer.items() if x.ndim == 0})
        return predictions

    monkeypatch.setattr(model, "teacher_forced", spy)
    with tf.GradientTape() as tape:
        batch = batch_for(flags, pairs=SHORT_PAIRS)[0]
        objective = batch_sums(model, batch, flags, Seed(0, 0))["objective"]
    outside = {id(x) for x in tape.watched_variables()} - {id(x) for x in variables.values()}
    gradients = tape.gradient(objective, variables | inputs)
    assert not outside, f"{len(outside)} variables are used, but never trained"
    assert not [name for name, gradient in gradients.items() if gradient is None]


@every_model
def test_ten_train_steps_lower_the_objective_and_change_every_variable(tiny, flags):
    """In the middle of training, when no part of a model is frozen any more.

    The first one goes downhill. The objective is compared without random draws. A variable without
    a gradient need not change, such as that of an expert that no token chooses. The train step is a
    graph: there, a Python `if` or `float`, or a NumPy function, of a tensor fails.
    """
    model = make(tiny, flags, spread=0, num_layers=1)
    batch, _ = batch_for(flags, pairs=SHORT_PAIRS)
    settings = settings_of(flags)
    before = {name: each.numpy() for name, each in trainable_variables(model).items()}
    with tf.GradientTape() as tape:
        first = batch_sums(model, batch, flags)["objective"]
    gradients = tape.gradient(first, trainable_variables(model))
    optimizer = train.make_optimizer(model, settings)
    optimizer.step.assign(TOTAL_STEPS // 2)
    step = train.make_train_step(model, optimizer, settings)
    step(*batch)
    downhill = 0.0
    for name, variable in trainable_variables(model).items():
        downhill += tf.reduce_sum((variable - before[name]) * gradients[name])
    for _ in range(9):
        step(*batch)
    last = batch_sums(model, batch, flags)["objective"]
    assert downhill < 0 and last < MARGIN * first
    optimizer.apply([tf.zeros_like(x) for x in before.values()], trainable_variables(model), 1e-3)
    for name, variable in trainable_variables(model).items():
        if np.any(tf.convert_to_tensor(gradients[name])):
            assert not np.array_equal(before[name], variable), f"{name} is never updated"
        assert np.all(np.isfinite(variable)), f"{name} is not finite after a gradient of 0"


# Decoding


def traced_step(model, state):
    """Return `decode_step` as a graph, in which all axes of the state may change their size."""
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.shape.rank, x.dtype), state)
    signature = [tf.TensorSpec([None], tf.int32), spec]
    return tf.function(model.decode_step, input_signature=signature, autograph=False)


@with_words
def test_cached_decoding_equals_full_decoding_at_every_step(tiny, flags):
    model, length = shared(tiny, flags), 1 + len(long_text(flags))
    outputs = RANDOM.integers(4, VOCAB, (3, length), np.int32)
    outputs[:, 0] = BOS
    source = batch_for(flags)[0][0]
    logits = model.teacher_forced(source, np.pad(outputs, [(0, 0), (0, 1)], constant_values=EOS))
    expected = tf.reshape(logits.logits, (3, length, VOCAB))
    state = model.init_decode(source)
    step = traced_step(model, state)
    for i in range(length):
        logits, state = step(outputs[:, i], state)
        message = f"token {i}"
        np.testing.assert_allclose(logits, expected[:, i], 1e-4, 1e-5, err_msg=message)


@pytest.mark.parametrize("flags", variants(TEXT))
def test_text_that_is_read_in_one_pass_equals_token_by_token(tiny, flags):
    """Unless the model declares that a prompt is read in both directions: then it must differ.

    In both cases, it does not depend on the other texts of its batch.
    """
    model = shared(tiny, flags)
    ids = RANDOM.integers(4, VOCAB, (3, 35), np.int32)
    states = [model.init_decode(text) for text in (ids[:, :30], ids[:1, :30], ids[:, :0])]
    step = traced_step(model, states[0])
    for i in range(30):
        _, states[2] = step(ids[:, i], states[2])
    for i in range(30, 35):
        one, states[0] = step(ids[:, i], states[0])
        single, states[1] = step(ids[:1, i], states[1])
        other, states[2] = step(ids[:, i], states[2])
        np.testing.assert_allclose(one[:1], single, rtol=1e-4, atol=1e-5)
        equal = np.allclose(one, other, rtol=1e-4, atol=1e-5)
        assert equal != model.bidirectional_prompt, f"token {i}"
