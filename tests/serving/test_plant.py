import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from serving import ControlLoop, PlantError, RemotePlant, load_policy, serve_plant, wire


class Counter:
    """A simulator whose observation counts its steps; an episode has five of them."""

    def __init__(self) -> None:
        self.time = 0
        self.actions: list[float] = []

    def reset(self):
        self.time = 0
        return {"time": np.float32(0.0), "batch": np.zeros(2, bool)}

    def step(self, action):
        self.time += 1
        self.actions.append(float(action["push"]))
        if self.actions[-1] == 13.0:
            raise ValueError("the motor is overheated")
        observation = {"time": np.float32(self.time), "batch": np.ones(2, bool)}
        return observation, np.float32(action["push"]), self.time == 5


class Server:
    """`serve_plant` on a thread, with what it returned or raised."""

    def __init__(self, address="tcp://127.0.0.1:0", **options) -> None:
        self.plant = Counter()
        self.listening = threading.Event()
        self.address = ""
        self.summary = None
        self.error: BaseException | None = None
        self.options = {"address": address, "accept_timeout_s": 20.0, **options}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        assert self.listening.wait(20.0)

    def run(self) -> None:
        try:
            self.summary = serve_plant(
                self.plant.reset, self.plant.step, on_listening=self.heard, **self.options
            )
        except BaseException as error:
            self.error = error

    def heard(self, address: str) -> None:
        self.address = address
        self.listening.set()

    def join(self) -> None:
        self.thread.join(20.0)
        assert not self.thread.is_alive()


def test_plant_and_client_move_in_lockstep_over_episodes():
    server = Server()
    began: list[int] = []
    plant = RemotePlant(server.address, on_episode=lambda: began.append(len(seen)))
    seen: list[float] = []
    for k in range(12):
        seen.append(float(plant.read()["time"]))
        plant.apply({"push": float(k)})
    summary = plant.close()
    server.join()
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert began == [0, 5, 10]
    assert server.plant.actions == [float(k) for k in range(12)]
    assert summary == {
        "steps": 12,
        "returns": [0 + 1 + 2 + 3 + 4, 5 + 6 + 7 + 8 + 9],
        "unfinished_return": 21.0,
        "closed": True,
    }
    assert server.summary is not None and server.summary.to_json() == summary
    assert plant.close() == summary
    with pytest.raises(PlantError, match="the connection is closed"):
        plant.apply({"push": 0.0})


def test_reading_twice_gives_the_same_observation_and_actions_unread_are_stepped():
    server = Server()
    with RemotePlant(server.address) as plant:
        assert plant.read()["time"] == plant.read()["time"] == 0
        plant.apply({"push": 1.0})
        plant.apply({"push": 2.0})
        assert plant.read()["time"] == 2 and plant.reward == 2.0 and not plant.episode_began
        plant.reset()
        assert plant.read()["time"] == 0 and plant.episode_began
    server.join()
    assert server.summary is not None and server.summary.closed


def test_an_episode_that_begins_between_two_reads_is_told_once():
    server, began = Server(), []
    with RemotePlant(server.address, on_episode=lambda: began.append(plant)) as plant:
        plant.read()
        assert len(began) == 1
        for _ in range(7):  # the fifth ends the episode
            plant.apply({"push": 1.0})
        assert float(plant.read()["time"]) == 2.0 and len(began) == 2
        plant.apply({"push": 1.0})
        plant.read()
        assert len(began) == 2
    server.join()


def test_a_unix_socket_serves_too_and_is_removed(tmp_path):
    server = Server(f"unix://{tmp_path}/plant")
    with RemotePlant(server.address) as plant:
        assert plant.read()["batch"].tolist() == [False, False]
    server.join()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_simulator_tells_the_client_and_raises_itself():
    server = Server()
    plant = RemotePlant(server.address)
    plant.read()
    plant.apply({"push": 13.0})
    with pytest.raises(PlantError, match="simulator failed: ValueError: the motor is overheated"):
        plant.read()
    for call in (plant.read, plant.reset, plant.close, lambda: plant.apply({"push": 0.0})):
        with pytest.raises(PlantError, match="the connection is closed"):
            call()
    server.join()
    assert isinstance(server.error, ValueError)


def test_a_client_that_vanishes_ends_the_server_with_what_was_done():
    server = Server()
    plant = RemotePlant(server.address)
    plant.read()
    plant.apply({"push": 1.0})
    plant.read()
    plant._connection.close()
    server.join()
    assert server.summary is not None
    assert (server.summary.steps, server.summary.closed) == (1, False)


