"""Behaviour that depends on the device."""

import os

import pytest
import tensorflow as tf

from config import Config
from training import machine


@pytest.mark.parametrize(("devices", "shards"), [([], 2), (["GPU:0"], 1)])
def test_the_default_number_of_shards_depends_on_the_device(devices, shards, monkeypatch):
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: devices)
    assert machine.adapt_to_device(Config()).shards == shards
    assert machine.adapt_to_device(Config(shards=3)).shards == 3


def test_a_gpu_is_shared_and_computes_in_float32_unless_the_environment_says_otherwise(monkeypatch):
    names = ("TF_FORCE_GPU_ALLOW_GROWTH", "NVIDIA_TF32_OVERRIDE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    machine.set_gpu_defaults()
    assert [os.environ[name] for name in names] == ["true", "0"]
    monkeypatch.setenv(names[1], "1")
    machine.set_gpu_defaults()
    assert os.environ[names[1]] == "1"


def test_a_full_disk_is_distinguished_from_full_memory():
    for reason in ("No space left on device", "Disk quota exceeded"):
        error = tf.errors.ResourceExhaustedError(None, None, f"runs/x/events; {reason}")
        assert "disk" in machine.out_of_memory_message(error, "use less")
    error = tf.errors.ResourceExhaustedError(None, None, "OOM: tensor with shape[3,4] and type")
    assert machine.out_of_memory_message(error, "use less").endswith("use less")
