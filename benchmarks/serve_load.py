"""How many requests `lowbit serve` answers against the bare engine, and whether it holds out under load.

The server is a process of its own. Clients on the loopback send images as binary tensors, one a request, and
compare every answer. Rounds alternate: the bare engine in this process (batches of 1 and of the server's
size), then the server. The clients work on the same cores, which counts against the server; "on the cores
left" compares with the bare engine's rate on the fraction of the cores that the clients do not use.

    lowbit export runs/w8a8 && python benchmarks/serve_load.py runs/w8a8/export
    python benchmarks/serve_load.py runs/w8a8/export --engine openvino --clients 8
    python benchmarks/serve_load.py runs/w8a8/export --engine lowbit --endurance --seconds 600 --rounds 20
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from lowbit.deploy.engines import Engine
from lowbit.serve.model import open_served_model

TIMEOUT = 600  # seconds, also of clients: a machine that stops for a while is no error of the server
HEADER = "Inference-Header-Content-Length"
CLOSE = 0.5  # of the answers' mean distance from their mean: batches of another size may round otherwise


@dataclass
class Load:
    """What the clients of one round saw."""

    answered: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def per_second(self, whole: float) -> float:
        return self.answered / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--engine")
    parser.add_argument("--seconds", type=float, default=60, help="in all; half of it is the server's")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--max-delay", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--instances", type=int)
    parser.add_argument("--endurance", action="store_true", help="the server alone, without comparisons")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['model']} in {found['engine']}, {options.clients} clients, {found['requests']} requests")
    for name, value in found["per_second"].items():
        print(f"  {name:24} {value:8.1f} images/s")
    for name, value in found["ratios"].items():
        print(f"  served / {name:32} {value:8.2f}")
    latency = ", ".join(f"{name} {value:.1f}" for name, value in found["latency_ms"].items())
    print(f"  latency ms: {latency}")
    spent = ", ".join(f"{name} {value:.2f}" for name, value in found["processor_ms"].items())
    print(f"  processor ms per request: {spent}")
    print(f"  errors: {len(found['errors'])} {found['errors'][:3]}")
    print(f"  server's memory MB: {found['memory_first']:.1f} at first, {found['memory_last']:.1f} at last")


def measure(options: argparse.Namespace) -> dict:
    bare = open_served_model(options.export, engine=options.engine, instances=1)
    engine, info = bare.engines[0], bare.inputs[0]
    images = np.random.default_rng(0).standard_normal((64, *info.shape[1:])).astype(info.dtype)
    expected = np.concatenate([engine.run_all([images[n : n + 1]])[0] for n in range(len(images))])
    slice_ = options.seconds / options.rounds / (1 if options.endurance else 2)
    names = ["bare, batch 1", f"bare, batch {options.max_batch}", "served"]
    rates: dict[str, list[float]] = {name: [] for name in names}
    whole, memory, spent = Load(), [], {"server": 0.0, "clients": 0.0}
    with Server(options) as server:
        warm = min(2.0, slice_)
        server.load(images, expected, info.name, options.clients, warm)
        for _ in range(options.rounds):
            for size, name in zip((1, options.max_batch), names[:2], strict=True):
                if not options.endurance:
                    rates[name].append(bare_rate(engine, images[:size], slice_ / 2))
            before = server.processor_seconds(), time.process_time()
            load = server.load(images, expected, info.name, options.clients, slice_)
            spent["server"] += server.processor_seconds() - before[0]
            spent["clients"] += time.process_time() - before[1]
            rates["served"].append(load.per_second(slice_))
            memory.append(server.resident())
            whole.answered += load.answered
            whole.errors += load.errors
            whole.seconds += load.seconds
    if options.endurance:
        del rates[names[0]], rates[names[1]]
    ratios = {
        name: statistics.median(s / b for s, b in zip(rates["served"], rates[name], strict=True))
        for name in names[:2]
        if name in rates
    }
    left = 1 - spent["clients"] / (slice_ * options.rounds * (os.cpu_count() or 1))
    ratios |= {f"{name}, on the cores left": ratio / left for name, ratio in ratios.items()}
    return {
        "model": bare.name,
        "engine": engine.name,
        "requests": whole.answered,
        "errors": whole.errors,
        "per_second": {name: statistics.median(values) for name, values in rates.items()},
        "ratios": ratios,
        "latency_ms": {
            name: 1000 * float(np.quantile(whole.seconds, part))
            for name, part in (("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999))
        },
        "processor_ms": {name: 1000 * one / max(1, whole.answered) for name, one in spent.items()},
        "memory_first": memory[0],
        "memory_last": memory[-1],
        "memory": memory,
    }


def bare_rate(engine: Engine, images: np.ndarray, seconds: float) -> float:
    engine.run_all([images])
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        engine.run_all([images])
        count += len(images)
    return count / passed


class Server:
    """`lowbit serve` as a process on a free port of the loopback."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._command = [
            *(sys.executable, "-m", "lowbit", "serve", str(options.export), "--port=0"),
            f"--timeout={TIMEOUT}",
            *(f"--max-batch={options.max_batch}", f"--max-delay={options.max_delay}"),
        ]
        if options.instances:
            self._command.append(f"--instances={options.instances}")
        if options.engine:
            self._command.append(f"--engine={options.engine}")
        if options.threads:
            self._command.append(f"--threads={options.threads}")

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)(/\S+)", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self._host, self._port, self._path = found[1], int(found[2]), f"{found[3]}/infer"
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def processor_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def resident(self) -> float:
        """Megabytes."""
        return psutil.Process(self._process.pid).memory_info().rss / 1e6

    def load(self, images: np.ndarray, expected: np.ndarray, name: str, clients: int, seconds: float) -> Load:
        """So many clients, each asking again as soon as it has its answer."""
        bodies = [self._body(images[n : n + 1], name) for n in range(len(images))]
        load, lock, ends = Load(), threading.Lock(), time.perf_counter() + seconds
        limit = CLOSE * float(np.abs(expected - expected.mean()).mean())

        def client(number: int) -> None:
            connection, turn = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT), number
            answered, errors, times = 0, [], []
            while time.perf_counter() < ends:
                turn = (turn + 7) % len(bodies)
                start = time.perf_counter()
                problem = self._ask(connection, bodies[turn], expected[turn], limit)
                times.append(time.perf_counter() - start)
                answered += problem is None
                errors += [problem] if problem else []
            connection.close()
            with lock:
                load.answered += answered
                load.errors += errors
                load.seconds += times

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return load

    def _body(self, image: np.ndarray, name: str) -> tuple[bytes, dict[str, str]]:
        given = {"name": name, "shape": list(image.shape), "datatype": "FP32"}
        given["parameters"] = {"binary_data_size": image.nbytes}
        text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
        return text + image.tobytes(), {HEADER: str(len(text)), "Content-Type": "application/octet-stream"}

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        body: tuple[bytes, dict[str, str]],
        expected: np.ndarray,
        limit: float,
    ) -> str | None:
        """What was wrong with the answer."""
        try:
            connection.request("POST", self._path, *body)
            response = connection.getresponse()
            content = response.read()
        except OSError as error:
            connection.close()
            return repr(error)
        if response.status != 200:
            return f"HTTP {response.status}: {content[:200].decode(errors='replace')}"
        answer = np.frombuffer(content[int(response.headers[HEADER]) :], np.float32)
        difference = float(np.abs(answer - expected).mean())
        return None if difference <= limit else f"the answer is {difference:.3g} away from the engine's"


if __name__ == "__main__":
    main()
