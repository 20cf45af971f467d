"""Behaviour that depends on the device."""

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

from config import Config
from same_code import ROOT
from training import machine


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags\t\t: fpu sse avx2 avx512_bf16 amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu sse avx2 avx512f", False),
        ("Processor: unknown", True),
    ],
)
def test_bfloat16_instructions_are_recognized(flags, expected, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: bf16\n{flags}\n")
    assert machine.has_bfloat16(cpuinfo) == expected
    assert machine.has_bfloat16(tmp_path / "missing")


@pytest.mark.parametrize(("devices", "shards"), [([], 2), (["GPU:0"], 1)])
def test_the_default_number_of_shards_depends_on_the_device(devices, shards, monkeypatch):
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: devices)
    assert machine.adapt_to_device(Config()).shards == shards
    assert machine.adapt_to_device(Config(shards=3)).shards == 3


@pytest.mark.parametrize(("devices", "visible", "warned"), [
    ([], None, True), ([], "0", True), ([], "-1", False), (["GPU:0"], None, False)
])  # fmt: skip
def test_a_gpu_that_tensorflow_does_not_find_is_reported(
    devices, visible, warned, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "missing")
    machine.adapt_to_device(Config())
    assert not capsys.readouterr().err
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path)
    machine.adapt_to_device(Config())
    assert ("GPU" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(("precision", "warned"), [("bfloat16", True), ("float32", False)])
def test_bfloat16_without_instructions_for_it_is_reported(precision, warned, monkeypatch, capsys):
    monkeypatch.setattr(machine, "has_bfloat16", lambda: False)
    machine.adapt_to_device(Config(precision=precision))
    assert ("--precision float32" in capsys.readouterr().err) == warned


@pytest.mark.skipif(not hasattr(ctypes.pythonapi, "mallopt"), reason="needs glibc")
def test_freed_memory_is_kept_for_the_next_tensors():
    code = """
        import resource
        import sys
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        from training.machine import keep_freed_memory

        def page_faults():
            for _ in range(2):
                before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
                [np.ones(10_000_000, np.float32) for _ in range(3)]  # written and freed
            return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

        if sys.argv[1] == "keep":
            keep_freed_memory()
        with ThreadPoolExecutor(1) as thread:  # as in TensorFlow, not in the main thread
            print(thread.submit(page_faults).result())
    """

    def page_faults(setting):
        command = [sys.executable, "-c", textwrap.dedent(code), setting]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)

    assert page_faults("keep") < page_faults("default") / 10


def test_a_gpu_is_shared_and_computes_in_float32_unless_the_environment_says_otherwise():
    names = ("TF_FORCE_GPU_ALLOW_GROWTH", "NVIDIA_TF32_OVERRIDE")
    code = f"""
        import os
        import sys

        class Finder:
            def find_spec(name, *_):
                if name == "tensorflow":  # its import begins
                    print(*(os.environ.get(name) for name in {names}))

        sys.meta_path.insert(0, Finder)
        from training.machine import import_tensorflow
        import_tensorflow()
    """

    def values(**environment):
        default = {name: value for name, value in os.environ.items() if name not in names}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        environment = default | environment
        return subprocess.check_output(command, cwd=ROOT, env=environment, text=True).split()

    assert values() == ["true", "0"]
    assert values(NVIDIA_TF32_OVERRIDE="1") == ["true", "1"]
