"""Export a run as a CTranslate2 model, for ctranslate2_search."""

import sys

# CTranslate2 imports PyTorch if it can. Some versions cannot be loaded together with TensorFlow.
sys.modules["torch"] = None
try:
    import ctranslate2  # noqa: F401
except ImportError:
    sys.exit(3)
from benchmarks import sentences
from evaluation import export, translator
from training.records import load_config

if __name__ == "__main__":
    job = sentences.load_job()
    export.export_ctranslate2(translator.load(job["run"], load_config(job["run"])), job["to"])
    print("{}")
