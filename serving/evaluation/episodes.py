"""Whole episodes of a policy in Gymnasium environments."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from serving.errors import EvaluationError
from serving.evaluation.report import Episode, EvaluationReport
from serving.evaluation.spaces import ActionAdapter, ActionMode, ObservationAdapter
from serving.extras import import_extra
from serving.policy import Policy
from serving.session import Session


def evaluate_policy(
    policy: Policy,
    environment: Any,
    *,
    episodes: int = 10,
    seed: int = 0,
    num_envs: int = 1,
    max_steps: int | None = None,
    actions: ActionMode = "clip",
    observe: Callable[[Any], Any] | None = None,
    act: Callable[[Any], Any] | None = None,
    environment_arguments: dict[str, Any] | None = None,
) -> EvaluationReport:
    """Has a policy act in whole episodes and reports their returns.

    Needs the extra `gymnasium`. Environments are stepped together, each being a row of one session,
    whose carry is reset where an episode begins. Episode k begins with seed `seed + k`, whatever
    the number of environments, so more of them give the same episodes sooner. A vector environment
    that resets itself ("next step" or "same step") is given `seed`; its row i runs episode i and
    goes on from there, and as many episodes as its share is.

    Example:
        report = evaluate_policy(load_policy("policy/"), "Pendulum-v1", episodes=100, num_envs=10)
        print(report.mean_return, report.standard_error)

    Args:
        policy: a loaded policy; one with a fixed batch size needs as many environments.
        environment: the ID of a registered environment; a function that makes one; an environment;
            or a vector environment. What is given as an object is not closed.
        episodes: number of whole episodes.
        seed: of the first episode.
        num_envs: environments stepped together, if this function makes them.
        max_steps: steps after which an episode is cut; None leaves that to the environment.
        actions: "clip" limits actions to the bounds of the action space; "rescale" maps -1..1 to
            them, for a policy trained with normalized actions.
        observe: converts a batched observation to the policy's tree; None if the spaces fit.
        act: converts a batched action to the environment's; None if the spaces fit.
        environment_arguments: of the environment, with an ID or a function.

    Returns:
        The episodes in the order in which they were begun.

    Raises:
        EvaluationError: if the spaces do not fit the policy, or an argument is wrong.
        ObservationError: if the environment gives values that are not finite.
        RuntimeUnavailableError: if Gymnasium is not installed.
    """
    counts: dict[str, Any] = {"episodes": episodes, "num_envs": num_envs}
    if max_steps is not None:
        counts["max_steps"] = max_steps
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise EvaluationError(f"{name} is {count!r}, expected an integer of at least 1")
    if type(seed) is not int or seed < 0:
        raise EvaluationError(f"seed is {seed!r}, expected an integer of at least 0")
    gymnasium = import_extra("gymnasium", extra="gymnasium", what="evaluate_policy")
    arguments = environment_arguments or {}
    with _vectorized(gymnasium, environment, min(num_envs, episodes), arguments) as (vector, name):
        observing: Callable[[Any], Any] = observe or ObservationAdapter(
            policy.manifest, vector.single_observation_space
        )
        adapter = None
        if act is None:
            adapter = ActionAdapter(policy.manifest, vector.single_action_space, actions)
        acting: Any = adapter or act
        session = policy.session(batch_size=vector.num_envs)
        run = _Run(vector, session, observing, acting, seed, max_steps)
        mode = getattr(vector.metadata.get("autoreset_mode"), "name", None)
        if mode == "DISABLED":
            found = run.reset_by_us(episodes)
        elif mode in ("NEXT_STEP", "SAME_STEP"):
            if max_steps is not None:
                raise EvaluationError(
                    "max_steps is given, but the vector environment resets itself; make it with "
                    "AutoresetMode.DISABLED, or with a TimeLimit"
                )
            found = run.reset_by_itself(episodes, same_step=mode == "SAME_STEP")
        else:
            raise EvaluationError(
                f"{name}: its metadata says autoreset_mode={mode!r}; expected one of "
                "gymnasium.vector.AutoresetMode"
            )
    clipped = 0.0
    if adapter is not None and adapter.elements:
        clipped = adapter.clipped / adapter.elements
    return EvaluationReport(
        policy=policy.name,
        runtime=policy.runtime_name,
        environment=name,
        seed=seed,
        num_envs=session.batch_size or 1,
        episodes=tuple(found),
        clipped_share=clipped,
    )


class _Run:
    """A session and a vector environment on their way through episodes."""

    def __init__(
        self,
        vector: Any,
        session: Session,
        observe: Callable[[Any], Any],
        act: Callable[[Any], Any],
        seed: int,
        max_steps: int | None,
    ) -> None:
        self._vector = vector
        self._session = session
        self._observe = observe
        self._act = act
        self._seed = seed
        self._max_steps = math.inf if max_steps is None else max_steps
        self._rows: int = vector.num_envs
        self._returns = np.zeros(self._rows)
        self._lengths = np.zeros(self._rows, np.int64)

    def reset_by_us(self, episodes: int) -> list[Episode]:
        """Runs episodes each of which begins with its own seed; a free row takes the next one."""
        found: dict[int, Episode] = {}
        waiting = deque(range(self._rows, episodes))
        running: list[int | None] = [k if k < episodes else None for k in range(self._rows)]
        observation, _ = self._vector.reset(seed=[self._seed + row for row in range(self._rows)])
        while len(found) < episodes:
            observation, terminated, truncated = self._step(observation)
            ended = terminated | truncated | (self._lengths >= self._max_steps)
            if not ended.any():
                continue
            seeds: list[int | None] = [None] * self._rows
            for row in np.flatnonzero(ended).tolist():
                if (episode := running[row]) is not None:
                    found[episode] = self._finish(row, bool(terminated[row]))
                # Rows without an episode go on stepping, and are reset like the others.
                running[row] = waiting.popleft() if waiting else None
                seeds[row] = self._seed + (running[row] or 0)
            self._begin(ended)
            if len(found) < episodes:
                options = {"reset_mask": ended}
                observation, _ = self._vector.reset(seed=seeds, options=options)
        return [found[episode] for episode in sorted(found)]

    def reset_by_itself(self, episodes: int, *, same_step: bool) -> list[Episode]:
        """Runs episodes that a vector environment begins by itself.

        Each row has a share fixed beforehand: taking the first that end would favour short ones.
        """
        found: list[list[Episode]] = [[] for _ in range(self._rows)]
        shares = [len(range(row, episodes, self._rows)) for row in range(self._rows)]
        resting = np.zeros(self._rows, bool)
        observation, _ = self._vector.reset(seed=self._seed)
        while any(len(done) < share for done, share in zip(found, shares, strict=True)):
            observation, terminated, truncated = self._step(observation, resting=resting)
            # In the step after an end the action went nowhere, and the episode begins with it.
            self._begin(resting)
            ended = (terminated | truncated) & ~resting
            for row in np.flatnonzero(ended).tolist():
                if len(found[row]) < shares[row]:
                    found[row].append(self._finish(row, bool(terminated[row])))
            if same_step:
                self._begin(ended)
            else:
                resting = ended
        order = [(k % self._rows, k // self._rows) for k in range(episodes)]
        return [found[row][number] for row, number in order]

    def _step(
        self, observation: Any, *, resting: np.ndarray | None = None
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        action = self._session.step(self._observe(observation))
        observation, rewards, terminated, truncated, _ = self._vector.step(self._act(action))
        counts = np.ones(self._rows, bool) if resting is None else ~resting
        self._returns += np.where(counts, rewards, 0.0)
        self._lengths += counts
        return observation, np.asarray(terminated, bool), np.asarray(truncated, bool)

    def _finish(self, row: int, terminated: bool) -> Episode:
        return Episode(float(self._returns[row]), int(self._lengths[row]), terminated)

    def _begin(self, rows: np.ndarray) -> None:
        if rows.any():
            self._session.reset(rows)
            self._returns[rows] = 0.0
            self._lengths[rows] = 0


@contextlib.contextmanager
def _vectorized(
    gymnasium: Any, environment: Any, num_envs: int, arguments: dict[str, Any]
) -> Iterator[tuple[Any, str]]:
    """Yields a vector environment and its name; closes it if it was made here."""
    vector_module = import_extra("gymnasium.vector", extra="gymnasium", what="evaluate_policy")
    if arguments and not (isinstance(environment, str) or _is_function(gymnasium, environment)):
        raise EvaluationError(
            "environment_arguments are given, but the environment has been made already"
        )
    if isinstance(environment, vector_module.VectorEnv):
        yield environment, _name(environment)
        return
    disabled = vector_module.AutoresetMode.DISABLED
    if isinstance(environment, gymnasium.Env):
        if num_envs != 1:
            raise EvaluationError(
                f"num_envs is {num_envs}, but one environment was given; give its ID, a function "
                "that makes it, or a vector environment"
            )
        # Not closed: closing it would close the environment inside, which is the caller's.
        wrapped = vector_module.SyncVectorEnv([lambda: environment], autoreset_mode=disabled)
        yield wrapped, _name(environment)
        return
    if isinstance(environment, str):
        make: Callable[[], Any] = lambda: gymnasium.make(environment, **arguments)  # noqa: E731
    elif _is_function(gymnasium, environment):
        make = lambda: environment(**arguments)  # noqa: E731
    else:
        raise EvaluationError(
            f"the environment is a {type(environment).__name__}; expected the ID of one, a "
            "function that makes one, a gymnasium.Env or a gymnasium.vector.VectorEnv"
        )
    try:
        made = vector_module.SyncVectorEnv([make] * num_envs, autoreset_mode=disabled)
    except gymnasium.error.Error as error:
        raise EvaluationError(f"{environment}: Gymnasium cannot make it: {error}") from error
    with contextlib.closing(made):
        name = environment if isinstance(environment, str) else _name(made.envs[0])
        yield made, name


def _is_function(gymnasium: Any, environment: Any) -> bool:
    return callable(environment) and not isinstance(environment, gymnasium.Env)


def _name(environment: Any) -> str:
    spec = getattr(environment, "spec", None)
    inner = getattr(environment, "unwrapped", environment)
    return str(getattr(spec, "id", None) or type(inner).__name__)
