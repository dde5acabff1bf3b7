"""What `scripts/bench figures` holds ortkit's figures against: onnxruntime and a clock, no more.

usage: figures_raw.py MODEL INPUTS.npz THREADS SECONDS
"""

import json
import os
import sys
import time

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort

model, inputs, threads, seconds = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = int(threads)
started = time.perf_counter()
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
load = time.perf_counter() - started
feeds = dict(np.load(inputs))
started = time.perf_counter()
session.run(None, feeds)
first = time.perf_counter() - started
for _ in range(3):
    session.run(None, feeds)
elapsed = []
until = time.perf_counter() + float(seconds)
while time.perf_counter() < until or len(elapsed) < 5:
    started = time.perf_counter()
    session.run(None, feeds)
    elapsed.append(time.perf_counter() - started)
elapsed.sort()
print(
    json.dumps(
        {"load": load, "first": first, "median": elapsed[len(elapsed) // 2], "least": elapsed[0]}
    )
)
