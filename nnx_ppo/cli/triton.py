"""Write a bundle into a Triton model repository, as one model that is complete in itself.

The server keeps the carry of each robot by its correlation ID and steps all that are ready in one
call. What it needs beside the repository is Python with the package nnx-ppo-deploy[serving].
"""

import argparse
from pathlib import Path

from nnx_ppo.cli.fleet_options import add_fleet_options, fleet_settings
from nnx_ppo.cli.output import Output

EXAMPLES = """examples:
  nnx-ppo triton policy/ --repository repository/
  nnx-ppo triton policy/ --repository repository/ --name walker --max-sequences 4096
  nnx-ppo triton policy/ --repository repository/ --name plain --backend onnxruntime
  nnx-ppo triton policy/ --repository repository/ --name free --stateless
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--repository", type=Path, required=True, help="directory to write the model into"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a model that this command has written"
    )
    add_fleet_options(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import write_model_repository

    settings = fleet_settings(arguments)
    model = write_model_repository(
        arguments.bundle,
        arguments.repository,
        name=arguments.name,
        settings=settings,
        overwrite=arguments.overwrite,
    )
    data = {"repository": model.parent, "model": model.name, "mode": settings.mode}
    output.result(data, f"model {model.name} written to {model}")
    return 0
