"""The models, by the name that `--model` has for them."""

from model.classifier import Classifier
from model.recurrent import Recurrent
from model.transformer import Transformer

MODELS = {"transformer": Transformer, "recurrent": Recurrent, "classifier": Classifier}
