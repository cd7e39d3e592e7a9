import math

import numpy as np
import pytest
from msgspec import structs

from serving import tree
from serving.control.actions import ActionGuard, ActionPath
from serving.control.faults import Fault
from serving.errors import LoopError
from serving.manifest import Manifest, NetworkCarry, Port, metadata_from


class Session:
    """What an action path asks of a session: what an action is."""

    def __init__(self, batch_size: int | None = None, **metadata: object) -> None:
        ports = [
            Port("action.grip", ["grip"], [], "int32"),
            Port("action.joints", ["joints"], [2], "float32"),
        ]
        leaves = [tree.Leaf(port.name, port.shape, port.dtype) for port in ports]
        self.batch_size = batch_size
        self.manifest = Manifest(
            name="arm",
            batch_size=None,
            control_rate_hz=None,
            observation=tree.Leaf("obs", [1], "float32"),
            action=tree.Dict(["grip", "joints"], leaves),
            observation_ports=[Port("obs", [], [1], "float32")],
            carry_ports=[],
            action_ports=ports,
            extra_output_ports=[],
            network_carry=NetworkCarry(tree.Nothing(), []),
            metadata=metadata_from(metadata),
            versions={},
            git_commit=None,
            artefacts={},
        )


def action(*joints: float, grip: int = 0) -> dict[str, object]:
    return {"grip": np.int32(grip), "joints": np.array(joints, np.float32)}


def path_for(session: Session | None = None, rate_hz: float = 100.0, **guard) -> ActionPath:
    return ActionPath(session or Session(), ActionGuard(**guard), rate_hz=rate_hz)


def follow(path: ActionPath, given: dict, share: float = 1.0) -> list[float]:
    path.take(given)
    return [float(x) for x in path.follow(share)["joints"]]


def test_an_action_that_needs_no_change_is_passed_on_as_it_is():
    given = action(0.1, -0.2)
    path = path_for(low=-1.0, high=1.0, rate_limit_per_s=1e6)
    assert path.take(given) is False
    assert path.follow(1.0) is given
    # The next one is made anew: whoever got the first may have kept it.
    again = path.follow(1.0)
    assert again["joints"] is not given["joints"]
    np.testing.assert_array_equal(again["joints"], given["joints"])
    assert again["joints"].dtype == np.float32


def test_an_action_out_of_range_is_limited_to_what_its_dtype_can_say():
    path = path_for(low=[0.0, -0.1, -0.1], high=[0.0, 0.1, 0.3])
    assert path.take(action(0.5, -0.5, grip=7)) is True
    sent = path.follow(1.0)
    assert sent["grip"] == 7  # integers have no values in between and are left alone
    assert sent["joints"].dtype == np.float32
    # float32(0.1) lies above 0.1.
    assert 0.0999999 < float(sent["joints"][0]) <= 0.1
    assert -0.1 <= float(sent["joints"][1]) < -0.0999999
    assert path.take(action(0.05, 0.0)) is False


def test_limits_come_from_the_metadata_unless_they_are_given():
    session = Session(action_low=-1.0, action_high=[0, 2, 3])
    assert follow(path_for(session), action(-5, 5)) == [-1.0, 3.0]
    assert follow(path_for(session, high=0.5), action(-5, 5)) == [-1.0, 0.5]


def test_scaling_of_the_metadata_is_applied_on_request_and_never_twice():
    scales = {"action_scale": 2.0, "action_offset": [0, 1, -1], "action_high": 4.0}
    by_robot = Session(**scales, action_applied_by="robot")
    assert follow(path_for(by_robot), action(1, 9)) == [1.0, 9.0]
    assert follow(path_for(by_robot, scale=True), action(1, 9)) == [3.0, 4.0]
    by_policy = Session(**scales, action_applied_by="policy")
    assert follow(path_for(by_policy, scale=True), action(1, 9)) == [1.0, 4.0]


def test_a_safe_action_in_other_units_than_apply_gets_is_not_used_and_this_is_said():
    session = Session(action_scale=2.0, safe_action=1.0)
    with pytest.warns(RuntimeWarning, match="safe_action is not used"):
        assert not path_for(session).has_safe_action
    assert path_for(session, scale=True).safe()["joints"].tolist() == [1.0, 1.0]
    assert path_for(session, safe_action=action(3, 4)).safe()["joints"].tolist() == [3.0, 4.0]


