"""Train one run and score it, in one process: python -m experiments.worker JOB.json.

experiments.run writes JOB.json: flags of train.py, paths, and how many checkpoints to average.
"""

import hashlib
import itertools
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

from experiments.recipes import parse
from training.command_line import config_from_flags
from training.machine import import_tensorflow
from training.records import Diverged, read_json, read_json_lines
from utils import UserError, errors_in_one_line, prepare_streams, write_json

# Phenomena of `mini` that are not in the score. Whether a run learns the order of two adjectives
# around a subject is chance: it would raise the standard deviation from 0.98 to 1.23 points.
EXCLUDED = {"order"}


def score_text(generator, sample, documents: bool) -> dict:
    """Return the loss of a language model, in nats per token and in nats per character."""
    losses = generator.token_scores(generator.encode(sample.targets, documents)).losses
    nats, characters = losses.sum(dtype=float), sum(map(len, sample.targets))
    return {"loss": float(nats / len(losses)), "nats_per_character": float(nats / characters)}


def score(translator, sample) -> dict:
    """Return the scores of a sample.

    "loss" is in nats per target token, and "nats_per_character" in nats per character of the
    targets, over the pairs that fit into `max_length`; the others are in per cent.
    """
    from data import encoding
    from evaluation import metrics

    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    sample = sample.match_case(translator.target_tokenizer)
    outputs = translator.translate(sample.sources, progress=True)
    pairs, _ = encoding.encode(sample, *tokenizers, translator.max_length)
    scores = {"loss": translator.loss_and_accuracy(pairs)[0]}
    exact = metrics.exact_matches(outputs, sample.targets)
    if translator.labelled:
        return scores | {"accuracy": sum(exact) / len(exact)}
    source, target = (each.encode(x) for each, x in zip(tokenizers, sample[:2], strict=True))
    lengths = (max(len(one), len(other)) for one, other in zip(source, target, strict=True))
    fits = [length <= translator.max_length for length in lengths]
    if sum(fits) != len(pairs.target.lengths):
        raise UserError(
            f"data/encoding.py keeps {len(pairs.target.lengths)} of the {len(fits)} pairs to score "
            f"instead of the {sum(fits)} that have at most {translator.max_length} tokens: filter "
            "the training pairs only, in data/pipeline.py"
        )
    characters = sum(map(len, itertools.compress(sample.targets, fits)))
    nats = scores["loss"] * sum(pairs.target.lengths - 1)  # all tokens but bos
    scores["nats_per_character"] = float(nats / characters)
    scores["bleu"] = metrics.bleu(outputs, sample.targets)
    tags = metrics.by_tag(outputs, sample.targets, sample.tags or ["all"] * len(outputs))
    by_tag = {tag: round(value, 3) for tag, (_, value) in tags.items()}
    counted = [value for tag, value in by_tag.items() if tag not in EXCLUDED]
    scores["exact_match"] = sum(counted) / len(counted)
    return scores | ({"by_tag": by_tag} if sample.tags else {})


def overlap(config, texts) -> int:
    """Return how many sources to score are in the training split, but for case and punctuation."""
    from data import corpora

    def words(source: str) -> str:
        return re.sub(r"\W", "", source).casefold()

    corpus = corpora.find(config.corpus, config.reverse, config.task)
    found = {words(source) for source in texts.sources}
    found = found.intersection(words(source) for source, *_ in corpus.read("train"))
    return sum(words(source) in found for source in texts.sources)


def train_and_score(job: dict) -> dict:
    """Train a run, or what remains of it, and score it. Raises UserError and OSError."""
    import train
    from data.splits import Split
    from evaluation import loading

    class Run(train.Run):
        """A run that does not advise to resume it with train.py: experiments.run does."""

        def report_end(self) -> None:
            if self.stopped_by and self.epoch < self.config.epochs:
                raise SystemExit(128 + self.stopped_by)
            print("\nscoring", flush=True)

    run, began = Path(job["run"]), time.monotonic()
    resumed = job["resumable"] and any(run.glob("checkpoints/ckpt-*.index"))
    flags = {"resume": str(run)}
    if not resumed:
        shutil.rmtree(run, ignore_errors=True)
        flags = parse(job["flags"]) | {"name": run.name}
    config = config_from_flags(flags | {"runs_dir": str(run.parent), "cache_dir": job["cache"]})
    try:
        train.Run = Run
        train.train(config)
    except Diverged as error:
        return {"diverged": str(error).split(";")[0]}
    for number in (signal.SIGINT, signal.SIGTERM):  # training has set handlers
        signal.signal(number, signal.SIG_DFL)
    trained, texts = time.monotonic(), Split(*json.loads(Path(job["texts"]).read_text("utf-8")))
    loaded = loading.load(run, config, average=job["average"])
    if config.task == "language modeling":
        scores = score_text(loaded, texts, read_json(run / "corpus.json")["documents"])
    else:
        scores = score(loaded, texts)
    result = {"scores": scores, "parameters": loaded.num_parameters}
    if config.task != "language modeling":
        result["in_train"] = overlap(config, texts)
    weights = b"".join(x.numpy().tobytes() for x in loaded.model.trainable_variables)
    result["weights"] = hashlib.sha256(weights).hexdigest()[:16]  # equal if all bits are
    lines = [line for line in read_json_lines(run / "metrics.jsonl") if "validation_loss" in line]
    result["curve"] = [[x["step"], round(x["validation_loss"], 4)] for x in lines]
    if not resumed:  # otherwise another process did a part of the work
        times = {"train": trained - began, "score": time.monotonic() - trained}
        result["seconds"] = {name: round(value, 1) for name, value in times.items()}
    return result


def main(path: str) -> None:
    prepare_streams(best_effort=True)  # the disk of the log can be full
    job = read_json(path)
    import_tensorflow()
    with errors_in_one_line():
        write_json(job["result"], job["about"] | train_and_score(job))
        for part in ("checkpoints", "source"):  # hundreds of megabytes
            shutil.rmtree(Path(job["run"], part), ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
