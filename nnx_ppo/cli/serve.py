"""Serve a bundle, or a model repository, to a fleet with a Triton server on this machine.

Listens on loopback unless told otherwise. Runs until it is interrupted or terminated, then answers
the requests it has and stops.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.fleet_options import add_fleet_options, fleet_settings
from nnx_ppo.cli.output import Output
from nnx_ppo.cli.signals import Ended

EXAMPLES = """examples:
  nnx-ppo serve policy/
  nnx-ppo serve policy/ --grpc-port 8001 --http-port 8000 --metrics-port 8002
  nnx-ppo serve repository/ --host 0.0.0.0       (written by nnx-ppo triton)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle, or a model repository")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--grpc-port", type=int, default=8001, help="0 for a free one [8001]")
    parser.add_argument("--http-port", type=int, default=8000, help="0 for a free one [8000]")
    parser.add_argument("--metrics-port", type=int, default=8002, help="0 for a free one [8002]")
    parser.add_argument(
        "--start-timeout-s", type=float, default=60.0, help="longest wait for the model [60]"
    )
    parser.add_argument(
        "--stop-timeout-s", type=float, default=5.0, help="longest wait for open requests [5]"
    )
    parser.add_argument("--server", type=Path, help="a tritonserver [the one that is installed]")
    parser.add_argument("--log", action="store_true", help="show what the server writes")
    add_fleet_options(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import TritonServer

    with _repository(arguments) as repository:
        server = TritonServer(
            repository,
            host=arguments.host,
            grpc_port=arguments.grpc_port,
            http_port=arguments.http_port,
            metrics_port=arguments.metrics_port,
            start_timeout_s=arguments.start_timeout_s,
            stop_timeout_s=arguments.stop_timeout_s,
            binary=arguments.server,
            on_line=output.note if arguments.log else None,
        )
        try:
            with server:
                at = server.addresses
                data = {
                    "models": server.models,
                    "grpc": at.grpc,
                    "http": at.http,
                    "metrics": f"http://{at.metrics}/metrics",
                    "ready": f"http://{at.http}/v2/health/ready",
                    "live": f"http://{at.http}/v2/health/live",
                    "pid": server.pid,
                }
                lines = [f"serving {', '.join(server.models)} at"]
                lines += [f"  {key:8} {data[key]}" for key in list(data)[1:-1]]
                output.result(data, "\n".join(lines))
                server.wait()
        except KeyboardInterrupt as signal:
            output.note(f"stopped by {signal.name if isinstance(signal, Ended) else 'SIGINT'}")
    return 0


@contextlib.contextmanager
def _repository(arguments: argparse.Namespace) -> Iterator[Path]:
    """Give the repository that was named, or one made of the bundle for as long as it is served."""
    from serving import write_model_repository

    given: Path = arguments.bundle
    if any(given.glob("*/config.pbtxt")) and not (given / "manifest.json").exists():
        if arguments.name is not None:
            raise CommandError(
                f"{given} is a model repository, whose models have their names; leave --name out"
            )
        yield given
        return
    settings = fleet_settings(arguments)
    with tempfile.TemporaryDirectory(prefix="nnx-ppo-serve-") as directory:
        write_model_repository(given, directory, name=arguments.name, settings=settings)
        yield Path(directory)
