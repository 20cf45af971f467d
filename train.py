"""Train a Transformer. Watch it with `tensorboard --logdir runs`, score it with evaluate.py."""

import sys
import time

from config import fail, from_flags

if __name__ == "__main__":  # the flags first: --help and a mistake are answered in a blink
    CONFIG = from_flags(__doc__)

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from data import encoded
from data.batches import plan
from data.corpora import CorpusError
from evaluation.inference import IDS, Inference
from evaluation.scores import bleu
from model.loss import cross_entropy, teacher_forcing
from model.optimizer import Adam, learning_rate
from model.transformer import Transformer
from run_folder import RunError, RunFolder, Stop

LOG_EVERY = 50  # steps
SAVE_EVERY = 180  # seconds, in a long epoch


def train(config):
    """One run, from the corpus to the last checkpoint. Raises CorpusError and RunError."""
    # Every draw is made from a seed; this has every sum added up in the same order, too.
    tf.config.experimental.enable_op_determinism()
    bfloat16 = config.precision == "bfloat16"
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": bfloat16})

    data = encoded.prepare(config)
    run = RunFolder(config, data)
    tokenizers = (data.source_tokenizer, data.target_tokenizer)
    model = Transformer(config, *(tokenizer.vocab_size for tokenizer in tokenizers))
    optimizer = Adam(model.trainable_variables)
    epoch = tf.Variable(0, dtype=tf.int64)  # epochs finished
    position = tf.Variable(0, dtype=tf.int64)  # batches done of the epoch that has begun
    best_loss = tf.Variable(np.inf, dtype=tf.float32)
    run.keep(model=model, optimizer=optimizer, epoch=epoch, position=position, best_loss=best_loss)
    inference = Inference(model, *tokenizers, config.max_length)

    @tf.function(input_signature=[IDS, IDS])
    def train_step(source, target):
        """One update from source (batch, source_len) and target (batch, target_len), ids."""
        seed = tf.stack([tf.constant(config.seed, tf.int64), optimizer.step])
        with tf.GradientTape() as tape:
            logits, labels = teacher_forcing(model, source, target, seed)
            losses = cross_entropy(logits, labels, config.label_smoothing)  # (tokens,)
            loss = tf.reduce_sum(losses) / tf.cast(tf.size(losses), tf.float32)
        gradients = tape.gradient(loss, model.trainable_variables)
        rate = learning_rate(
            optimizer.step + 1, config.d_model, config.warmup_steps, config.learning_rate_scale
        )
        optimizer.apply(gradients, rate)
        return loss, tf.linalg.global_norm(gradients), rate

    def validate(seconds):
        """Write down how the epoch went; keep the model if none was better."""
        loss, accuracy = inference.loss_and_accuracy(data.validation)
        sources, references, _ = data.validation_texts
        translations = inference.translate(sources)
        step, number = int(optimizer.step), int(epoch) + 1
        values = {
            "epoch": number,
            "validation_loss": loss,
            "validation_accuracy": accuracy,
            "validation_bleu": bleu(translations, references),
            "seconds": seconds,
        }
        shown = [int(share * (len(sources) - 1)) for share in (0, 0.5, 1)]
        samples = [(sources[i], references[i], translations[i]) for i in shown]
        run.log("validation", step, values, samples)
        print(
            f"epoch {number}, step {step:,}: validation loss {loss:.3f}, accuracy {accuracy:.3f}, "
            f"BLEU {values['validation_bleu']:.1f}; {seconds:.0f} s; {samples[0][2]}",
            flush=True,
        )
        if loss < best_loss:
            best_loss.assign(loss)
            run.save_best(step)

    stop, last_step = Stop(), config.max_steps or sys.maxsize
    run.save(int(optimizer.step))
    while epoch < config.epochs and optimizer.step < last_step and not stop:
        began = logged_at = time.monotonic()
        tokens, done = 0, int(position)
        batches = plan(
            data.train, config.batch_tokens, config.batch_sentences, config.seed, int(epoch)
        )
        progress = tqdm(
            batches[done:], f"epoch {int(epoch) + 1}", len(batches), initial=done, unit="step",
            leave=False, mininterval=0.5 if sys.stderr.isatty() else 30,
        )  # fmt: skip
        for indices in progress:
            source, target = data.train.batch(indices)
            step = int(optimizer.step) + 1
            log = step == 1 or step % LOG_EVERY == 0
            if log:  # as validation measures it: before the update, no dropout, no smoothing
                loss, accuracy = inference.mean([(source, target)])
            objective, norm, rate = (float(value) for value in train_step(source, target))
            position.assign_add(1)
            if not np.isfinite(objective + norm):
                raise SystemExit(
                    f"step {step}: the loss is {objective}, the gradient's norm {norm}. The last "
                    f"good state is {run.latest.latest_checkpoint}. Try a smaller "
                    "--learning-rate-scale or more --warmup-steps."
                )
            tokens += np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
            if log:
                speed = tokens / (time.monotonic() - logged_at)
                values = {
                    "epoch": int(epoch) + 1,
                    "loss": loss,
                    "accuracy": accuracy,
                    "learning_rate": rate,
                    "grad_norm": norm,
                    "tokens_per_second": speed,
                }
                run.log("train", step, values)
                progress.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
                logged_at, tokens = time.monotonic(), 0
            if time.monotonic() - run.saved_at > SAVE_EVERY:
                run.save(step)
            if stop or step >= last_step:
                break
        progress.close()
        run.save(int(optimizer.step))
        if not stop:
            validate(time.monotonic() - began)
            if position == len(batches):
                epoch.assign_add(1)
                position.assign(0)
    if stop:
        print(f"stopped and saved; go on with\n    python train.py --resume {run.path}")
        raise SystemExit(128 + stop.signal)
    print(
        f"the run is {run.path}; go on with\n"
        f"    tensorboard --logdir {run.path.parent}\n    python evaluate.py {run.path}"
    )


if __name__ == "__main__":
    try:
        train(CONFIG)
    except (CorpusError, RunError) as error:
        fail(error)
