"""Write a bundle's report: one page that opens from a file, made of the bundle alone.

Export and verify write it into the bundle themselves. This writes it anew, as after
`bench --write`, or somewhere else.
"""

import argparse
from pathlib import Path

from nnx_ppo.cli.output import Output

EXAMPLES = """examples:
  nnx-ppo report policy/
  nnx-ppo report policy/ --out swing_up.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--out", type=Path, help="file to write, replaced if it exists [report.html in the bundle]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from export import write_report
    from serving import read_bundle
    from serving.overview import verdict_on

    bundle = read_bundle(arguments.bundle)
    file = write_report(bundle, arguments.out)
    verdict = verdict_on(bundle)
    data = {"report": str(file), "verdict": verdict.state, "headline": verdict.headline}
    output.result(data, f"{verdict.headline}\nreport {file}")
    return 0
