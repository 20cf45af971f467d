"""Train a model. Watch it with `tensorboard --logdir runs`, score it with evaluate.py."""

import signal
import sys
import time
from functools import partial

from config import fail, from_flags
from data import corpora
from training import machine

MEMORY_HINT = (
    "lower --batch-tokens, then --max-length, --vocab-size or the model's sizes; the last "
    "checkpoint is as it was"
)

if __name__ == "__main__":  # the flags first: --help and a mistake are answered in a blink
    sys.stdout.reconfigure(errors="replace")  # not every terminal knows every sign
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # no traceback of what it interrupts
    CONFIG = from_flags(__doc__, corpora.check)
    machine.guard(MEMORY_HINT)

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from data import pipeline
from data.batches import plan
from evaluation.inside import attention_image
from evaluation.report import validation
from evaluation.translator import IDS, Translator, set_parallelism
from model import MODELS
from model.layers import fold_in, products_in
from model.loss import cross_entropy, teacher_forcing
from model.masks import word_dropout
from model.optimizer import Adam, learning_rate
from training import distribution
from training.run import Diverged, RunError, Stop

LOG_EVERY = 50  # steps
SAVE_EVERY = 180  # seconds, in a long epoch


def make_train_step(model, optimizer, config):
    """One update: source (batch, source_len), target (batch, target_len) → loss, gradient's norm,
    learning rate. One trace for all shapes. To be made in the scope of a tf.distribute strategy.
    """
    strategy = tf.distribute.get_strategy()  # without one: a single replica
    parts = config.shards * strategy.num_replicas_in_sync

    def replica_step(source, target):
        replica = tf.distribute.get_replica_context()
        first = int(tf.get_static_value(replica.replica_id_in_sync_group)) * config.shards
        seed = tf.stack([tf.constant(config.seed, tf.int64), optimizer.step])
        tokens = tf.math.count_nonzero(target[:, 1:], dtype=tf.float32)  # of the whole batch
        with tf.GradientTape() as tape, products_in(config.precision):
            losses = []
            for part in range(first, first + config.shards):  # a core for each: none waits
                rows, place = slice(part, None, parts), fold_in(seed, f"shard_{part}")
                words = word_dropout(source[rows], config.word_dropout, fold_in(place, "words"))
                logits, labels = teacher_forcing(model, words, target[rows], place)
                losses.append(cross_entropy(logits, labels, config.label_smoothing))
            loss = tf.reduce_sum(tf.concat(losses, axis=0)) / tokens
        # A weight that an experiment cut off stays as it is; None would stop the run.
        cut_off = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, model.trainable_variables, unconnected_gradients=cut_off)
        # An embedding's comes as rows; the norm of the rows is not the norm of their sum.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # What the replicas found in their rows, added up, is what one finds in all of them.
        loss, *gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, [loss, *gradients])
        rate = learning_rate(
            optimizer.step + 1, config.d_model, config.warmup_steps, config.learning_rate_scale
        )
        optimizer.apply(gradients, model.trainable_variables, rate)
        return tf.stack([loss, tf.linalg.global_norm(gradients), rate])

    # Without AutoGraph, what is traced is what is written; and it is traced a second sooner.
    @tf.function(input_signature=[IDS, IDS], autograph=False)
    def train_step(source, target):
        results = strategy.run(replica_step, args=(source, target))
        return tf.unstack(strategy.experimental_local_results(results)[0])

    return train_step


