"""Let an exported policy act at its control rate, against a simulator in another process.

    nnx-ppo simulate swing_up --address tcp://127.0.0.1:5555 &
    python examples/control_loop.py policy/ tcp://127.0.0.1:5555

This process needs NumPy and ONNX Runtime only. On a robot, `read` and `apply` are its own: read
returns the observation, apply takes the action. What the loop does when something goes wrong is in
docs/control_loop.md.
"""

import sys

from serving import (
    ActionGuard,
    ControlLoop,
    FaultPolicy,
    FlightRecorder,
    RealTime,
    RemotePlant,
    load_policy,
    self_test,
)


def main(bundle: str, address: str, *, duration_s: float = 10.0) -> None:
    policy = load_policy(bundle, runtime="onnx")
    # Before anything moves: does this machine compute what was recorded at export?
    if not self_test(policy).passed:
        raise SystemExit(f"{bundle} does not reproduce its golden trajectory on this machine")

    session = policy.session()
    with RemotePlant(address, on_episode=session.reset) as plant:
        loop = ControlLoop(
            session,
            plant.read,
            plant.apply,
            # No torque at all, approached over a fifth of a second: however the run ends.
            actions=ActionGuard(safe_action=0.0, ramp_s=0.2),
            faults=FaultPolicy(observation_invalid="hold", overrun="continue"),
            recorder=FlightRecorder("records", seconds=10.0),
            real_time=RealTime(freeze_gc=True),
            handle_signals=True,
        )
        report = loop.run(duration_s=duration_s)
        summary = plant.close()

    print(f"{report.achieved_rate_hz:.2f} Hz, {report.misses} misses in {report.steps} steps")
    print(f"stopped by {report.signal or report.stopped_by}, faults {sum(report.faults.values())}")
    print(f"slowest step {1e3 * report.step_latency.max_s:.2f} ms")
    print(f"return {sum(summary['returns']) + summary['unfinished_return']:.1f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
