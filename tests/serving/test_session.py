import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving import (
    ActionError,
    BundleWriter,
    CarryError,
    ObservationError,
    Policy,
    ServingError,
    StepError,
    load_policy,
)


@pytest.fixture(scope="module")
def policy(bundle_path) -> Policy:
    return load_policy(bundle_path)


def bits(carry: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in carry.items()}


def test_a_batch_follows_the_reference_over_two_hundred_steps(policy, leaky):
    session = policy.session(batch_size=4)
    carry = leaky.initial_carry(4)
    rng = np.random.default_rng(0)
    for _ in range(200):
        observation = leaky.observe(rng, 4)
        action = session.step(leaky.tree(observation))
        expected = leaky.step(carry, observation)
        carry = {f"carry.{k}": expected[f"next_carry.{k}"] for k in ("count", "hidden", "total")}
        np.testing.assert_allclose(action["joints"], expected["action.joints"], 1e-5, 1e-5)
        np.testing.assert_allclose(action["gripper"], expected["action.gripper"], 1e-5, 1e-5)
        for name, value in session.carry.items():
            np.testing.assert_allclose(value, carry[name], 1e-5, 1e-5)
        assert np.array_equal(session.extra_outputs["value"].shape, (4, 1))
    assert session.steps == 200
    assert session.carry["carry.count"].tolist() == [205] * 4


def test_one_robot_sees_no_batch_axis_anywhere(policy, leaky):
    session, batch = policy.session(), policy.session(batch_size=1)
    observation = leaky.observe(np.random.default_rng(1), 1)
    action = session.step(leaky.tree(observation, row=0))
    expected = batch.step(leaky.tree(observation))
    assert action["joints"].shape == (3,) and action["gripper"].shape == ()
    assert expected["joints"].shape == (1, 3) and expected["gripper"].shape == (1,)
    assert np.array_equal(action["joints"], expected["joints"][0])
    assert {k: v.shape for k, v in session.carry.items()} == {
        "carry.count": (),
        "carry.hidden": (3,),
        "carry.total": (1,),
    }


def test_actions_and_carries_given_out_are_the_callers_own(policy, leaky):
    session = policy.session()
    rng = np.random.default_rng(2)
    first = session.step(leaky.tree(leaky.observe(rng, 1), row=0))
    kept = first["joints"].copy()
    before = bits(session.carry)
    session.carry["carry.hidden"][:] = 9
    first["joints"][:] = 9
    assert bits(session.carry) == before
    second = session.step(leaky.tree(leaky.observe(rng, 1), row=0))
    second["joints"][:] = kept
    assert np.array_equal(first["joints"], [9, 9, 9])


def test_python_numbers_and_lists_are_converted(policy, leaky):
    session, other = policy.session(), policy.session()
    given = {"arm": {"contact": [True, False], "position": [1, 2.5, np.float64(3)]}, "goal": 1}
    exact = {
        "arm": {
            "contact": np.array([True, False]),
            "position": np.array([1, 2.5, 3], np.float32),
        },
        "goal": np.array(1, np.float32),
    }
    assert np.array_equal(session.step(given)["joints"], other.step(exact)["joints"])
    assert bits(session.carry) == bits(other.carry)


def test_leaves_that_only_the_critic_reads_are_ignored_whatever_they_hold(policy, leaky):
    session, other = policy.session(), policy.session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(3), 1), row=0)
    action = session.step({**observation, "privileged": "not even an array"})
    assert np.array_equal(action["joints"], other.step(observation)["joints"])


GOOD = {
    "arm": {"contact": np.zeros(2, bool), "position": np.ones(3, np.float32)},
    "goal": np.float32(0.5),
}


def arm(**change):
    return {**GOOD, "arm": {**GOOD["arm"], **change}}


