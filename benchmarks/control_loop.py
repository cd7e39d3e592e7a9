"""How well the control loop keeps 500 Hz, undisturbed and with a read that stalls.

    python benchmarks/control_loop.py policy/ --runtime onnx
    python benchmarks/control_loop.py --make lstm policy/        (exports a bundle first)
    python benchmarks/control_loop.py policy/ --runtime c --priority 80 --cpus 3 --lock-memory

Three runs of --duration-s each: with nothing but the loop, with all guards, watchdog and flight
recorder on, and those with a read that takes 50 ms once a second. For the last one the table also
says how late the cycles after a stall began, and how close two cycles ever came: never closer than
a period less the lateness of the first, since skipped ticks are not made up for.

Numbers of a machine that does something else meanwhile say nothing; run it alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from serving import (
    ActionGuard,
    ControlLoop,
    FlightRecorder,
    LoopReport,
    RealTime,
    Session,
    Watchdog,
    load_policy,
    tree,
)
from serving.latency import this_machine

MAKE = """
import sys
sys.path.insert(0, {directory!r})
import networks
from flax import nnx
from export import export_policy
network, observation = getattr(networks, {name!r})(nnx.Rngs(0))
export_policy(network, observation, {bundle!r}, formats={formats!r}, control_rate_hz={rate_hz!r})
"""


class StalledReader:
    """Hands out observations; once in so many seconds it takes long about it."""

    def __init__(self, observations: list[Any], *, stall_s: float, every_s: float) -> None:
        self.began_s: list[float] = []
        self.stalls = 0
        self._observations = itertools.cycle(observations)
        self._stall_s = stall_s
        self._every_s = every_s
        self._next_s = time.perf_counter() + every_s

    def __call__(self) -> Any:
        now_s = time.perf_counter()
        self.began_s.append(now_s)
        if self._stall_s and now_s >= self._next_s:
            self._next_s += self._every_s
            self.stalls += 1
            time.sleep(self._stall_s)
        return next(self._observations)


def observations_of(session: Session, count: int = 500) -> list[Any]:
    """Makes random observations as the session takes them."""
    rng = np.random.default_rng(0)
    ports = {port.name: port for port in session.manifest.observation_ports}
    structure = session.manifest.observation
    return [
        tree.unflatten(
            structure,
            [
                None
                if leaf.port is None
                else rng.normal(size=leaf.shape).astype(ports[leaf.port].dtype)
                for leaf in tree.leaves(structure)
            ],
        )
        for _ in range(count)
    ]


def measure(
    session: Session, arguments: argparse.Namespace, *, guarded: bool, stalls: bool, records: str
) -> tuple[LoopReport, StalledReader]:
    """Runs the loop once."""
    read = StalledReader(
        observations_of(session),
        stall_s=arguments.stall_ms / 1e3 if stalls else 0.0,
        every_s=arguments.stall_every_s,
    )
    settings: dict[str, Any] = {}
    if guarded:
        settings = {
            "actions": ActionGuard(low=-10.0, high=10.0, rate_limit_per_s=1e4, safe_action=0.0),
            "watchdog": Watchdog(4.0 * max(arguments.stall_ms, 25.0) / 1e3),
            "recorder": FlightRecorder(records, seconds=10.0),
        }
    loop = ControlLoop(
        session,
        read,
        lambda action: None,
        rate_hz=arguments.rate_hz,
        real_time=RealTime(
            priority=arguments.priority,
            cpus=arguments.cpus,
            lock_memory=arguments.lock_memory,
            freeze_gc=True,
        ),
        **settings,
    )
    return loop.run(duration_s=arguments.duration_s), read


def summarize(report: LoopReport, read: StalledReader, rate_hz: float) -> dict[str, Any]:
    """Numbers of one run."""
    gaps_s = np.diff(np.array(read.began_s))
    # The cycle after a gap of more than one tick is the first after a stall.
    after = np.flatnonzero(gaps_s > 5.0 / rate_hz)
    offsets = (np.array(read.began_s) - read.began_s[0]) * rate_hz
    late_s = (offsets - np.floor(offsets + 0.5)) / rate_hz
    return {
        "cycles": report.steps,
        "misses": report.misses,
        "overruns": report.overruns,
        "stalls": read.stalls,
        "missed_share": report.misses / (report.steps + report.misses),
        "rate_hz": report.achieved_rate_hz,
        "closest_cycles_s": float(gaps_s.min()),
        "after_stalls_off_grid_s": float(np.abs(late_s[after + 1]).max()) if len(after) else None,
        "report": report.to_json(),
    }


def row(name: str, values: dict[str, Any]) -> str:
    """One line of the table."""
    report = values["report"]

    def micro(name: str) -> str:
        each = report[name]
        numbers = [each[key] * 1e6 for key in ("median_s", "p99_s", "p999_s", "max_s")]
        return "/".join(f"{number:.0f}" for number in numbers)

    counts = f"{values['cycles']:7d} {values['misses']:6d} {values['overruns']:5d}"
    times = "".join(f"{micro(key):>22}" for key in ("step_latency", "cycle", "lateness", "jitter"))
    return f"{name:<22}{counts}{times}  {values['closest_cycles_s'] * 1e3:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--make", metavar="NETWORK", help="export one of benchmarks/networks.py")
    parser.add_argument("--formats", default="onnx", help="formats to export, joined by commas")
    parser.add_argument("--runtime", default="onnx")
    parser.add_argument("--rate-hz", type=float, default=500.0)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--stall-ms", type=float, default=50.0)
    parser.add_argument("--stall-every-s", type=float, default=1.0)
    parser.add_argument("--priority", type=int)
    parser.add_argument("--cpus", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--lock-memory", action="store_true")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    if arguments.make:
        code = MAKE.format(
            directory=str(Path(__file__).resolve().parent),
            name=arguments.make,
            bundle=str(arguments.bundle),
            formats=tuple(arguments.formats.split(",")),
            rate_hz=arguments.rate_hz,
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    policy = load_policy(arguments.bundle, runtime=arguments.runtime)
    runs = {
        "loop alone": {"guarded": False, "stalls": False},
        "all guards": {"guarded": True, "stalls": False},
        "all guards, stalls": {"guarded": True, "stalls": True},
    }
    machine = this_machine()
    print(f"{policy.name} on {arguments.runtime}, {machine['processor']}, {machine['cores']} cores")
    print(
        f"{'us: median/p99/p99.9/max':<22}{'cycles':>7} {'misses':>6} {'over':>5}"
        f"{'step':>22}{'cycle':>22}{'lateness':>22}{'jitter':>22}  {'closest':>7} ms"
    )
    results: dict[str, Any] = {"machine": machine, "runs": {}}
    with tempfile.TemporaryDirectory() as records:
        for name, chosen in runs.items():
            report, read = measure(policy.session(), arguments, **chosen, records=records)
            values = summarize(report, read, arguments.rate_hz)
            results["runs"][name] = values
            print(row(name, values), flush=True)
    for line in report.settings:
        print(line)
    if values["after_stalls_off_grid_s"] is not None:
        off_us = values["after_stalls_off_grid_s"] * 1e6
        print(f"{values['stalls']} stalls; cycles after one began at most {off_us:.0f} us off")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
