"""Train a model. Watch it with `tensorboard --logdir runs`, score it with evaluate.py."""

import re
from collections.abc import Callable, Iterable

from config import Config
from training.command_line import parse_config
from training.machine import import_tensorflow
from utils import UserError, fail, warn

if __name__ == "__main__":
    CONFIG = parse_config(__doc__)  # before TensorFlow loads, so that mistakes are reported at once
    import_tensorflow()

import tensorflow as tf

from data import pipeline
from evaluation.attention import attention_image
from evaluation.generator import Generator
from evaluation.loading import make_predictor
from evaluation.scores import validation_metrics
from evaluation.translator import Translator
from model import build
from model.interface import Model
from model.layers import Seed, fold_in, in_float32, step_seed, trainable_variables
from model.loss import Sums, loss_sums, real_targets
from model.masks import word_dropout
from model.optimizer import Adam, learning_rate
from training import distribution, machine
from training.distribution import replicated, sum_over_parts
from training.records import Diverged
from training.run import Run, with_total_steps

MEMORY_HINT = "raise --accumulate, or lower --batch-tokens, --max-length or the sizes of the model"


def batch_sums(
    model: Model, source: tf.Tensor, target: tf.Tensor, seed: Seed | None, config: Config
) -> Sums:
    """Return what is minimized and what is reported, for a batch or for some rows of one.

    source (rows, source_len) and target (rows, target_len): ids. An auxiliary loss is added with
    `Sums.add_loss`. What it needs from a layer is in the intermediates, the third result of
    `teacher_forced`, if the layer adds it there.
    """
    source = word_dropout(source, config.word_dropout, fold_in(seed, "word_dropout"))
    logits, labels, _ = model.teacher_forced(source, target, seed)
    return loss_sums(logits, labels, config.label_smoothing)


def dense_gradients(
    tape: tf.GradientTape, objective: tf.Tensor, variables: dict[str, tf.Variable]
) -> list[tf.Tensor]:
    """Return the gradient of each variable, or zeros and a warning if the objective has none.

    Dense, because the norm of an embedding's IndexedSlices would not add up repeated rows. Raises
    UserError if the objective also depends on other variables: nothing would train or save them.
    """
    updated = {id(x) for each in variables.values() for x in (each, *getattr(each, "values", ()))}
    for variable in tape.watched_variables():
        if id(variable) not in updated:
            raise UserError(
                f"a variable of shape {variable.shape}, {variable.name}, would not be trained: "
                "make it an attribute of a tf.Module, or give it trainable=False"
            )
    gradients = tape.gradient(objective, [*variables.values()])
    for i, (name, variable) in enumerate(variables.items()):
        if gradients[i] is None:  # such as of a layer that is created, but not called
            warn(f"the loss does not depend on {name}, which is therefore not trained")
            gradients[i] = tf.zeros_like(variable)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def norms_by_layer(gradients: list[tf.Tensor], names: Iterable[str]) -> dict[str, tf.Tensor]:
    """Return the norm of the gradient of each layer, such as "grad_norm/decoder/layers/0".

    Those outside of layers are grouped by two parts of their name: "grad_norm/output/embedding".
    """
    groups: dict[str, list[tf.Tensor]] = {}
    for name, gradient in zip(names, gradients, strict=True):
        layer = re.match(r".*?layers/[^/]+|[^/]+(?:/[^/]+)?", name)[0]
        groups.setdefault(f"grad_norm/{layer}", []).append(gradient)
    return {name: tf.linalg.global_norm(each) for name, each in groups.items()}


def make_optimizer(model: Model, config: Config) -> Adam:
    """Create the optimizer. Call this in the scope of the tf.distribute strategy."""
    return Adam(trainable_variables(model))