@pytest.mark.parametrize("call", ["send", "receive"])
def test_an_interrupt_in_the_middle_of_a_message_ends_the_connection(call, monkeypatch):
    server = Server()
    with RemotePlant(server.address) as plant:
        plant.read()

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(wire, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                plant.apply({"push": 1.0})
                plant.read()
        # What is sent in the end waits for no answer that may never come.
        with pytest.raises(PlantError, match="the connection is closed"):
            plant.apply({"push": 0.0})
        plant._summary = {}
    server.join()


def test_an_error_in_the_loop_closes_the_connection_at_once():
    server = Server()
    with pytest.raises(RuntimeError), RemotePlant(server.address) as plant:
        plant.read()
        raise RuntimeError
    server.join()
    assert server.summary is not None and not server.summary.closed


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"kind": "hello", "version": 2}, "protocol 2, not 1"),
        ({"kind": "dance"}, "unknown message 'dance'"),
        ({"kind": "step"}, "unknown message 'step'"),
    ],
)
def test_nonsense_is_answered_with_an_error(message, error):
    server = Server()
    plant = RemotePlant(server.address)
    plant.read()
    wire.send(plant._connection, message)
    with pytest.raises(PlantError, match=error):
        plant._expect("hello")
    server.join()
    assert isinstance(server.error, PlantError)


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:80", "tcp://", "tcp://host", "tcp://host:port", "tcp://:1", "unix://"]
    + ["tcp://127.0.0.1:65536", "http://127.0.0.1:1"],
)
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(PlantError, match="expected 'tcp://host:port' or 'unix:///path'"):
        RemotePlant(address)


def test_a_server_stays_on_loopback_unless_told_otherwise():
    for host in ("0.0.0.0", "192.0.2.1", "example.org"):
        with pytest.raises(PlantError, match="not loopback; pass allow_remote=True"):
            serve_plant(lambda: 0, lambda a: (0, 0.0, False), address=f"tcp://{host}:0")


def test_nobody_there_is_said_on_either_side(tmp_path):
    with pytest.raises(PlantError, match="cannot connect: .*is the simulator"):
        RemotePlant(f"unix://{tmp_path}/nobody")
    with pytest.raises(PlantError, match="no client connected"):
        serve_plant(lambda: 0, lambda a: (0, 0.0, False), accept_timeout_s=0.05)
    with pytest.raises(PlantError, match="cannot listen"):
        serve_plant(lambda: 0, lambda a: (0, 0.0, False), address=f"unix://{tmp_path}/no/such")


def test_a_policy_acts_on_a_plant_in_another_process(bundle_path, leaky):
    """Two real processes: the simulator checks that it moves as the reference says."""
    script = """
        import numpy as np

        import serving

        rng = np.random.default_rng(0)
        time = 0

        def observe():
            return {
                "arm": {
                    "contact": rng.random(2) < 0.5,
                    "position": rng.normal(size=3).astype(np.float32),
                },
                "goal": np.float32(rng.normal()),
            }

        def reset():
            global time
            time = 0
            return observe()

        def step(action):
            global time
            time += 1
            return observe(), float(action["joints"].sum()), time == 20

        summary = serving.serve_plant(
            reset, step, on_listening=lambda a: print(a, flush=True), accept_timeout_s=30.0
        )
        print(summary.steps, summary.closed, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        session = load_policy(bundle_path).session()
        with RemotePlant(address, on_episode=session.reset) as plant:
            with pytest.warns(RuntimeWarning, match="the policy was made for"):
                loop = ControlLoop(session, plant.read, plant.apply, rate_hz=200.0)
            report = loop.run(steps=50)
            summary = plant.close()
        assert process.wait(30.0) == 0
        assert process.stdout.read().split() == ["50", "True"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert report.steps == summary["steps"] == 50 and len(summary["returns"]) == 2
    assert summary["returns"] == pytest.approx(expected_returns(leaky), abs=1e-4)


def expected_returns(leaky) -> list[float]:
    """What the simulator above must have summed up, from the reference policy."""
    rng = np.random.default_rng(0)

    def observe():
        return {
            "obs.arm.contact": (rng.random(2) < 0.5)[None],
            "obs.arm.position": rng.normal(size=3).astype(np.float32)[None],
            "obs.goal": np.array([rng.normal()], np.float32),
        }

    carry = leaky.initial_carry(1)
    returns = []
    for _ in range(2):
        carry = {**leaky.initial_carry(1), "carry.total": carry["carry.total"]}
        total = 0.0
        for _ in range(20):
            outputs = leaky.step(carry, observe())
            carry = {f"carry.{k}": outputs[f"next_carry.{k}"] for k in ("count", "hidden", "total")}
            total += float(outputs["action.joints"].sum())
        observe()  # the last one of an episode, in whose place the first of the next is sent
        returns.append(total)
    return returns