def train(config):
    """One run, from the corpus to the last checkpoint. Raises CorpusError, RunError and OSError."""
    # Every draw is made from a seed; this has every sum added up in the same order, too.
    tf.config.experimental.enable_op_determinism()
    set_parallelism(config.shards)
    strategy = distribution.strategy(config.strategy)
    data = pipeline.load(config)
    run = distribution.open_run(strategy, config, data)
    tokenizers = (data.source_tokenizer, data.target_tokenizer)
    with strategy.scope():
        model = MODELS[config.model](config, *(tokenizer.vocab_size for tokenizer in tokenizers))
        optimizer = Adam(model.trainable_variables)
        train_step = make_train_step(model, optimizer, config)
    epoch = tf.Variable(0, dtype=tf.int64)  # epochs finished
    position = tf.Variable(0, dtype=tf.int64)  # batches done of the epoch that has begun
    seconds = tf.Variable(0, dtype=tf.float64)  # spent on it
    best_loss = tf.Variable(np.inf, dtype=tf.float32)
    run.restore(
        model=model, optimizer=optimizer, epoch=epoch, position=position, seconds=seconds,
        best_loss=best_loss,
    )  # fmt: skip
    inference = Translator(model, *tokenizers, config.max_length)

    def validate(step):
        """Write down how the epoch went; keep the model if none was better."""
        if not run.writes:
            return
        values, samples = validation(inference, data)
        loss = values["validation_loss"]
        if not np.isfinite(loss):
            raise Diverged(f"step {step}: the validation loss is {loss}; {run.advice()}")
        values |= {"epoch": int(epoch) + 1, "seconds": float(seconds)}
        run.log("validation", step, values, samples)
        bleu = f", BLEU {values['validation_bleu']:.1f}" if "validation_bleu" in values else ""
        print(
            f"epoch {int(epoch) + 1}, step {step:,}: validation loss {loss:.3f}, accuracy "
            f"{values['validation_accuracy']:.3f}{bleu}; {float(seconds):.0f} s\n"
            f"    {samples[0][0][:99]} → {samples[0][2]}",
            flush=True,
        )
        if loss < best_loss:
            best_loss.assign(loss)
            run.save_best(step)

    stop = Stop(partial(distribution.all_gather, strategy))
    last_step = config.max_steps or sys.maxsize
    step, pairs = int(optimizer.step.numpy()), len(data.train.source.lengths)
    distribution.assert_same_across_workers(strategy, checkpoint=str(step))
    run.save(step)
    while epoch < config.epochs and step < last_step and not stop.agreed():
        began = time.monotonic() - float(seconds)
        logged_at, tokens, done = time.monotonic(), 0, int(position)
        batches = plan(
            data.train, config.batch_tokens, config.batch_sentences, config.seed, int(epoch)
        )
        progress = tqdm(
            batches[done:], f"epoch {int(epoch) + 1}", len(batches), initial=done, unit="step",
            leave=False, mininterval=0.5 if sys.stderr.isatty() else 30, disable=not run.writes,
        )  # fmt: skip
        for indices in progress:
            # Before a step, not after: the epoch's last state is saved once, when it is validated.
            if time.monotonic() - run.saved_at > SAVE_EVERY:
                run.save(step)
            source, target = data.train.batch(indices)
            step += 1
            log = run.writes and (step == 1 or step % LOG_EVERY == 0)
            if log:  # as validation is measured, on random pairs: a batch has only one length
                random = np.random.default_rng([config.seed, step])
                probe = random.choice(pairs, min(pairs, 64), replace=False)
                loss, accuracy = inference.mean(data.train, [probe])
            objective, norm, rate = (float(value) for value in train_step(source, target))
            if not np.isfinite(objective + norm):
                raise Diverged(
                    f"step {step}: the loss is {objective}, the gradient's norm {norm}; "
                    + run.advice()
                )
            position.assign_add(1)
            seconds.assign(time.monotonic() - began)
            tokens += np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
            if log:
                speed = tokens / (time.monotonic() - logged_at)
                run.log("train", step, {
                    "epoch": int(epoch) + 1, "loss": loss, "accuracy": accuracy,
                    "learning_rate": rate, "grad_norm": norm, "tokens_per_second": speed,
                })  # fmt: skip
                progress.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
                logged_at, tokens = time.monotonic(), 0
            if stop.agreed() or step >= last_step:
                break
        progress.close()
        if position >= len(batches) or step >= last_step or not stop.agreed():
            validate(step)
        if position >= len(batches):
            epoch.assign_add(1)
            position.assign(0)
            seconds.assign(0)
        run.save(step)
        if not stop.agreed():
            picture = lambda: attention_image(inference, data.validation_texts)  # noqa: E731
            run.show(step, picture, model.source_embedding.table, tokenizers[0])

    if stop.agreed() and epoch < config.epochs:
        if run.writes:
            print(f"stopped and saved; go on with\n    python train.py --resume {run.path}")
        raise SystemExit(128 + stop.signal)
    if run.writes:
        print(
            f"{int(epoch)} epochs and {step:,} steps are done; the run is {run.path}; go on with\n"
            f"    tensorboard --logdir {run.path.parent}\n    python evaluate.py {run.path}"
        )


if __name__ == "__main__":
    try:
        machine.limit_memory()
        train(CONFIG)
    except (corpora.CorpusError, RunError, OSError) as error:
        fail(error, 1 if isinstance(error, Diverged) else 2)
    except distribution.lost_worker_errors(CONFIG.strategy) as error:
        fail(distribution.advice(error), 1)
    except machine.out_of_memory_errors() as error:
        fail(machine.advice(error, MEMORY_HINT), 1)
