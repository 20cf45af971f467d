"""Train one run and score it, in a process of its own: python -m ablation.worker JOB.json

`Workspace.prepare_job` writes JOB.json. The job of `Workspace.probe` is to find out what this
machine computes, and to write the texts to score.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

from config import Config
from data import corpora, mini
from data.splits import Split
from training import machine
from training.command_line import config_from_flags
from training.records import Diverged, read_json
from utils import (
    add_flags,
    errors_in_one_line,
    fail,
    lock,
    make_parser,
    prepare_streams,
    write_json,
)

# Phenomena of `mini` that are not in the score. Whether a run learns the order of two adjectives
# around a subject is chance: it would raise the standard deviation from 0.98 to 1.23 points.
EXCLUDED = {"order"}


def parse(flags: list[str], unknown: bool = False) -> dict:
    """Return the settings that flags of train.py give. Exits if one is invalid.

    unknown: whether to ignore flags that do not exist.
    """
    parser = make_parser("")
    add_flags(parser, Config)
    return vars(parser.parse_known_args(flags)[0] if unknown else parser.parse_args(flags))


def load_texts(flags: list[str], sentences: int, final: bool) -> Split:
    """Return the texts to score. Raises UserError.

    sentences: the number of those with new combinations, of `mini` or of the split
    `generalization`, of which it takes at most half; 0 for the validation split. final: other
    texts, which are read once, for a change that is adopted: the test split, or sentences that are
    not among the first ones.
    """
    config = Config(**parse(flags))
    corpus = corpora.from_config(config)
    if not sentences:
        return corpus.load("test" if final else "validation")
    if config.corpus.partition(":")[0] != "mini":
        texts = corpus.load("generalization")
        step = max(2, len(texts.sources) // sentences)
        return texts.take(i for i in range(len(texts.sources)) if (i % step > 0) == final)
    pairs = mini.generate("compositional", sentences, seed=1)
    if final:
        seen = {pair.source.lower() for pair in pairs}
        pairs = mini.generate("compositional", sentences, seed=2)
        pairs = [pair for pair in pairs if pair.source.lower() not in seen]
    return Split.of(pairs)


def fingerprint() -> str:
    """Train a layer of attention for 20 updates. Returns a hash of its weights.

    Machines, and settings of TensorFlow, with equal hashes are taken to give equal scores.
    """
    import tensorflow as tf

    shapes, normal = ((96, 64), (64, 64), (64, 256), (256, 64)), tf.random.stateless_normal
    weights = [tf.Variable(normal(shape, (1, i)) / 8) for i, shape in enumerate(shapes)]
    ids = tf.random.stateless_uniform((24, 20), (2, 0), 0, 96, tf.int32)

    @tf.function(autograph=False)
    def update() -> None:
        with tf.GradientTape() as tape:
            table, mix, up, down = weights
            x = tf.gather(table, ids)  # (24, 20, 64)
            scores = tf.matmul(x @ mix, x, transpose_b=True)  # (24, 20, 20)
            x += tf.matmul(tf.nn.softmax(scores / 8), x)
            mean, variance = tf.nn.moments(x, -1, keepdims=True)
            x = (x - mean) * tf.math.rsqrt(variance + 1e-6)
            x += tf.nn.relu(x @ up) @ down
            logits = tf.matmul(x[:, :-1], table, transpose_b=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            gradient = tf.convert_to_tensor(gradient)
            weight.assign_sub(0.01 * gradient * tf.math.rsqrt(1e-3 + gradient**2))

    for _ in range(20):
        update()
    return hash_of(weights)


def processor() -> str:
    """Return the name of the processor that computes: that of the GPU, if TensorFlow finds one."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    cpu = Path("/proc/cpuinfo")  # of Linux
    found = re.search(r"^model name\s*: (.*)", cpu.read_text() if cpu.exists() else "", re.M)
    return details.get("device_name") or (found[1] if found else "unknown")


def hash_of(variables: list) -> str:
    """Return a hash of the values of variables, equal if all bits are."""
    values = b"".join(variable.numpy().tobytes() for variable in variables)
    return hashlib.sha256(values).hexdigest()[:16]


