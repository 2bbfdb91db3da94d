"""`lowbit serve`: an exported model over HTTP, in the Open Inference Protocol (KServe v2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import Quiet


def serve(
    export: Annotated[
        Path, typer.Argument(help="The folder of an exported model, or a run folder.", show_default=False)
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            help="`onnxruntime`, `openvino`, `lowbit`, `paddle` or `paddle-int8`; default: ONNX Runtime if "
            "there is an ONNX file, else Paddle Inference."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in URLs; default: its own.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; `0.0.0.0` takes requests from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of an instance; default: the cores are shared.")
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Number of instances of the engine; default: 2, in Paddle Inference 1."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Samples of a request, and of the batch that requests are joined to.")
    ] = 8,
    max_delay: Annotated[
        float, typer.Option(min=0, help="Milliseconds that an idle engine waits for a batch to fill.")
    ] = 0.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Concurrent requests; further ones get HTTP 503.")
    ] = 128,
    max_body: Annotated[
        float | None,
        typer.Option(help="MiB of a request's body; default: what `max-batch` samples need as JSON."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for a request, its transfer included.")] = 30.0,
    quiet: Quiet = False,
) -> None:
    """Serve an exported model over HTTP, in the Open Inference Protocol (KServe v2).

    Needs `pip install 'lowbit[serve]'`. SIGTERM and Ctrl-C finish running requests. Prometheus metrics are
    at /metrics. There is no authentication: use a reverse proxy to expose it.

    **Examples**

    - `lowbit serve runs/digits/export`
    - `lowbit serve runs/w8a8 --engine openvino --port 9000 --max-batch 16 --max-delay 2`
    - `curl localhost:8000/v2/health/ready`
    """
    from lowbit.serve import Limits
    from lowbit.serve import serve as serve_model

    serve_model(
        export,
        engine=engine,
        name=name,
        host=host,
        port=port,
        threads=threads,
        instances=instances,
        limits=Limits(
            max_batch=max_batch,
            max_delay=max_delay / 1000,
            max_requests=max_requests,
            max_body=None if max_body is None else int(max_body * 2**20),
            timeout=timeout,
        ),
        tell=(lambda _: None) if quiet else (lambda line: print(line, flush=True)),
    )