BAD = {
    "missing key": ({"arm": GOOD["arm"]}, "missing obs.goal"),
    "missing nested key": ({**GOOD, "arm": {"contact": [0, 0]}}, "missing obs.arm.position"),
    "surplus key": ({**GOOD, "lidar": 1.0}, "unexpected obs.lidar"),
    "surplus nested key": (arm(speed=1.0), "unexpected obs.arm.speed"),
    "no dict": (np.zeros(6, np.float32), r"obs: expected a dict .*ndarray of shape \(6,\)"),
    "none": (None, "obs: expected a dict .*got None"),
    "wrong width": (
        arm(position=np.ones(4, np.float32)),
        r"obs.arm.position: shape \(4,\), expected \(3,\)",
    ),
    "batch axis": (
        arm(position=np.ones((1, 3), np.float32)),
        r"obs.arm.position: shape \(1, 3\), expected \(3,\)",
    ),
    "scalar for vector": (arm(position=1.0), r"obs.arm.position: shape \(\), expected \(3,\)"),
    "wrong width list": (arm(position=[1, 2]), r"obs.arm.position: shape \(2,\)"),
    "ragged list": (arm(position=[1, [2, 3]]), "obs.arm.position: cannot be made an array"),
    "float64": (
        arm(position=np.ones(3)),
        r"obs.arm.position: dtype float64, expected float32; convert .*astype\(np.float32\)",
    ),
    "big endian": (arm(position=np.ones(3, ">f4")), "obs.arm.position: dtype >f4"),
    "float for bool": (arm(contact=[0.0, 1.0]), "obs.arm.contact: list of float64, .*bool"),
    "integers for bool": (arm(contact=np.zeros(2, np.int8)), "obs.arm.contact: dtype int8"),
    "bool for float": (arm(position=[True] * 3), "obs.arm.position: list of bool"),
    "text": (arm(position=["1", "2", "3"]), "obs.arm.position: list of <U1"),
    "object": (arm(position=[None] * 3), "obs.arm.position: list of object"),
    "complex": (arm(position=[1j, 1, 1]), "obs.arm.position: list of complex128"),
    "NaN": (
        arm(position=np.array([1, np.nan, 1], np.float32)),
        r"obs.arm.position: nan at index \[1\]",
    ),
    "mask": (
        arm(position=np.ma.masked_less(np.array([1, 2, 3], np.float32), 2)),
        r"obs.arm.position: is a masked array.*\.filled",
    ),
    "infinity": ({**GOOD, "goal": float("-inf")}, r"obs.goal: -inf at index \[\]"),
    "too large for float32": ({**GOOD, "goal": 1e300}, "obs.goal: inf at index"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_observation_names_the_leaf_and_leaves_the_carry(policy, name):
    observation, message = BAD[name]
    session = policy.session()
    session.step(GOOD)
    before = bits(session.carry)
    with pytest.raises(ObservationError, match=message):
        session.step(observation)
    assert bits(session.carry) == before
    assert session.steps == 1
    twin = policy.session()
    twin.step(GOOD)
    assert np.array_equal(session.step(GOOD)["joints"], twin.step(GOOD)["joints"])


def test_a_bad_row_of_a_batch_is_named(policy, leaky):
    session = policy.session(batch_size=3)
    observation = leaky.tree(leaky.observe(np.random.default_rng(4), 3))
    observation["arm"]["position"][2, 1] = np.nan
    with pytest.raises(ObservationError, match=r"obs.arm.position: nan at index \[2, 1\]"):
        session.step(observation)
    with pytest.raises(ObservationError, match=r"expected \(3, 2\) \(a batch of 3 rows\)"):
        session.step(leaky.tree(leaky.observe(np.random.default_rng(4), 2)))


def test_the_check_for_finite_numbers_can_be_left_out(policy, leaky):
    session = policy.session(check_finite=False)
    action = session.step({**GOOD, "goal": float("nan")})
    assert np.isnan(action["gripper"])


def test_arrays_of_another_library_are_taken_with_their_own_dtype(policy):
    import jax.numpy as jnp

    session, twin = policy.session(), policy.session()
    action = session.step(arm(position=jnp.ones(3, jnp.float32)))
    assert np.array_equal(action["joints"], twin.step(GOOD)["joints"])
    with pytest.raises(ObservationError, match="obs.arm.position: dtype int32"):
        session.step(arm(position=jnp.ones(3, jnp.int32)))


def test_a_runtime_that_fails_in_mid_step_leaves_the_carry(policy, leaky, monkeypatch):
    session, twin = policy.session(batch_size=2), policy.session(batch_size=2)
    rng = np.random.default_rng(5)
    observations = [leaky.tree(leaky.observe(rng, 2)) for _ in range(4)]
    for observation in observations[:2]:
        session.step(observation)
        twin.step(observation)
    before = bits(session.carry)
    real = session._step.run

    def fail_at_the_end():
        real()  # all outputs are written by now, the next carry too
        raise RuntimeError("device lost")

    monkeypatch.setattr(session._step, "run", fail_at_the_end)
    with pytest.raises(StepError, match="the runtime failed in step 2: device lost; the carry"):
        session.step(observations[2])
    assert bits(session.carry) == before and session.steps == 2
    monkeypatch.undo()
    for observation in observations[2:]:
        assert np.array_equal(session.step(observation)["joints"], twin.step(observation)["joints"])
    assert bits(session.carry) == bits(twin.carry)


@pytest.mark.parametrize("failure", [RuntimeError("device lost"), KeyboardInterrupt()])
def test_a_reset_in_a_step_that_fails_is_undone(policy, leaky, monkeypatch, failure):
    session = policy.session(batch_size=2)
    observation = leaky.tree(leaky.observe(np.random.default_rng(5), 2))
    session.step(observation)
    before = bits(session.carry)

    def fail():
        raise failure

    monkeypatch.setattr(session._step, "run", fail)
    with pytest.raises((StepError, KeyboardInterrupt)):
        session.step(observation, reset=[True, False])
    assert bits(session.carry) == before and not session._step.reset.any()
    with pytest.raises(CarryError, match="rows"):
        session.step(observation, reset=[True])
    monkeypatch.undo()
    session.step(observation, reset=[True, False])
    assert session.carry["carry.count"].tolist() == [6, 7]


def test_an_interrupt_in_mid_step_leaves_the_carry(policy, monkeypatch):
    session = policy.session()
    session.step(GOOD)
    before = bits(session.carry)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(session._step, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.step(GOOD)
    assert bits(session.carry) == before


@pytest.mark.parametrize(
    "rows",
    [
        np.array([False, True, False, True]),
        [False, True, False, True],
        np.array([1, 3]),
        [3, 1],
        (1, 3, 3),
        np.array([1, 3], np.uint8),
    ],
)
def test_reset_rows_equal_a_fresh_carry_and_others_go_on(policy, leaky, rows):
    session, twin = policy.session(batch_size=4), policy.session(batch_size=4)
    fresh = policy.session(batch_size=4)
    rng = np.random.default_rng(6)
    for _ in range(10):
        observation = leaky.tree(leaky.observe(rng, 4))
        session.step(observation)
        twin.step(observation)
    session.reset(rows)
    after, untouched, initial = session.carry, twin.carry, fresh.carry
    for name in ("carry.count", "carry.hidden"):
        assert np.array_equal(after[name][[1, 3]], initial[name][[1, 3]])
        assert np.array_equal(after[name][[0, 2]], untouched[name][[0, 2]])
    assert np.array_equal(after["carry.total"], untouched["carry.total"])
    observation = leaky.tree(leaky.observe(rng, 4))
    joints = session.step(observation)["joints"]
    assert np.array_equal(joints[[1, 3]], fresh.step(observation)["joints"][[1, 3]])
    assert np.array_equal(joints[[0, 2]], twin.step(observation)["joints"][[0, 2]])


def test_reset_without_rows_gives_the_same_actions_as_a_fresh_session(policy, leaky):
    session, fresh = policy.session(), policy.session()
    rng = np.random.default_rng(8)
    for _ in range(10):
        session.step(leaky.tree(leaky.observe(rng, 1), row=0))
    session.reset()
    for _ in range(10):
        observation = leaky.tree(leaky.observe(rng, 1), row=0)
        joints = session.step(observation)["joints"]
        assert np.array_equal(joints, fresh.step(observation)["joints"])


def test_resetting_no_row_changes_nothing(policy):
    session = policy.session(batch_size=2)
    session.carry = {**session.carry, "carry.count": np.array([8, 9], np.int32)}
    for rows in ([], np.zeros(2, bool), np.zeros(0, np.int64)):
        session.reset(rows)
    assert session.carry["carry.count"].tolist() == [8, 9]
    session.reset(1)
    assert session.carry["carry.count"].tolist() == [8, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([True], r"a mask of shape \(1,\), expected \(2,\)"),
        (np.ones((2, 1), bool), "a mask of shape"),
        (True, "a mask of shape"),
        ([2], r"\[2\] has a row outside 0..1"),
        (-1, "-1 has a row outside"),
        ([0.0], "float64 of shape"),
        (["a"], "<U1 of shape"),
        ([[0], [1]], r"int64 of shape \(2, 1\)"),
        (np.zeros(0), "float64 of shape"),
        ([[0], 1], "inhomogeneous shape"),
    ],
)
def test_rows_that_do_not_exist_are_refused(policy, rows, message):
    session = policy.session(batch_size=2)
    before = bits(session.carry)
    with pytest.raises(CarryError, match=f"rows: .*{message}"):
        session.reset(rows)
    assert bits(session.carry) == before


def test_a_carry_set_again_continues_as_before(policy, leaky):
    session, other = policy.session(batch_size=3), policy.session(batch_size=3)
    rng = np.random.default_rng(9)
    for _ in range(7):
        session.step(leaky.tree(leaky.observe(rng, 3)))
    other.carry = session.carry
    assert bits(other.carry) == bits(session.carry)
    observation = leaky.tree(leaky.observe(rng, 3))
    assert np.array_equal(other.step(observation)["joints"], session.step(observation)["joints"])


def test_one_robot_takes_a_carry_with_or_without_a_batch_axis_of_one(policy):
    session = policy.session()
    session.step(GOOD)
    carry = session.carry
    other = policy.session()
    other.carry = {name: value[None] for name, value in carry.items()}
    assert bits(other.carry) == bits(carry)
    other.reset()
    other.carry = carry
    assert bits(other.carry) == bits(carry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {}, "'carry.count' is missing"),
        (lambda c: {**c, "x": np.zeros(2)}, "unexpected tensor 'x'"),
        (lambda c: {**c, "carry.total": np.zeros((2, 1))}, "'carry.total' has dtype float64"),
        (lambda c: {**c, "carry.total": np.zeros((3, 1), "f4")}, r"has shape \(3, 1\)"),
        (lambda c: {**c, "carry.total": np.zeros(1, "f4")}, r"has shape \(1,\)"),
        (lambda c: [1], "expected a dict by port name, got list"),
        (lambda c: {**c, "carry.total": [[1.0], 2.0]}, "a value is no array of numbers"),
        (
            lambda c: {**c, "carry.total": np.array([[1.0], [np.nan]], "f4")},
            r"'carry.total' is nan at index \[1, 0\]",
        ),
        (
            lambda c: {**c, "carry.total": np.array([[-np.inf], [0.0]], "f4")},
            r"'carry.total' is -inf at index \[0, 0\]",
        ),
        (
            lambda c: {**c, "carry.total": np.ma.masked_less(c["carry.total"], 9)},
            r"'carry.total' is a masked array.*\.filled",
        ),
    ],
)
def test_a_carry_that_does_not_fit_is_refused_as_a_whole(policy, change, message):
    session = policy.session(batch_size=2)
    before = bits(session.carry)
    moved = {name: value + 1 for name, value in session.carry.items()}
    with pytest.raises(CarryError, match=message):
        session._set_carry(change(moved), "carry")
    assert bits(session.carry) == before


