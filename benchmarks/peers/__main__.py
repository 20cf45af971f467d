"""Run a contestant: `python -m benchmarks.peers MODULE.FUNCTION`, with its job in standard input.

The job is a JSON object, and so are the measurements, which are printed on the last line.
"""

import importlib
import json
import sys

job = json.load(sys.stdin)
module, function = sys.argv[1].split(".")
try:
    contestant = importlib.import_module(f"benchmarks.peers.{module}")
except ModuleNotFoundError as error:
    sys.exit(f'{error}: run pip install -e ".[benchmarks]"')
print(json.dumps(getattr(contestant, function)(job)))
