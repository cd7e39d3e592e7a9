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


class FakeFenv:
    """The C library of a machine with other registers: an environment of words to get and set."""

    def __init__(self, words: list[int]) -> None:
        self.words = words
        self.history: list[list[int]] = []

    def fegetenv(self, environment) -> int:
        environment._obj.words[: len(self.words)] = self.words
        return 0

    def fesetenv(self, environment) -> int:
        self.words = list(environment._obj.words[: len(self.words)])
        self.history.append(self.words)
        return 0


@pytest.mark.parametrize(
    ("machine", "before", "inside"),
    [
        # FPCR (rounding towards zero), FPSR (inexact): only bit 24 of the first changes.
        ("aarch64", [0x00C00000, 0x10], [0x01C00000, 0x10]),
        # The x87 unit's seven words, MXCSR: only bits 6 and 15 of the last change.
        ("x86_64", [0x37F, 0, 0, 0, 0, 0, 0, 0x1F80], [0x37F, 0, 0, 0, 0, 0, 0, 0x9FC0]),
    ],
)
def test_only_the_bits_that_flush_change_and_come_back(monkeypatch, machine, before, inside):
    library = FakeFenv(list(before))
    monkeypatch.setattr(module.platform, "machine", lambda: machine)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: library)
    with flush_denormals() as flushed:
        assert library.words == inside
        assert not flushed  # measured: the real processor's mode is as it was
    assert library.words == before
    assert library.history == [inside, before]


def test_a_c_library_without_these_functions_says_that_it_does_not_flush(monkeypatch):
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: object())
    with flush_denormals() as flushed:
        assert not flushed


def test_the_mathematical_library_is_asked_where_the_process_has_not_the_functions(monkeypatch):
    real = module.ctypes.CDLL
    asked = []

    def load(name):
        asked.append(name)
        return object() if name is None else real(name)

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    with flush_denormals():
        pass
    assert asked == [None, "libm.so.6"]


def test_a_thread_started_inside_inherits_the_mode():
    values: list[float] = []
    with flush_denormals() as flushed:
        thread = threading.Thread(target=lambda: values.append(subnormal()))
        thread.start()
        thread.join()
    assert (values[0] == 0.0) == flushed


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
