"""A run as a CTranslate2 model, for ctranslate2_search."""

import sys
from pathlib import Path

try:
    import ctranslate2  # noqa: F401
except ImportError:
    sys.exit(3)
import config
from benchmarks import sentences
from evaluation import export, inference

if __name__ == "__main__":
    job = sentences.the_job()
    export.ctranslate2(inference.load(Path(job["run"]), config.read(job["run"])), job["to"])
    print("{}")
