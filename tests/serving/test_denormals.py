import threading

import numpy as np
import pytest

from serving import denormals as module
from serving import flush_denormals, load_policy


def subnormal() -> float:
    return float(np.float32(1e-38) * np.float32(0.1))


def test_subnormal_numbers_are_zero_inside_and_back_afterwards():
    assert subnormal() > 0.0
    with flush_denormals() as flushed:
        assert (subnormal() == 0.0) == flushed
    assert subnormal() > 0.0
    with pytest.raises(RuntimeError), flush_denormals():
        raise RuntimeError
    assert subnormal() > 0.0


def test_an_unknown_machine_says_that_it_does_not_flush(monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "vax")
    with flush_denormals() as flushed:
        assert not flushed
        assert subnormal() > 0.0


def test_loading_and_stepping_a_policy_leaves_the_mode_of_the_thread(bundle_path, leaky):
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    values: list[float] = []

    def act() -> None:
        load_policy(bundle_path).session().step(observation)
        values.append(subnormal())

    act()
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert len(values) == 2 and min(values) > 0.0