def test_what_is_not_finite_in_a_fresh_carry_may_be_so_in_any(leaky, tmp_path):
    initial = {
        "carry.count": np.array(0, np.int32),
        "carry.hidden": np.array([np.inf, np.nan, 0.0], np.float32),
        "carry.total": np.zeros(1, np.float32),
    }
    with BundleWriter(tmp_path / "policy") as writer:
        (writer.path / "onnx").mkdir()
        (writer.path / "onnx" / "policy.onnx").write_bytes(leaky.onnx_model().SerializeToString())
        writer.commit(leaky.manifest(), initial, leaky.golden())
    session = load_policy(tmp_path / "policy").session(batch_size=2)
    fresh = session.carry
    session.carry = fresh
    assert bits(session.carry) == bits(fresh)
    for index, value in [((0, 0), -np.inf), ((1, 1), np.inf), ((1, 2), np.inf)]:
        changed = {name: array.copy() for name, array in fresh.items()}
        changed["carry.hidden"][index] = value
        with pytest.raises(CarryError, match=f"{value} at index \\[{index[0]}, {index[1]}\\]"):
            session.carry = changed


def test_a_session_that_checks_nothing_takes_any_carry(policy):
    session = policy.session(check_finite=False)
    session.carry = {**session.carry, "carry.total": np.array([np.nan], np.float32)}
    assert np.isnan(session.carry["carry.total"]).all()


