"""A training run: its counters, progress, metrics and checkpoints, and how it stops and resumes.

A run directory runs/NAME/ contains:

- config.json: the settings
- provenance.json: commit, command, versions and host
- source/, source.diff: the project's source as it ran, and its diff against the commit
- corpus.json: languages; the number of pairs and the hash of each split
- tokenizer.model, or tokenizer.source.model and tokenizer.target.model; labels.txt
- metrics.jsonl: one line for each logged step and each validation
- checkpoints/: those of the latest epochs; unfinished/, within an epoch; and best/
- train/, validation/: TensorBoard's events; in validation/ also the embeddings for its projector
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from config import MAY_CHANGE_ON_RESUME, Config
from data.arrays import Pairs, Text
from data.batches import plan_batches
from data.pipeline import Dataset
from model.layers import named_variables
from model.optimizer import Adam
from same_code import changed_model, fingerprint
from training import description, distribution, machine
from training.checkpoints import Checkpoints, readable_checkpoints, restore_model
from training.logs import Logs
from training.records import Diverged, checkpoint_folder
from utils import amount, lock, print_line, progress_bar, quote, warn

LOG_EVERY = 50  # steps
SAVE_EVERY = 180  # seconds, within an epoch
LATEST = ("learning_rate", "grad_norm")  # logged as they are; other metrics are averaged


def with_total_steps(config: Config, train: Pairs | Text) -> Config:
    """Return the config with `total_steps` set, by default to the updates of --epochs.

    Epochs differ by a few batches; the first one counts for all. With --max-steps, it is at most
    that. config.json records the number, and a resumed run keeps it, even with more --epochs, so
    that resuming does not change the learning rate.
    """
    if config.total_steps:
        return config
    batches = plan_batches(train, config.batch_tokens, config.batch_sentences, config.seed, epoch=0)
    steps = min(len(batches) * config.epochs, config.max_steps or sys.maxsize)
    return dataclasses.replace(config, total_steps=max(1, steps))


class Run:
    """The state of a training run and its directory. A context manager, for one process at a time.

    The counters are plain attributes. `save` copies them to the checkpoint, and a resumed run
    restores them:

        step: updates made (saved as `optimizer.step`).
        epoch: epochs finished.
        position: batches of the current epoch that are done.
        best_loss: lowest validation loss so far.
        metrics_size: length of metrics.jsonl, in bytes.
        sums: of each metric that is averaged, over the steps since the last logged one.

    With several workers, only the chief writes. Raises RunError and OSError.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: tf.Module,
        optimizer: Adam,
        strategy: tf.distribute.Strategy | None = None,
    ):
        self.config, self.dataset, self.model, self.optimizer = config, dataset, model, optimizer
        self.strategy = strategy or tf.distribute.get_strategy()
        self.is_chief = distribution.is_chief(self.strategy)
        self.step = self.epoch = self.position = self.metrics_size = 0
        self.best_loss, self.saved_step = math.inf, -1
        self.reset_sums()
        self.last_step = config.max_steps or sys.maxsize
        self.stop_signal, self.stopped_by = machine.StopSignal(), 0
        self.assert_workers_agree()
        if config.init_from and not config.resume:  # first: a failure must not leave a directory
            restore_model(readable_checkpoints(checkpoint_folder(config.init_from))[0], model)
            if names := changed_model(config.init_from):
                warn(f"{names[0]} has changed since {config.init_from} was trained")
        self.path = Path(config.resume or Path(config.runs_dir, description.name_of(config)))
        if self.is_chief:
            self.path.mkdir(parents=True, exist_ok=bool(config.resume))
            self.run_lock = lock(self.path / ".lock")
        code_changed = False
        if config.resume:
            code_changed = description.check_code(self.path, config.accept_changes)
            description.check_corpus(self.path, config, dataset)
        elif self.is_chief:
            description.write(self.path, config, dataset)
        self.checkpoints = Checkpoints(self.path, model, optimizer, config.keep_checkpoints)
        if config.resume:
            self.restore()
        distribution.assert_same_across_workers(self.strategy, checkpoint=str(self.step))
        self.first_step = self.step
        if self.is_chief:
            # Only now, and if anything is left to do: the run is otherwise as it was.
            if config.resume and self.has_work():
                description.update(self.path, config, code_changed)
            self.logs = Logs(self.path, self.metrics_size)

    def __enter__(self) -> "Run":
        if self.is_chief:
            self.report_start()
        self.save()
        options = {"initial": self.step, "unit": "step", "disable": not self.is_chief}
        self.bar = progress_bar(desc="tracing the train step", **options)
        self.restart_clocks()
        return self

    def __exit__(self, *exception) -> None:
        self.bar.close()
        if self.is_chief:
            self.logs.close()
            self.run_lock.lock.release()

    # ---- The loop ----

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the remaining (source, target) batches of the current epoch."""
        config, train = self.config, self.dataset.train
        limits = (config.batch_tokens, config.batch_sentences)
        batches = plan_batches(train, *limits, config.seed, self.epoch)
        if self.position >= len(batches):  # resumed with settings that give fewer batches
            self.position = 0
        self.epoch_steps = len(batches)
        remaining = len(batches) * (config.epochs - self.epoch) - self.position
        self.bar.total = min(self.step + remaining, self.last_step)
        self.bar.set_description(f"epoch {self.epoch + 1}/{config.epochs}", refresh=False)
        self.restart_clocks()
        for indices in batches[self.position :]:
            yield train.batch(indices)

    def advance(
        self, source: np.ndarray, target: np.ndarray, metrics: dict[str, tf.Tensor]
    ) -> None:
        """Count one update on a batch, and keep what the train step returned for the next log."""
        averaged = {x: y for x, y in metrics.items() if x.partition("/")[0] not in LATEST}
        self.unsummed.append(averaged)
        self.step += 1
        self.position += 1
        self.tokens += np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
        self.bar.update()
        if self.step == self.first_step + 1:  # it took the time of tracing, too
            self.restart_clocks()

    def stop_requested(self) -> bool:
        """Return whether any worker has received a signal, or --max-steps is reached.

        All workers must call this together, so that all of them stop at the same step.
        """
        signals = distribution.all_gather(self.strategy, self.stop_signal.number)
        self.stopped_by = int(signals.max())
        return self.stopped_by > 0 or self.step >= self.last_step

    def has_work(self) -> bool:
        """Return whether epochs and steps are left."""
        return self.epoch < self.config.epochs and self.step < self.last_step

    def epoch_finished(self) -> bool:
        """Return whether all batches of the current epoch are done."""
        return self.position == self.epoch_steps

    def validation_due(self) -> bool:
        """Return whether to validate: after an epoch, at --validate-every or --max-steps."""
        every = self.config.validate_every
        due = self.epoch_finished() or self.step >= self.last_step
        return self.is_chief and (due or (every is not None and self.step % every == 0))

    def end_epoch(self) -> None:
        """Count the current epoch, unless training was stopped before its last batch."""
        if self.epoch_finished():
            self.epoch, self.position = self.epoch + 1, 0

    # ---- Metrics ----

    def restart_clocks(self) -> None:
        """Restart the time since the last validation, and that of the speed."""
        self.started = self.measured_at = time.monotonic()
        self.tokens = 0

    def log_due(self) -> bool:
        """Return whether to log the current step."""
        return self.step == 1 or self.step % LOG_EVERY == 0

    def reset_sums(self) -> None:
        """Start the means of the next log."""
        self.sums: dict[str, float] = {}
        self.unsummed: list[dict[str, tf.Tensor]] = []  # fetched late, so that a GPU need not wait

    def update_sums(self) -> None:
        """Fetch what the latest train steps returned, and add it to the sums, in their order."""
        for metrics in self.unsummed:
            for name, value in metrics.items():
                self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.unsummed = []

    def log_training(self, metrics: dict[str, tf.Tensor]) -> None:
        """Fetch and write what a train step returned. Raises Diverged and RunError.

        Learning rate and norms are those of this step, the others means since the last call.
        """
        self.check_finite()
        self.update_sums()
        values = {name: float(value) for name, value in metrics.items()}
        steps = 1 if self.step == 1 else min(self.step - 1, LOG_EVERY)
        values |= {name: total / steps for name, total in self.sums.items() if name in values}
        self.reset_sums()
        text, now = f"loss {values['loss']:.3f}", time.monotonic()
        if self.tokens:
            speed = values["tokens_per_second"] = self.tokens / (now - self.measured_at)
            text += f", {speed:,.0f} tokens/s"
        self.measured_at, self.tokens = now, 0
        self.bar.set_postfix_str(text, refresh=False)
        if self.is_chief:
            self.logs.write("train", self.step, {"epoch": self.epoch + 1, **values})

    def log_validation(self, values: dict, samples: list[tuple[str, str, str]]) -> None:
        """Write the metrics of a validation, and save the model as best if its loss is lowest.

        samples: (source, reference, output) texts. Raises Diverged and RunError.
        """
        loss, seconds = values["validation_loss"], time.monotonic() - self.started
        if not math.isfinite(loss):
            raise Diverged(f"step {self.step}: the validation loss is {loss}; {self.advice()}")
        values = {"epoch": self.epoch + 1, **values, "seconds": seconds}
        self.logs.write("validation", self.step, values)
        self.logs.write_samples(self.step, samples, self.config.task)
        quality = f"{values['validation_accuracy']:.3f}"
        if "validation_bleu" in values:
            quality += f", BLEU {values['validation_bleu']:.1f}"
        if "validation_nats_per_character" in values:
            quality += f", {values['validation_nats_per_character']:.3f} nats per character"
        if unknown := self.dataset.corpus_info["splits"]["validation"].get("unknown", [0])[-1]:
            quality += f", {unknown:.1%} of the tokens unknown"
        source, _, output = (text[:99].replace("\n", " ⏎ ") for text in samples[0])
        print_line(
            f"epoch {self.epoch + 1}, step {self.step:,}: validation loss {loss:.3f}, accuracy "
            f"{quality}; {seconds:.0f} s\n    {source} → {output}",
            sys.stdout,
        )
        if loss < self.best_loss:
            self.best_loss = loss
            self.checkpoints.save(self.step, self.counters(), best=True)

    def log_attention_and_embedding(self, attention_png: bytes | None) -> None:
        """Show a picture of attention, if there is one, and the source embedding in TensorBoard."""
        if attention_png:
            self.logs.write_image("attention", self.step, attention_png)
        table = self.model.source_embedding.table
        self.logs.write_embedding(table, self.dataset.source_tokenizer)

    # ---- The state ----

    def counters(self) -> dict[str, Any]:
        """Return the counters that a checkpoint holds. `optimizer.step` is the step."""
        self.update_sums()
        names = ("epoch", "position", "best_loss", "metrics_size", "sums")
        return {name: getattr(self, name) for name in names}

    def restore(self) -> None:
        """Restore the latest checkpoint. Raises RunError and UserError."""
        path, counters = self.checkpoints.restore()
        for name, value in counters.items():
            setattr(self, name, value)
        self.saved_step = self.step
        if self.is_chief:
            print_line(f"resuming from {path}")

    def save_due(self) -> bool:
        """Return whether to save within an epoch. Its last step is saved after `end_epoch`."""
        last = self.epoch_finished() or self.step >= self.last_step
        return time.monotonic() - self.saved_at > SAVE_EVERY and not last

    def save(self) -> None:
        """Save the state, unless this step was saved already. Raises Diverged and RunError."""
        self.check_finite()
        for name, variable in named_variables(self.model).items():
            if not np.isfinite(variable).all():
                raise Diverged(f"step {self.step}: {name} is not finite; {self.advice()}")
        if self.step != self.saved_step:
            if self.is_chief:
                self.metrics_size = self.logs.file.tell()
                self.checkpoints.save(self.step, self.counters())
            self.saved_step = self.step
        self.saved_at = time.monotonic()

    def check_finite(self) -> None:
        """Raise Diverged if the loss or gradient of any step so far was not finite."""
        if step := int(self.optimizer.first_nonfinite_step.numpy()):
            raise Diverged(f"step {step}: loss or gradient is not finite; {self.advice()}")

    def advice(self) -> str:
        """Say what to do when training has diverged."""
        return (
            f"the last good checkpoint of {self.path} is that of step {self.saved_step}; start a "
            "new run with a smaller --learning-rate-scale or more --warmup-steps"
        )

    # ---- Reports ----

    def report_start(self) -> None:
        """Print what is trained, where, and how to watch it."""
        config = self.config
        size = sum(variable.shape.num_elements() for variable in self.model.trainable_variables)
        gpus = len(tf.config.list_physical_devices("GPU"))
        replicas = self.strategy.num_replicas_in_sync
        device = amount(replicas, "GPU") if gpus else amount(len(machine.cores()), "CPU core")
        if config.init_from and not config.resume:
            print_line(f"starting from the weights of {config.init_from}", sys.stdout)
        print_line(
            f"{config.corpus}: {' → '.join(self.dataset.corpus_info['languages'])}; "
            f"{self.dataset.describe_splits()}\n"
            f"{config.model}: {size:,} parameters; {config.precision} on {device}\n"
            f"run directory {self.path}; to watch: tensorboard --logdir {quote(self.path.parent)}",
            sys.stdout,
        )
        if 2 * config.warmup_steps > config.total_steps and not (config.resume or config.max_steps):
            warn(
                f"the learning rate rises for {config.warmup_steps:,} of {config.total_steps:,} "
                'steps: see "My corpus is small" in docs/faq.md'
            )

    def report_end(self) -> None:
        """Print how to continue. After a signal, exit with its status: 128 plus its number."""
        stopped = self.stopped_by and self.has_work()
        command = f"python train.py --resume {quote(self.path)}"
        done = f"{amount(self.epoch, 'epoch')}, {amount(self.step, 'step')}"
        more = "--max-steps" if self.epoch < self.config.epochs else "--epochs"
        split = "" if "test" in self.dataset.corpus_info["splits"] else " --split validation"
        message = (
            f"finished {done}; score the run with\n"
            f"    python evaluate.py {quote(self.path)}{split}\n"
            f"or continue training with\n    {command} {more} N"
        )
        if stopped:
            message = f"stopped after {done}; resume with\n    {command}"
        if self.is_chief:
            print_line(message, sys.stdout)
        if stopped:
            raise SystemExit(128 + self.stopped_by)

    def assert_workers_agree(self) -> None:
        """Raise RunError if the workers have different flags, data or code."""
        if self.strategy.cluster_resolver is None:  # a single worker
            return
        own = {"name", *MAY_CHANGE_ON_RESUME} - {"epochs", "max_steps"}
        flags = {name: value for name, value in vars(self.config).items() if name not in own}
        tokenizers = (self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        distribution.assert_same_across_workers(
            self.strategy,
            flags=repr([flags, bool(self.config.resume)]),
            corpus=json.dumps([self.dataset.corpus_info, [t.model.hex() for t in tokenizers]]),
            code=fingerprint(),
        )