def test_the_rate_limit_is_per_second_and_the_first_action_is_free():
    path = path_for(rate_hz=10.0, rate_limit_per_s=[1.0, 1.0, 5.0])
    assert follow(path, action(1, 1)) == [1.0, 1.0]
    assert follow(path, action(0, 0)) == pytest.approx([0.9, 0.5])
    assert [float(x) for x in path.follow(1.0)["joints"]] == pytest.approx([0.8, 0.0])
    assert path.rate_limited == 2
    assert follow(path, action(0.75, 0.0)) == [0.75, 0.0]
    assert path.rate_limited == 2


def test_interpolation_is_linear_from_the_action_sent_last():
    path = path_for()
    assert follow(path, action(0, 8), 0.25) == [0.0, 8.0]
    path.take(action(4, 0))
    sent = [path.follow(share)["joints"].tolist() for share in (0.25, 0.5, 0.75, 1.0)]
    assert sent == [[1.0, 6.0], [2.0, 4.0], [3.0, 2.0], [4.0, 0.0]]
    # A new action in mid-way begins where the way was left.
    path.take(action(0, 0))
    path.follow(0.5)
    path.take(action(0, 0))
    assert path.follow(0.5)["joints"].tolist() == [1.0, 0.0]


def test_the_ramp_to_the_safe_action_takes_equal_steps_and_ends_there():
    path = path_for(rate_hz=10.0, ramp_s=0.4, safe_action=action(0, 0, grip=9))
    follow(path, action(4, 8, grip=1))
    sent = []
    for done in (False, False, False, True, True):
        step = path.safe()
        sent.append(step["joints"].tolist())
        assert step["grip"] == 9 and path.ramp_is_done is done
    assert sent == [[3.0, 6.0], [2.0, 4.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    # Back to the policy, and the next ramp begins where that is.
    follow(path, action(8, 8))
    assert path.safe()["joints"].tolist() == [6.0, 6.0]


def test_the_ramp_ends_also_while_the_policy_goes_on_giving_actions():
    path = path_for(rate_hz=10.0, ramp_s=0.4, safe_action=0.0, high=8.0)
    follow(path, action(4, 8))
    sent = []
    for _ in range(5):
        assert path.take(action(4, 9)) is True
        sent.append(path.safe()["joints"].tolist())
    assert sent == [[3.0, 6.0], [2.0, 4.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_safe_action_before_any_other_is_sent_at_once():
    path = path_for(ramp_s=1.0, safe_action=0.5)
    assert path.safe()["joints"].tolist() == [0.5, 0.5] and path.ramp_is_done


def test_holding_sends_the_same_values_in_new_arrays():
    path = path_for(high=2.0)
    follow(path, action(1, 5, grip=3))
    first, second = path.hold(), path.hold()
    assert first["joints"].tolist() == second["joints"].tolist() == [1.0, 2.0]
    assert first["joints"] is not second["joints"] and first["grip"] == 3


def test_whoever_changes_what_was_applied_changes_nothing_that_is_sent_later():
    given = {"grip": np.array(3, np.int32), "joints": np.array([1, 2], np.float32)}
    path = path_for(safe_action={"grip": np.array(9, np.int32), "joints": np.zeros(2)})
    path.take(given)
    applied = path.follow(1.0)
    applied["grip"][...] = 77
    applied["joints"][...] = 77
    held = path.hold()
    assert held["grip"] == 3 and held["joints"].tolist() == [1.0, 2.0]
    path.safe()["grip"][...] = 77
    assert path.safe()["grip"] == 9


def test_what_was_dropped_is_not_sent_but_what_was_sent_last():
    path = path_for(safe_action=0.5)
    follow(path, action(1, 2, grip=1))
    path.take(action(7, 8, grip=7))
    path.drop_newest(is_safe=False)
    sent = path.follow(0.5)
    assert sent["joints"].tolist() == [1.0, 2.0] and sent["grip"] == 1
    path.take(action(7, 8, grip=7))
    path.drop_newest(is_safe=True)
    assert path.follow(1.0)["joints"].tolist() == [0.5, 0.5]
    assert path.sent.tolist() == [0.5, 0.5]


def test_a_new_run_counts_and_sends_nothing_of_the_one_before():
    path = path_for(rate_limit_per_s=1.0)
    follow(path, action(1, 2))
    follow(path, action(3, 4))
    assert path.rate_limited == 1 and path.sent.any()
    path.restart()
    assert path.rate_limited == 0 and not path.sent.any()


def test_a_whole_number_before_others_leaves_the_limits_on():
    path = ActionPath(object(), ActionGuard(high=3.0), rate_hz=1.0)
    assert path.take(0) is False and path.follow(1.0) == 0.0
    assert path.take(5.7) is True and path.follow(1.0) == 3.0
    with pytest.raises(Fault, match="element 0 is nan"):
        path.take(math.nan)


def test_rows_of_a_batch_are_limited_alike():
    path = path_for(Session(batch_size=3, action_high=[0, 1, 2]), safe_action=-1.0)
    given = {"grip": np.zeros(3, np.int32), "joints": np.full((3, 2), 9.0, np.float32)}
    assert path.take(given) is True
    assert path.follow(1.0)["joints"].tolist() == [[1.0, 2.0]] * 3
    assert path.safe()["joints"].tolist() == [[-1.0, -1.0]] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_action_that_is_not_finite_is_refused(value):
    path = path_for()
    follow(path, action(1, 2))
    with pytest.raises(Fault, match="element 1 is") as raised:
        path.take(action(0, value))
    assert raised.value.kind == "action_invalid"
    assert path.hold()["joints"].tolist() == [1.0, 2.0]


def test_a_number_that_overflows_the_dtype_it_is_sent_in_is_refused():
    path = path_for(Session(action_scale=1e38), scale=True)
    assert follow(path, action(1, 2)) == pytest.approx([1e38, 2e38])
    with pytest.raises(
        Fault, match="element 1 is 7e[+]38, beyond what its dtype can say"
    ) as raised:
        path.take(action(1, 7))
    assert raised.value.kind == "action_invalid"
    # Within its limits it is sent.
    limited = path_for(Session(action_scale=1e38), scale=True, high=3e38)
    assert follow(limited, action(1, 7)) == pytest.approx([1e38, 3e38])


def test_limits_that_no_element_of_a_manifests_action_has_are_refused():
    session = Session()
    (grip, _), only = session.manifest.action_ports, tree.Leaf("action.grip", [], "int32")
    session.manifest = structs.replace(
        session.manifest, action=tree.Dict(["grip"], [only]), action_ports=[grip]
    )
    for guard in ({"low": 0.0}, {"high": 1.0}, {"rate_limit_per_s": 1.0}):
        with pytest.raises(LoopError, match="integers and booleans only, which are not limited"):
            path_for(session, **guard)
    assert path_for(session).take({"grip": np.int32(3)}) is False
    metadata = metadata_from({"action_high": 1.0})
    session.manifest = structs.replace(session.manifest, metadata=metadata)
    with pytest.warns(RuntimeWarning, match="not limited: those of the bundle's metadata"):
        path_for(session)


def test_limits_that_an_action_without_a_manifest_cannot_have_are_a_fault_at_the_first():
    with pytest.raises(Fault, match="integers and booleans only") as raised:
        ActionPath(object(), ActionGuard(high=3.0), rate_hz=1.0).take(np.arange(3))
    assert raised.value.kind == "action_invalid"


def test_numbers_and_arrays_of_a_session_without_a_manifest_can_be_limited():
    path = ActionPath(object(), ActionGuard(high=3.0, safe_action=0.0), rate_hz=1.0)
    assert path.safe() == 0.0
    assert path.take(5.0) is True
    assert path.follow(1.0) == 3.0
    assert path.safe() == 0.0
    with pytest.raises(Fault, match="limits are not known"):
        ActionPath(object(), ActionGuard(high=3.0), rate_hz=1.0).take("go")


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ({"low": [1.0, 2.0]}, "low: .* 2 numbers, but the action has 3"),
        ({"low": 2.0, "high": 1.0}, "low is above high"),
        ({"low": math.nan}, "low is nan, expected numbers; .* an infinity"),
        ({"low": math.inf}, "low is inf, which leaves no finite number"),
        ({"high": -1e39}, "high is -1e[+]39, which leaves no finite number"),
        ({"safe_action": 1e39}, "expected finite numbers of its dtype"),
        ({"high": {"action.grip": 1.0, "action.joints": [1.0, math.nan]}}, "high is .*nan"),
        ({"rate_limit_per_s": 0.0}, "rate_limit_per_s is 0.0, expected above 0"),
        ({"safe_action": math.nan}, "expected finite numbers"),
        ({"safe_action": {"joints": np.zeros(2)}}, "missing action.grip"),
        ({"ramp_s": -1.0}, "ramp_s is -1.0, expected at least 0"),
    ],
)
def test_guards_that_do_not_fit_the_action_are_refused(guard, message):
    with pytest.raises(LoopError, match=message):
        path_for(**guard)