def test_a_saved_carry_that_is_not_finite_is_not_restored(policy, tmp_path):
    session, other = policy.session(check_finite=False), policy.session()
    session.step({**GOOD, "goal": float("nan")})
    session.save_carry(tmp_path / "carry")
    before = bits(other.carry)
    with pytest.raises(CarryError, match="carry: 'carry.total' is nan"):
        other.restore_carry(tmp_path / "carry")
    assert bits(other.carry) == before


def test_a_name_that_no_file_can_have_is_one_clear_error(policy, tmp_path):
    session = policy.session()
    with pytest.raises(CarryError, match="cannot be written: .*null"):
        session.save_carry(str(tmp_path / "a\0b"))
    with pytest.raises(CarryError, match="cannot be read: .*null"):
        session.restore_carry(str(tmp_path / "a\0b"))
    assert list(tmp_path.iterdir()) == []


def test_a_saved_carry_continues_in_another_session(policy, leaky, tmp_path):
    session, other = policy.session(batch_size=3), policy.session(batch_size=3)
    rng = np.random.default_rng(10)
    for _ in range(5):
        session.step(leaky.tree(leaky.observe(rng, 3)))
    session.save_carry(tmp_path / "carry.safetensors")
    other.restore_carry(tmp_path / "carry.safetensors")
    assert bits(other.carry) == bits(session.carry)
    assert [path.name for path in tmp_path.iterdir()] == ["carry.safetensors"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_of_many_who_save_a_carry_at_once_one_does(policy, tmp_path, monkeypatch, hard_links):
    """Also of those who have all looked before there was a file."""

    def no_link(*_):
        raise PermissionError("no hard links on this disk")

    if not hard_links:
        monkeypatch.setattr("os.link", no_link)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    sessions = [policy.session() for _ in range(8)]
    for count, session in enumerate(sessions):
        for _ in range(count):
            session.step(GOOD)

    def save(session):
        try:
            session.save_carry(tmp_path / "carry")
        except CarryError as error:
            assert "exists already; pass overwrite=True" in str(error)
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        saved = list(pool.map(save, sessions))
    assert sum(saved) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["carry"]
    other = policy.session(batch_size=1)
    other.restore_carry(tmp_path / "carry")
    assert other.carry["carry.count"].tolist() == [5 + saved.index(True)]


def test_a_saved_carry_is_not_overwritten_unasked(policy, tmp_path):
    session = policy.session()
    session.save_carry(tmp_path / "carry")
    with pytest.raises(CarryError, match="carry: exists already; pass overwrite=True"):
        session.save_carry(tmp_path / "carry")
    session.step(GOOD)
    session.save_carry(tmp_path / "carry", overwrite=True)
    other = policy.session(batch_size=1)
    other.restore_carry(tmp_path / "carry")
    assert other.carry["carry.count"].tolist() == [6]


def test_a_carry_file_that_does_not_fit_is_refused(policy, tmp_path):
    session = policy.session(batch_size=2)
    before = bits(session.carry)
    policy.session(batch_size=3).save_carry(tmp_path / "three")
    (tmp_path / "text").write_text("not tensors")
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(2**30)
    for name, message in {
        "three": r"three: tensor 'carry.count' has shape \(3,\), expected \(2,\)",
        "text": "text: not a valid safetensors file",
        "huge": "huge: 1073741824 bytes, but the carry takes 40",
        "nowhere": "nowhere: cannot be read",
    }.items():
        with pytest.raises(CarryError, match=message):
            session.restore_carry(tmp_path / name)
    with pytest.raises(CarryError, match="cannot be written"):
        session.save_carry(tmp_path / "text" / "carry")
    assert bits(session.carry) == before


def test_sessions_on_threads_of_their_own_do_not_mix(policy, leaky):
    steps, count = 300, 6
    results: dict[int, np.ndarray] = {}

    def act(seed: int) -> None:
        session = policy.session(batch_size=2)
        rng = np.random.default_rng(seed)
        joints = [session.step(leaky.tree(leaky.observe(rng, 2)))["joints"] for _ in range(steps)]
        results[seed] = np.stack(joints)

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = dict(results)
    for seed in range(count):
        act(seed)
        assert np.array_equal(results[seed], together[seed])


def test_one_session_shared_by_threads_takes_every_step_once(policy):
    session = policy.session()

    def act() -> None:
        for _ in range(100):
            session.step(GOOD)

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.steps == 400
    assert session.carry["carry.count"] == 405
    np.testing.assert_allclose(session.carry["carry.total"], [1.5 + 400 * 0.5])


@pytest.mark.parametrize("batch_size", [0, -1, True])
def test_a_batch_size_that_is_none_is_refused(policy, batch_size):
    with pytest.raises(ServingError, match="batch_size is .*, expected None or an integer above 0"):
        policy.session(batch_size)


def overflowing(leaky):
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    observation["arm"]["position"] = np.array([3e38, -3e38, 3e38], np.float32)
    return observation


def test_a_step_whose_outputs_are_not_finite_is_refused_if_that_is_checked(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    before = session.carry
    with pytest.raises(ActionError, match=r"gave inf for next_carry.hidden at index \[0, 2\]"):
        session.step(overflowing(leaky), check_outputs=True)
    assert session.steps == 0
    for name, value in session.carry.items():
        np.testing.assert_array_equal(value, before[name])
    session.step(overflowing(leaky))
    assert session.steps == 1 and np.isinf(session.carry["carry.hidden"]).any()


def test_an_action_that_is_not_finite_is_refused_with_a_reset_undone(
    bundle_path, leaky, monkeypatch
):
    session = load_policy(bundle_path).session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    session.step(observation)
    before = session.carry
    run = session._step.run

    def spoiled():
        run()
        session._step.action[1][0, 1] = np.nan

    monkeypatch.setattr(session._step, "run", spoiled)
    with pytest.raises(ActionError, match=r"gave nan for action.joints at index \[0, 1\]"):
        session.step(observation, reset=[0], check_outputs=True)
    for name, value in session.carry.items():
        np.testing.assert_array_equal(value, before[name])


def test_changes_of_the_carry_beside_steps_are_counted(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    session.step(observation)
    assert session.carry_changes == 0
    session.reset()
    session.carry = session.carry
    session.step(observation, reset=[0])
    assert session.carry_changes == 3


def test_what_a_step_used_can_be_copied_out_without_allocating(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    observed = leaky.observe(np.random.default_rng(0), 1)
    ports = session.manifest
    memory = {
        kind: [np.zeros((1, *port.shape), port.dtype) for port in kind_ports]
        for kind, kind_ports in (
            ("carry", ports.carry_ports),
            ("observation", ports.observation_ports),
            ("action", ports.action_ports),
        )
    }
    action = session.step(leaky.tree(observed, row=0))
    session.copy_into(**memory)
    for port, value in zip(ports.observation_ports, memory["observation"], strict=True):
        np.testing.assert_array_equal(value, observed[port.name])
    for port, value in zip(ports.carry_ports, memory["carry"], strict=True):
        np.testing.assert_array_equal(value[0], session.carry[port.name])
    np.testing.assert_array_equal(memory["action"][1][0], action["joints"])
