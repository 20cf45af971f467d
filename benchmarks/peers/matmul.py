"""The rate of large matrix products on this machine."""

import statistics
import time

import numpy as np
import tensorflow as tf


def measure(job: dict) -> dict:
    """Return the GFLOP/s of 2048 × 2048 × 2048 products in `job["dtype"]`."""
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2048, 2048)), job["dtype"]) for _ in range(2))
    product = tf.function(lambda a, b: tf.matmul(a, b)[0, 0])
    times = []
    for _ in range(30):
        start = time.perf_counter()
        product(a, b).numpy()
        times.append(time.perf_counter() - start)
    return {"gflops": 2 * 2048**3 / statistics.median(times[5:]) / 1e9}
