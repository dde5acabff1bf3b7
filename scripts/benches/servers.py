"""Throughput of MLServer and Ray Serve: a model with its kernels beside the model as it came.

Both variants run in the same server, with the same runtime of ours: plain ONNX Runtime is the
original without kernels. Servers of both variants are there all the time, and are asked in turns.
Clients run on the same machine and take their share of it.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ortkit
from scripts.benches import output

Ask = Callable[[], Callable[[], object]]
"""Makes a client; a client makes one request."""
_CONCURRENT = (1, 4, 16)
_VARIANTS = ("onnxruntime", "ortkit")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench servers", description=__doc__)
    parser.add_argument("original", type=Path, metavar="MODEL")
    parser.add_argument("optimized", type=Path, metavar="OPTIMIZED")
    parser.add_argument("--servers", default="mlserver,ray-serve")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn (default: 4)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each variant (default: 2)")
    parser.add_argument("--batch", type=int, default=0, help="requests joined (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    options = parser.parse_args(arguments)
    paths = dict(zip(_VARIANTS, (options.original, options.optimized), strict=True))
    feeds = one_row(options.original)
    found: dict[str, object] = {}
    for server in options.servers.split(","):
        started = {"mlserver": mlserver, "ray-serve": ray_serve}[server]
        output.say(f"start {server}")
        with started(paths, feeds, options.batch) as asks:
            found[server] = measured(asks, options.seconds, options.rounds)
        output.table(
            f"{server}: requests per second, {options.batch or 'none'} joined",
            ["concurrent", *_VARIANTS, "times"],
            [
                (str(count), *(round(each[name], 1) for name in _VARIANTS),
                 f"{each['ortkit'] / each['onnxruntime']:.2f}")
                for count, each in found[server].items()  # type: ignore[attr-defined]
            ],
        )  # fmt: skip
    versions = {name: metadata.version(name) for name in ("mlserver", "ray", "tritonclient")}
    document = {
        **output.machine(None), "servers": versions, "model": options.original.name,
        "batch": options.batch, "requests_per_second": found,
    }  # fmt: skip
    print(output.write(document, options.output, "servers"))


def one_row(model: Path) -> dict[str, np.ndarray]:
    """Return inputs for one row: numbers are random, tokens are ones."""
    generator = np.random.default_rng(0)
    feeds = {}
    with ortkit.Session(model, "cpu", kernels="never") as session:
        for spec in session.inputs:
            sizes = [size if isinstance(size, int) else 128 for size in spec.shape or ()]
            sizes[0] = 1
            assert spec.dtype is not None
            is_number = spec.dtype.kind == "f"
            feeds[spec.name] = (
                generator.standard_normal(sizes).astype(spec.dtype)
                if is_number
                else np.ones(sizes, spec.dtype)
            )
    return feeds


def measured(asks: Mapping[str, Ask], seconds: float, rounds: int) -> dict[int, dict[str, float]]:
    """Return requests per second by concurrency and variant, the median of all turns."""
    for ask in asks.values():
        throughput(ask, 4, 1.0)
    found: dict[int, dict[str, float]] = {}
    for count in _CONCURRENT:
        turns: dict[str, list[float]] = {name: [] for name in asks}
        for _ in range(rounds):
            for name, ask in asks.items():
                turns[name].append(throughput(ask, count, seconds))
        found[count] = {name: statistics.median(each) for name, each in turns.items()}
        output.say(f"{count} concurrent: {found[count]}")
    return found


def throughput(ask: Ask, count: int, seconds: float) -> float:
    """Return requests per second of `count` clients that each wait for their answers."""
    done = [0] * count
    clients = [ask() for _ in range(count)]
    barrier = threading.Barrier(count + 1)
    end = [0.0]

    def work(index: int) -> None:
        barrier.wait()
        while time.perf_counter() < end[0]:
            clients[index]()
            done[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    end[0] = start + seconds
    barrier.wait()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


@contextmanager
def mlserver(
    paths: Mapping[str, Path], feeds: Mapping[str, np.ndarray], batch: int
) -> Iterator[dict[str, Ask]]:
    """Start one MLServer with both variants, asked over gRPC."""
    import tritonclient.grpc as grpc

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ports = free_ports(3)
        settings = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
        more = {"host": "127.0.0.1", "parallel_workers": 0, "metrics_endpoint": None}
        (folder / "settings.json").write_text(json.dumps({**settings, **more}))
        for variant, path in paths.items():
            (folder / variant).mkdir()
            (folder / variant / "model-settings.json").write_text(json.dumps({
                "name": variant, "implementation": "ortkit.mlserver.OrtkitRuntime",
                "max_batch_size": batch, "max_batch_time": 0.002 if batch else 0,
                "parameters": {
                    "uri": str(path.absolute()),
                    "extra": {"threads": 1, "kernels": kernels(variant)},
                },
            }))  # fmt: skip
        command = [Path(sys.executable).with_name("mlserver"), "start", name]
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address = f"127.0.0.1:{settings['grpc_port']}"

        def ask_for(variant: str) -> Ask:
            def make() -> Callable[[], object]:
                client = grpc.InferenceServerClient(address)
                inputs = []
                for key, value in feeds.items():
                    kind = {"f": "FP", "i": "INT"}[value.dtype.kind] + str(8 * value.itemsize)
                    given = grpc.InferInput(key, list(value.shape), kind)
                    given.set_data_from_numpy(value)
                    inputs.append(given)
                return lambda: client.infer(variant, inputs)

            return make

        asks = {variant: ask_for(variant) for variant in paths}
        wait_for(asks, lambda: (folder / "log").read_text()[-2000:])
        yield asks


@contextmanager
def ray_serve(
    paths: Mapping[str, Path], feeds: Mapping[str, np.ndarray], batch: int
) -> Iterator[dict[str, Ask]]:
    """Start an application for each variant, with a replica for each core, asked by handles."""
    import ray
    from ray import serve

    from ortkit.ray_serve import application

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    try:
        asks: dict[str, Any] = {}
        for variant, path in paths.items():
            app = application(
                path, kernels=kernels(variant), max_batch=batch, num_replicas=2,
                max_ongoing_requests=16,
            )  # fmt: skip
            handle = serve.run(app, name=variant, route_prefix=None)
            asks[variant] = lambda handle=handle: lambda: handle.remote(dict(feeds)).result()
        yield asks
    finally:
        serve.shutdown()
        ray.shutdown()


def kernels(variant: str) -> str:
    """Return what a variant's session loads."""
    return "require" if variant == "ortkit" else "never"


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(asks: Mapping[str, Ask], log: Callable[[], str], seconds: float = 120.0) -> None:
    """Wait until every variant answers."""
    end = time.perf_counter() + seconds
    waiting = dict(asks)
    while waiting:
        name, ask = next(iter(waiting.items()))
        try:
            ask()()
        except Exception as error:
            if time.perf_counter() > end:
                raise RuntimeError(log()) from error
            time.sleep(0.3)
        else:
            waiting.pop(name)


if __name__ == "__main__":
    main()
