"""Run a contestant: `python -m benchmarks.peers MODULE.FUNCTION`, with its job in standard input.

The job is pickled. The measurements are printed on the last line, as JSON.
"""

import importlib
import json
import pickle
import sys

job = pickle.load(sys.stdin.buffer)
module, function = sys.argv[1].split(".")
try:
    contestant = importlib.import_module(f"benchmarks.peers.{module}")
except ModuleNotFoundError as error:
    sys.exit(f'{error}: run pip install -e ".[benchmarks]"')
print(json.dumps(getattr(contestant, function)(job)))
