"""Export a model for production, as a CTranslate2 model or a TensorFlow SavedModel."""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import config
from config import UserError
from evaluation import command_line
from evaluation.search import Search

if TYPE_CHECKING:
    from evaluation.translator import Translator
