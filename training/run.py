"""A training run: its counters, progress, metrics and checkpoints, and how it stops and resumes.

A run directory runs/NAME/ contains:

- config.json: the settings
- provenance.json: commit, command, versions and host
- source/, source.diff: the project's source as it ran, and its diff against the commit
- corpus.json: languages; the number of pairs and the hash of each split
- tokenizer.model, or tokenizer.source.model and tokenizer.target.model; labels.txt
- metrics.jsonl: one line for each logged step and each validation
- checkpoints/: the latest ones, and best/
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
from tqdm import tqdm

from config import MAY_CHANGE_ON_RESUME, Config
from data.arrays import Pairs, Text
from data.batches import plan_batches
from data.pipeline import Dataset
from model.layers import named_variables
from model.optimizer import Adam
from same_code import fingerprint
from training import description, distribution, machine
from training.checkpoints import (
    checkpoint_folder,
    checkpoint_step,
    readable_checkpoints,
    restore_model,
)
from training.logs import Logs
from training.progress import Progress
from training.records import Diverged, RunError
from training.saving import COUNTERS, Checkpoints
from utils import amount, lock, quote, warn

LOG_EVERY = 50  # steps
SHORTEST_WARMUP = 100  # steps, that are proposed for a small corpus
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


def check_warmup(config: Config) -> None:
    """Warn if the warm-up takes more than half of `total_steps`, as on a small corpus.

    A warm-up of a fifth of the steps is proposed, within limits, and epochs of enough steps for it.
    """
    steps = config.total_steps
    warmup = min(config.warmup_steps, max(steps // 5, SHORTEST_WARMUP))
    if 2 * config.warmup_steps > steps and config.epochs:
        epochs = max(config.epochs, math.ceil(5 * warmup * config.epochs / steps))
        flags = [f"--warmup-steps {warmup}"] if warmup < config.warmup_steps else []
        flags += [f"--epochs {epochs}"] if epochs > config.epochs else []
        warn(
            f"the learning rate rises for {config.warmup_steps:,} steps, and training has only "
            f'{steps:,}: use {" ".join(flags)}, and see "My corpus is small" in docs/faq.md'
        )


def one_line(text: str, length: int = 99) -> str:
    """Return the beginning of a text, with ⏎ for a line feed."""
    return text[:length].replace("\n", " ⏎ ")


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
        self.path = self.open_directory()
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
            if config.resume:  # only now: a failed resume leaves settings and source as they are
                description.update(self.path, config, code_changed)
            self.checkpoints.open()
            self.logs = Logs(self.path)
            self.logs.truncate(self.metrics_size)

    def open_directory(self) -> Path:
        """Create the run directory, or lock that of a resumed run. Returns its path."""
        config = self.config
        path = Path(config.resume or Path(config.runs_dir, description.name_of(config)))
        if self.is_chief:
            if not config.resume:
                path = description.create_directory(path, may_rename=not config.name)
            try:
                self.run_lock = lock(path / ".lock")
            except BlockingIOError:
                raise RunError(f"{path} is being trained by another process") from None
        return path

    def __enter__(self) -> "Run":
        if self.is_chief:
            self.report_start()
        self.save()
        self.progress = Progress(self.step, disable=not self.is_chief)
        return self

    def __exit__(self, *exception) -> None:
        self.progress.close()
        if self.is_chief:
            self.logs.close()
            self.run_lock.close()

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
        total = min(self.step + remaining, self.last_step)
        self.progress.begin_epoch(f"epoch {self.epoch + 1}/{config.epochs}", total)
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
        tokens = np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
        self.progress.advance(self.step, tokens)

    def stop_requested(self) -> bool:
        """Return whether any worker has received a signal, or --max-steps is reached.

        All workers must call this together, so that all of them stop at the same step.
        """
        signals = distribution.all_gather(self.strategy, self.stop_signal.number)
        self.stopped_by = int(signals.max())
        return self.stopped_by > 0 or self.step >= self.last_step

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
        text = f"loss {values['loss']:.3f}"
        if speed := self.progress.tokens_per_second():
            values["tokens_per_second"] = speed
            text += f", {speed:,.0f} tokens/s"
        self.progress.show(text)
        if self.is_chief:
            self.logs.write("train", self.step, {"epoch": self.epoch + 1, **values})

    def log_validation(self, values: dict, samples: list[tuple[str, str, str]]) -> None:
        """Write the metrics of a validation, and save the model as best if its loss is lowest.

        samples: (source, reference, output) texts. Raises Diverged and RunError.
        """
        loss, seconds = values["validation_loss"], self.progress.seconds()
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
        tqdm.write(
            f"epoch {self.epoch + 1}, step {self.step:,}: validation loss {loss:.3f}, accuracy "
            f"{quality}; {seconds:.0f} s\n    {one_line(samples[0][0])} → {one_line(samples[0][2])}"
        )
        sys.stdout.flush()
        if loss < self.best_loss:
            self.best_loss = loss
            self.checkpoints.save_best(self.step, self.counters())

    def log_attention_and_embedding(self, attention_png: bytes | None) -> None:
        """Show a picture of attention, if there is one, and the source embedding in TensorBoard."""
        if attention_png:
            self.logs.write_image("attention", self.step, attention_png)
        table, ids = self.model.source_embedding.table, self.dataset.train.read_ids
        self.logs.write_embedding(table, self.dataset.source_tokenizer, ids)

    # ---- The state ----

    def counters(self) -> dict[str, Any]:
        """Return the counters that a checkpoint holds. `optimizer.step` is the step."""
        self.update_sums()
        return {name: getattr(self, name) for name in (*COUNTERS, "sums")}

    def restore(self) -> None:
        """Restore the latest checkpoint. Raises RunError and UserError."""
        path, counters = self.checkpoints.restore()
        for name, value in counters.items():
            setattr(self, name, value)
        self.saved_step = checkpoint_step(path)
        if self.is_chief:
            print(f"resuming from {path}", file=sys.stderr)

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
                self.metrics_size = self.logs.size()
                self.checkpoints.save(self.step, self.counters())
            self.saved_step = self.step
        self.saved_at = time.monotonic()

    def check_finite(self) -> None:
        """Raise Diverged if the loss or gradient of any step so far was not finite."""
        if step := int(self.optimizer.first_nonfinite_step.numpy()):
            raise Diverged(f"step {step}: loss or gradient is not finite; {self.advice()}")

    def advice(self) -> str:
        """Say what to do when training has diverged."""
        good = f"the last good checkpoint is {self.path}/checkpoints/ckpt-{self.saved_step}"
        diff = self.path / "source.diff"
        edited = diff.exists() and diff.stat().st_size > 0
        first = f"check the edit first (see {diff}), then " if edited else ""
        return (
            f"{good}; {first}start a new run with a smaller --learning-rate-scale or more "
            "--warmup-steps"
        )

    # ---- Reports ----

    def report_start(self) -> None:
        """Print what is trained, where, and how to watch it."""
        config = self.config
        size = sum(variable.shape.num_elements() for variable in self.model.trainable_variables)
        gpus = len(tf.config.list_physical_devices("GPU"))
        replicas = self.strategy.num_replicas_in_sync
        device = amount(replicas, "GPU") if gpus else amount(len(machine.cores()), "CPU core")
        initial = config.init_from and not config.resume
        start = f"starting from the weights of {config.init_from}\n" if initial else ""
        print(
            f"{config.corpus}: {' → '.join(self.dataset.corpus_info['languages'])}; "
            f"{self.dataset.describe_splits()}\n"
            f"{config.model}: {size:,} parameters; {config.precision} on {device}\n"
            f"{start}run directory {self.path}; to watch: "
            f"tensorboard --logdir {quote(self.path.parent)}",
            flush=True,
        )
        if not (config.resume or config.max_steps):
            check_warmup(config)

    def report_end(self) -> None:
        """Print how to continue. After a signal, exit with its status: 128 plus its number."""
        left = self.epoch < self.config.epochs and self.step < self.last_step
        stopped = self.stopped_by and left
        if self.is_chief and stopped:
            print(f"stopped; resume with\n    python train.py --resume {quote(self.path)}")
        elif self.is_chief:
            done = f"{amount(self.epoch, 'epoch')}, {amount(self.step, 'step')}"
            nothing_left = self.config.resume and self.step == self.first_step
            done = f"nothing was left to do after {done}" if nothing_left else f"finished {done}"
            more = "--max-steps" if self.epoch < self.config.epochs else "--epochs"
            split = "" if "test" in self.dataset.corpus_info["splits"] else " --split validation"
            print(
                f"{done}; score the run with\n"
                f"    python evaluate.py {quote(self.path)}{split}\n"
                "or continue training with\n"
                f"    python train.py --resume {quote(self.path)} {more} N"
            )
        if stopped:
            raise SystemExit(128 + self.stopped_by)

    def assert_workers_agree(self) -> None:
        """Raise RunError if the workers have different flags, data or code."""
        if self.strategy.cluster_resolver is None:  # a single worker
            return
        may_differ = set(MAY_CHANGE_ON_RESUME) - {"epochs", "max_steps"} | {"name"}
        settings = dataclasses.asdict(self.config)
        flags = {name: value for name, value in settings.items() if name not in may_differ}
        tokenizers = (self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        distribution.assert_same_across_workers(
            self.strategy,
            flags=repr([flags, bool(self.config.resume)]),
            corpus=json.dumps([self.dataset.corpus_info, [t.model.hex() for t in tokenizers]]),
            code=fingerprint(),
        )
