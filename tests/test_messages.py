"""What programs print: next to progress bars, where nobody reads it, and without the environment.

Nothing here imports TensorFlow.
"""

import os
import subprocess
import sys

from same_code import ROOT

BAR = """
import sys, utils
utils.prepare_streams()
for i in utils.progress_bar(range(2), desc="reading", **OPTIONS):
    utils.warn(f"warning {i}")
    utils.print_line(f"line {i}", sys.stdout)
utils.print_line("finished", sys.stdout)
"""


def start(code, **streams):
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **streams)


MESSAGES = ["warning: warning 0", "line 0", "warning: warning 1", "line 1", "finished"]


def test_in_a_log_each_message_and_each_state_of_a_bar_is_a_line():
    code = f"OPTIONS = {{'mininterval': 0, 'delay': 0}}{BAR}"
    with start(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = process.stdout.read().splitlines()
    states = [line for line in lines if line.startswith("reading: ")]
    assert len(states) >= 2 and "2/2" in states[-1]
    assert [line for line in lines if line not in states] == MESSAGES


def test_output_that_nobody_reads_does_not_end_the_work(tmp_path):
    """As of `train.py … 2>&1 | tee LOG` after Ctrl-C."""
    done = tmp_path / "done"
    reader, writer = os.pipe()
    os.close(reader)
    process = start(
        f"OPTIONS = {{}}{BAR}open({str(done)!r}, 'w').write('done')", stdout=writer, stderr=writer
    )
    os.close(writer)
    process.wait()
    assert done.read_text() == "done"


def test_without_the_environment_it_is_named():
    """-S: without the directory of installed packages."""
    done = subprocess.run(
        [sys.executable, "-S", "train.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install" in done.stderr