def make_train_step(model: Model, optimizer: Adam, config: Config) -> Callable:
    """Return a function that makes one update and returns a dict of scalars.

    The returned function takes ids: source (batch, source_len) and target (batch, target_len).
    "objective" is the loss that is minimized, with label smoothing; "loss" is the cross-entropy of
    the same logits without smoothing. Both are means over the real target tokens, in nats, with
    dropout. The others are "accuracy", "grad_norm", "learning_rate", the norm of each layer's
    gradient, and `Sums.others`.

    Call `make_train_step` in the scope of the tf.distribute strategy.
    """
    variables = trainable_variables(model)

    @replicated
    def train_step(source, target):
        # The number of real target tokens in the whole batch, the same on every replica. Each part
        # divides its objective by it, so that the parts' gradients add up to that of the batch.
        # The factor below is 1 unless the model predicts fewer tokens, such as those of a suffix.
        tokens = tf.math.count_nonzero(real_targets(target), dtype=tf.float32)

        def forward_backward(source, target, seed):
            with tf.GradientTape() as tape:
                sums = batch_sums(model, source, target, seed, config)
                objective = sums.objective / tokens
            return dense_gradients(tape, objective, variables), sums

        seed = step_seed(config.seed, optimizer.step)  # before `apply` increments the step
        gradients, sums = sum_over_parts(
            forward_backward, source, target, seed, config.shards, config.accumulate
        )
        gradients = [gradient * (tokens / sums.tokens) for gradient in gradients]
        rate = learning_rate(optimizer.step + 1, config)
        optimizer.apply(gradients, variables, rate)
        objective, norms = sums.objective / sums.tokens, norms_by_layer(gradients, variables)
        grad_norm = tf.linalg.global_norm([*norms.values()])
        optimizer.record_nonfinite(objective + grad_norm)
        return {
            "objective": objective,
            "loss": sums.loss / sums.tokens,
            "accuracy": sums.correct / sums.tokens,
            "grad_norm": grad_norm,
            "learning_rate": rate,
            **norms,
            **{name: value / sums.tokens for name, value in sums.others.items()},
        }

    return train_step


def validate(run: Run, predictor: Translator | Generator, dataset: pipeline.Dataset) -> None:
    """Score and log the model; save it as best if its validation loss is the lowest so far."""
    run.check_finite()  # before texts are decoded with weights that are not
    values, samples = validation_metrics(predictor, dataset, run.config.validation_sentences)
    run.log_validation(values, samples)
    run.log_attention_and_embedding(attention_image(predictor, dataset.validation_texts))
    run.restart_clocks()


def train(config: Config) -> None:
    """Run the whole training: corpus, model, epochs. Raises UserError and OSError."""
    tf.config.experimental.enable_op_determinism()
    config = machine.adapt_to_device(config)
    machine.set_parallelism(config.shards)
    strategy = distribution.make_strategy(config.strategy)
    dataset = pipeline.load(config)
    config = with_total_steps(config, dataset.train)
    tokenizers = dataset.source_tokenizer, dataset.target_tokenizer
    with strategy.scope():
        model = build(config, *(tokenizer.vocab_size for tokenizer in tokenizers))
        optimizer = make_optimizer(model, config)
        train_step = make_train_step(model, optimizer, config)
    predictor = make_predictor(in_float32(model), *tokenizers, config, dataset.corpus_info)

    with Run(config, dataset, model, optimizer, strategy) as run:  # restores --resume
        while run.epoch < config.epochs and not run.stop_requested():
            for source, target in run.batches():  # the rest of this epoch
                metrics = train_step(source, target)
                run.advance(source, target, metrics)
                if run.log_due():
                    run.log_training(metrics)
                if run.validation_due():
                    validate(run, predictor, dataset)
                if run.save_due():
                    run.save()
                if run.stop_requested():
                    break
            run.end_epoch()
            run.save()
    run.report_end()


if __name__ == "__main__":
    try:
        train(CONFIG)
    except (UserError, OSError) as error:
        fail(error, status=1 if isinstance(error, Diverged) else 2)
    except distribution.lost_worker_errors(CONFIG.strategy):
        fail(distribution.LOST_WORKER, status=1)
    except machine.out_of_memory_errors() as error:
        fail(machine.out_of_memory_message(error, MEMORY_HINT), status=1)
