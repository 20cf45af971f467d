"""Peak speed of the machine: FLOP/s of 2048 × 2048 × 2048 matrix products."""

import json
import statistics
import time

import numpy as np
import tensorflow as tf

if __name__ == "__main__":
    rates = {}
    for dtype in ("float32", "bfloat16"):
        a, b = (tf.cast(np.random.default_rng(i).normal(size=(2048, 2048)), dtype) for i in (0, 1))
        product = tf.function(lambda a, b: tf.matmul(a, b)[0, 0])
        times = []
        for _ in range(30):
            start = time.perf_counter()
            product(a, b).numpy()
            times.append(time.perf_counter() - start)
        rates[dtype] = 2 * 2048**3 / statistics.median(times[5:])
    print(json.dumps(rates))
