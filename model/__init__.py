"""The models, built from a config.

To add one, subclass `interface.TeacherForcing`, and name it in `MODELS`, in `TASKS` and
`Config.model` of config.py, and in `ignored_by` of the settings that it does not use.

Sections, equations and tables without a source are those of Vaswani et al. 2017.
"""

import tensorflow as tf

from config import Config
from model.classifier import Classifier
from model.interface import Model
from model.language_model import LanguageModel
from model.recurrent import Recurrent
from model.transformer import Transformer

MODELS = {
    "transformer": Transformer,
    "recurrent": Recurrent,
    "classifier": Classifier,
    "language_model": LanguageModel,
}
IDS = tf.TensorSpec([None, None], tf.int32)  # (batch, length): one trace for all shapes


def build(config: Config, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Create the model that `config.model` names, with all of its variables."""
    return MODELS[config.model](config, source_vocab_size, target_vocab_size)
