"""Say in what two bundles differ.

Compared are ports, carry, metadata, what was recorded of their actions, modules, files, parity and
origin. Where they were recorded on different observations, as after more training, both act on
those of the first. Exit status 0 if they are the same, 1 if they differ.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.display import show
from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.output import Output

if TYPE_CHECKING:
    from serving import Bundle
    from serving.comparison import Difference

EXAMPLES = """examples:
  nnx-ppo diff policy/ policy_new/
  nnx-ppo diff policy/ policy_new/ --ignore origin,parity,artefacts
  nnx-ppo diff policy/ policy_new/ --json | jq '.differences[] | select(.section == "behaviour")'
"""

SHORT_LINE = 60
"""Characters of a value that are shown; --json has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, help="directory of a bundle")
    parser.add_argument("second", type=Path, help="directory of the bundle to compare with it")
    parser.add_argument(
        "--ignore",
        default="",
        metavar="SECTION,...",
        help="sections that do not count: interface, metadata, 'initial carry', behaviour, "
        "structure, artefacts, operations, parity, origin",
    )
    parser.add_argument(
        "--runtime", default="onnx", help="in which both act, where that is needed [onnx]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle
    from serving.comparison import compare_bundles

    ignored = _sections(arguments.ignore)
    first, second = read_bundle(arguments.first), read_bundle(arguments.second)
    found = compare_bundles(first, second)
    if "behaviour" not in ignored:
        found += _acted(first, second, arguments.runtime, output)
    counted = [difference for difference in found if difference.section not in ignored]
    data = {
        "first": str(first.path),
        "second": str(second.path),
        "same": not counted,
        "ignored": sorted(ignored),
        "differences": [dataclasses.asdict(difference) for difference in counted],
    }
    show(output, data, sections(counted))
    return 1 if counted else 0


def _sections(text: str) -> set[str]:
    from serving.comparison import SECTIONS

    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := sorted(names - set(SECTIONS)):
        raise CommandError(f"--ignore: no section {unknown[0]!r}; known are {', '.join(SECTIONS)}")
    return names


def _acted(first: "Bundle", second: "Bundle", runtime: str, output: Output) -> "list[Difference]":
    """Let both act on the same observations, unless their recordings already say how they act."""
    from serving import ServingError, load_policy
    from serving.comparison import compare_actions, same_interface, same_observations

    if same_observations(first, second):
        return []
    if not same_interface(first, second):
        output.note("not run: one cannot be fed what the other is fed")
        return []
    try:
        policies = [load_policy(bundle, runtime=runtime) for bundle in (first, second)]
    except ServingError as error:
        output.note(f"not run: {' '.join(str(error).split())}")
        return []
    return compare_actions(*policies)


def sections(differences: "list[Difference]") -> list[Any]:
    """Lay out differences for a person, one table for each section that has some."""
    from serving.comparison import SECTIONS
    from serving.overview import Facts, Table, printable

    if not differences:
        return [Facts("The same", [("differences", "none")])]
    tables = []
    for section in SECTIONS:
        mine = [difference for difference in differences if difference.section == section]
        rows = [
            tuple(_short(printable(part)) for part in (d.what, d.first, d.second)) for d in mine
        ]
        words = frozenset(["first", "second"])
        tables.append(Table(section.capitalize(), ("what", "first", "second"), rows, words))
    return tables


def _short(text: str) -> str:
    return text if len(text) <= SHORT_LINE else text[: SHORT_LINE - 1] + "…"