def end_with_parent() -> None:
    """Save and end when standard input is closed: this run is stopped, or its parent has died."""

    def wait() -> None:
        os.read(0, 1)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def score(predictor, texts: Split, documents: bool) -> dict:
    """Return the scores of texts that experiments store: see `evaluation.scores`.

    "exact_match" is the mean over the tags of `mini` and `cogs`. Accuracy is in per cent.
    """
    from evaluation.generator import Generator
    from evaluation.scores import measure, measure_text

    of_text = isinstance(predictor, Generator)
    scores, _ = measure_text(predictor, texts, documents) if of_text else measure(predictor, texts)
    stored = {x: scores[x] for x in ("loss", "nats_per_character", "bleu") if x in scores}
    if getattr(predictor, "labelled", False):  # a language model has no labels
        stored["accuracy"] = 100 * scores["accuracy"]
    elif tags := scores.get("exact_match_by_tag"):
        by_tag = {tag: round(value, 3) for tag, (_, value) in tags.items()}
        counted = [value for tag, value in by_tag.items() if tag not in EXCLUDED]
        stored |= {"exact_match": sum(counted) / len(counted), "by_tag": by_tag}
    elif "exact_match" in scores:
        stored["exact_match"] = round(scores["exact_match"], 3)
    return stored


def train_and_score(job: dict) -> dict:
    """Train a run, or what remains of it, and score it. Raises UserError and OSError."""
    import train
    from evaluation import loading

    run, began = Path(job["run"]), time.monotonic()
    resumed = job["resumable"] and any(run.glob("checkpoints/ckpt-*.index"))
    flags = {"resume": str(run)}
    if not resumed:
        shutil.rmtree(run, ignore_errors=True)
        flags = parse(job["flags"]) | {"name": run.name}
    config = config_from_flags(flags | {"runs_dir": str(run.parent), "cache_dir": job["cache"]})
    try:
        train.train(config)  # exits after a signal
    except Diverged as error:
        return {"diverged": str(error).split(";")[0]}
    print("\nscoring", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # training has set handlers
        signal.signal(number, signal.SIG_DFL)
    trained, texts = time.monotonic(), Split(*json.loads(Path(job["texts"]).read_text("utf-8")))
    predictor = loading.load(run, config, average=job["average"])
    documents = read_json(run / "corpus.json").get("documents", True)
    result = {"scores": score(predictor, texts, documents), "parameters": predictor.num_parameters}
    result["weights"] = hash_of(predictor.model.trainable_variables)
    times = {"train": trained - began, "score": time.monotonic() - trained}
    seconds = {name: round(value, 1) for name, value in times.items()}
    return result if resumed else result | {"seconds": seconds}  # of the whole work


def run(job: dict) -> None:
    """Carry out a job and write its result. Raises UserError and OSError.

    Exits if this machine, or a package, differs from the one that the job is for.
    """
    machine.import_tensorflow()
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    machine.set_parallelism(parse(job["flags"]).get("shards") or 1)
    here = {"machine": fingerprint(), "processor": processor()}
    if "about" not in job:  # the job of `Workspace.probe`
        write_json(job["texts"], load_texts(job["flags"], job["sentences"], job["final"]))
        write_json(job["result"], here)
        return
    about, packages = job["about"], {name: metadata.version(name) for name in job["packages"]}
    if (here["machine"], packages) != (about["machine"], job["packages"]):
        text = f"{here['processor']} with {packages} computes other bits than "
        fail(f"{text}{about['processor']} with {job['packages']}, or environment variables differ")
    if Path(job["run"]).exists():  # the process of a lost worker may still save
        lock(Path(job["run"], ".lock"), wait="waiting for another process").lock.release()
    if not Path(job["result"]).exists():  # the command may have ended before it read it
        write_json(job["result"], about | train_and_score(job))
    for part in ("checkpoints", "source"):  # hundreds of megabytes
        shutil.rmtree(Path(job["run"], part), ignore_errors=True)


if __name__ == "__main__":
    prepare_streams()
    with errors_in_one_line():
        machine.cores = lambda: [0]  # one thread: with more, the last bits differ
        end_with_parent()
        run(read_json(sys.argv[1]))
