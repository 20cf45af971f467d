"""Load a trained model: with its tokenizers, it is a Translator or a Generator."""

import dataclasses
from pathlib import Path

import numpy as np

from config import Config
from data import tokenizer
from data.encoding import start_id
from data.tokenizer import Labels, Tokenizer
from evaluation.generator import Generator
from evaluation.predictor import GREEDY
from evaluation.search import Search
from evaluation.translator import Translator
from model import build
from model.interface import Model
from same_code import changed_model
from training.checkpoints import readable_checkpoints, restore_model
from training.records import checkpoint_folder, load_config, read_json
from utils import UserError, quote


def make_predictor(
    model: Model,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | Labels,
    config: Config,
    corpus_info: dict,
    search: Search = GREEDY,
) -> Translator | Generator:
    """Create a Generator for a language model, a Translator for any other.

    corpus_info: see `Dataset`. A Translator needs none.
    """
    if config.task == "language modeling":
        start = start_id(target_tokenizer, corpus_info["documents"])
        return Generator(model, target_tokenizer, config.max_length, start, search)
    tokenizers, margin = (source_tokenizer, target_tokenizer), corpus_info.get("output_margin", 20)
    return Translator(model, *tokenizers, config.max_length, search, margin)


def load(
    run: str | Path,
    config: Config | None = None,
    checkpoint: str = "last",
    average: int = 1,
    search: Search = GREEDY,
    accept_changes: bool = False,
) -> Translator | Generator:
    """Load the model of a run directory from its `last` or `best` checkpoint, in float32.

    config: by default the run's own. average: number of latest epochs whose final weights are
    averaged (section 6.1). accept_changes: use the current code even if model/ or the tokenizer
    have changed since: they could compute something else. Raises OSError for a missing file, and
    UserError if the code has changed, or if a checkpoint is missing or does not fit the model.
    """
    config = config or load_config(run)
    names = [] if accept_changes else changed_model(run)
    if names:
        raise UserError(
            f"{names[0]} has changed since {run} was trained: run the copy of the program in "
            f"{quote(Path(run, 'source'))}, or give --accept-changes to use the current code"
        )
    tokenizers = tokenizer.load_pair(run, config.lowercase)
    config = dataclasses.replace(config, precision="float32")
    model = build(config, *(each.vocab_size for each in tokenizers))
    folder = checkpoint_folder(run, checkpoint, average)
    paths = readable_checkpoints(folder, average, ends_of_epochs=average > 1)
    if len(paths) < average:
        raise UserError(f"--average {average}: {folder} has {len(paths)} intact ends of epochs")
    variables, weights = [x for x in model.variables if x.dtype.is_floating], []
    for path in paths:
        restore_model(path, model)
        weights.append([variable.numpy() for variable in variables])
    for variable, values in zip(variables, zip(*weights, strict=True), strict=True):
        variable.assign(np.mean(values, axis=0, dtype=float))
    path, keys = Path(run, "corpus.json"), ["documents"]
    if config.task != "language modeling":
        keys = []
    corpus_info = read_json(path, *keys) if keys or path.exists() else {}
    return make_predictor(model, *tokenizers, config, corpus_info, search)
