"""A language model in a process of its own: `ENGINE PATH THREADS`, then a JSON line a request.

It answers with a line for its creation, and one for each request `{"prompt": N, "tokens": N}`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

#: The least token that prompts are made of: those before it end a text.
_FIRST = 2
Generate = Callable[[list[int], int], tuple[float, list[float], float | None, list[int]]]
"""From a prompt and a number of tokens to what they take, and to the tokens.

First are the ms of the prefill and those of each token. Then come the processor time of all tokens
if it is known, and the new tokens. An engine that does not say them gives none.
"""


def genai(path: str, threads: int, _: int) -> Generate:
    """Return onnxruntime-genai; 0 threads: as the folder says."""
    import onnxruntime
    import onnxruntime_genai

    onnxruntime.preload_dlls()  # a provider of CUDA finds its libraries then
    config = onnxruntime_genai.Config(path)
    if threads:
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)

    def generate(
        prompt: list[int], tokens: int
    ) -> tuple[float, list[float], float | None, list[int]]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        length = len(prompt) + tokens + 1
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = onnxruntime_genai.Generator(model, parameters)
        clock = time.perf_counter
        started = clock()
        generator.append_tokens(prompt)
        generator.generate_next_token()  # genai computes the prompt's logits here at the latest
        prefill = clock() - started
        elapsed, before = [], time.process_time()
        for _ in range(tokens):
            started = clock()
            generator.generate_next_token()
            elapsed.append(1e3 * (clock() - started))
        used = 1e3 * (time.process_time() - before)
        new = generator.get_sequence(0)[len(prompt) :]
        return 1e3 * prefill, elapsed, used, [int(each) for each in new]

    return generate


def llama_cpp(path: str, threads: int, context: int) -> Generate:
    """Return llama.cpp, by its bindings xllamacpp."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx = context
    parameters.n_parallel = 1
    parameters.n_batch = parameters.n_ubatch = context
    if threads:
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
    parameters.warmup = False
    server = xllamacpp.Server(parameters)

    def generate(
        prompt: list[int], tokens: int
    ) -> tuple[float, list[float], float | None, list[int]]:
        request = {
            "prompt": prompt, "n_predict": tokens + 1, "temperature": 0.0, "cache_prompt": False,
            "ignore_eos": True,
        }  # fmt: skip
        found = server.handle_completions(request)
        found = json.loads(found) if isinstance(found, str) else found
        times = found["timings"]
        return times["prompt_ms"], token_times(times, tokens), None, []

    return generate


def token_times(times: Mapping[str, float], tokens: int) -> list[float]:
    """Return the ms of each token that llama.cpp added to a prompt.

    It counts the first of `predicted_n` too, whose time is the prompt's (xllamacpp 2026.10.11549:
    one token takes 0.001 ms).

    Args:
        times: The `timings` of its answer.
        tokens: How many were asked for behind the first.
    """
    return [times["predicted_ms"] / (times["predicted_n"] - 1)] * tokens if tokens else []


def resident() -> int:
    """Return the bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def main() -> None:
    """Load, then answer requests until there are none."""
    engine, path, threads, context = sys.argv[1:5]
    before, started = resident(), time.perf_counter()
    made = {"genai": genai, "llama.cpp": llama_cpp}[engine](path, int(threads), int(context))
    elapsed = 1e3 * (time.perf_counter() - started)
    print(json.dumps({"create_ms": elapsed, "before": before}), flush=True)
    random = np.random.default_rng(0)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = random.integers(_FIRST, asked["words"], asked["prompt"]).tolist()
        began = time.process_time()
        prefill, times, tokens_cpu, new = made(prompt, asked["tokens"])
        used = 1e3 * (time.process_time() - began)
        answer = {
            "prefill_ms": prefill, "token_ms": times, "cpu_ms": used, "tokens_cpu_ms": tokens_cpu,
            "resident": resident(), "new": new,
        }  # fmt: skip
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
