"""One carry and the step that advances it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving import tree
from serving.bundle import Bundle
from serving.errors import ActionError, CarryError, ServingError, StepError
from serving.files import write_atomically
from serving.finite import all_finite, first_non_finite
from serving.observation import ObservationWriter
from serving.runtimes.base import Step
from serving.tensors import byte_count, check_tensors, decode_tensors, encode_tensors, port_shapes
from serving.tree_access import copier

_HEADER_BYTES = 1024 * 1024


class Session:
    """A policy acting: it owns one carry, which each step advances.

    Made by `Policy.session`. A call either does what it says or raises and leaves the carry as it
    was. A session may be handed from thread to thread; calls from two at once wait for each other.
    """

    def __init__(
        self,
        bundle: Bundle,
        step: Step,
        batch_size: int | None,
        *,
        check_finite: bool,
        runtime: str = "",
    ) -> None:
        self.manifest = bundle.manifest
        self.fingerprint = bundle.fingerprint
        """The bundle's, by which a record of this session knows it again."""
        self.runtime = runtime
        """Name of the runtime that steps."""
        self.batch_size = batch_size
        self._rows = 1 if batch_size is None else batch_size
        self._initial = bundle.initial_carry
        self._check_finite = check_finite
        self._step = step
        self._lock = threading.Lock()
        self._steps = 0
        self._carry_changes = 0
        self._observation = ObservationWriter(
            self.manifest, self._views(step.observation), batch_size, check_finite=check_finite
        )
        self._write_quickly = self._observation.write_quickly
        names = [port.name for port in self.manifest.action_ports]
        views = dict(zip(names, self._views(step.action), strict=True))
        leaves = [views[str(leaf.port)] for leaf in tree.leaves(self.manifest.action)]
        self._copied_action = copier(self.manifest.action, leaves)
        self._extra = self._views(step.extra)
        for array, port in zip(step.carry, self.manifest.carry_ports, strict=True):
            array[...] = self._initial[port.name]

    @property
    def steps(self) -> int:
        """Number of steps that have succeeded since the session was made."""
        return self._steps

    @property
    def carry_changes(self) -> int:
        """How many times the carry was changed by something else than a step: reset or set."""
        return self._carry_changes

    def step(self, observation: Any, *, reset: Any = None, check_outputs: bool = False) -> Any:
        """Computes the action for an observation and advances the carry.

        Blocks for one inference; the GIL is released during most of it. Allocates the action.

        Args:
            observation: the tree that was exported. Arrays must have the exported shape (with a
                leading batch axis unless `batch_size` is None) and dtype; Python numbers and lists
                are converted. Leaves that the action does not depend on may be missing.
            reset: rows to reset before the step, as `reset` takes them; None for none. An artefact
                with a reset input does that itself.
            check_outputs: refuse the step if it gives NaN or an infinity, in the action or in a
                carry that is finite in a fresh environment.

        Returns:
            The action in the exported tree, as new arrays.

        Raises:
            ObservationError: naming the leaf that is missing, unexpected, of wrong shape or dtype,
                or not finite.
            CarryError: if `reset` does not fit the rows.
            ActionError: if the outputs are checked and one is not finite.
            StepError: if the runtime fails.
        """
        rows = None if reset is None else self._choose(reset)
        with self._lock:
            if not self._write_quickly(observation):
                self._observation.write_carefully(observation)
            before = None if rows is None else self._begin_reset(rows)
            try:
                self._step.run()
                if check_outputs:
                    self._check_outputs()
                action = self._copied_action()
            except BaseException as error:  # every runtime has its own family of errors
                for array, values in zip(self._step.carry, before or [], strict=False):
                    array[...] = values
                if isinstance(error, ActionError) or not isinstance(error, Exception):
                    raise
                raise StepError(
                    f"the runtime failed in step {self._steps}: {error}; the carry is unchanged"
                ) from error
            finally:
                if rows is not None:
                    self._step.reset[...] = False
            # Nothing after this line can fail, so the carry moves on only with an action returned.
            self._step.advance()
            self._steps += 1
            if rows is not None:
                self._carry_changes += 1
            return action

    def _check_outputs(self) -> None:
        for array, port in zip(self._step.action, self.manifest.action_ports, strict=True):
            if not all_finite(array):
                index = first_non_finite(array)
                raise ActionError(
                    f"the policy gave {array[index]} for {port.name} at index {list(index)} in "
                    f"step {self._steps}; the carry is unchanged"
                )
        for array, port in zip(self._step.next_carry, self.manifest.carry_ports, strict=True):
            if not all_finite(array) and np.isfinite(self._initial[port.name]).all():
                index = first_non_finite(array)
                raise ActionError(
                    f"the policy gave {array[index]} for {port.next_name} at index {list(index)} "
                    f"in step {self._steps}; the carry is unchanged"
                )

    def copy_into(
        self,
        *,
        carry: Sequence[np.ndarray] = (),
        observation: Sequence[np.ndarray] = (),
        action: Sequence[np.ndarray] = (),
    ) -> None:
        """Copies carry, last observation and last action into given memory; allocates nothing.

        For recorders. After a step that raised, the observation is as much as was taken of it, and
        the action what the runtime gave, if it ran.

        Args:
            carry: arrays [B, ...] for all carry ports in order, or nothing.
            observation: likewise for the observation ports.
            action: likewise for the action ports.
        """
        with self._lock:
            for targets, sources in (
                (carry, self._step.carry),
                (observation, self._step.observation),
                (action, self._step.action),
            ):
                for target, source in zip(targets, sources, strict=False):
                    np.copyto(target, source)

    @property
    def extra_outputs(self) -> dict[str, np.ndarray]:
        """Copies of the last step's extra outputs by port name; empty before the first step."""
        with self._lock:
            if not self._steps:
                return {}
            ports = zip(self.manifest.extra_output_ports, self._extra, strict=True)
            return {port.name: view.copy() for port, view in ports}

    def reset(self, rows: Any = None) -> None:
        """Gives rows the carry of a fresh environment.

        Carry that the network itself keeps over resets (`reset` is "keep" in the manifest) stays.

        Args:
            rows: None for all; a boolean mask of length B; or row numbers.

        Raises:
            CarryError: if the mask has another length or a row does not exist.
        """
        chosen = self._choose(rows)
        with self._lock:
            self._reset_carry(chosen)
            self._carry_changes += 1

    def _reset_carry(self, chosen: Any) -> None:
        for array, port in zip(self._step.carry, self.manifest.carry_ports, strict=True):
            if port.reset == "initial":
                array[chosen] = self._initial[port.name]

    def _begin_reset(self, chosen: Any) -> list[np.ndarray]:
        """Has the next run reset rows; returns the carry to put back if that run fails."""
        if self.manifest.reset_port is not None:
            self._step.reset[chosen] = True
            return []
        before = [array.copy() for array in self._step.carry]
        self._reset_carry(chosen)
        return before

    @property
    def carry(self) -> dict[str, np.ndarray]:
        """The carry by port name, as copies; without batch axis if `batch_size` is None.

        Setting it copies the given arrays in. Without a batch axis, arrays with a leading axis of
        one are taken too. Raises CarryError, and changes nothing, if a name, shape or dtype is
        another, if an array is masked, or if a value is not finite where the carry of a fresh
        environment is (not checked in a session made with `check_finite=False`).
        """
        with self._lock:
            ports = zip(self.manifest.carry_ports, self._views(self._step.carry), strict=True)
            return {port.name: view.copy() for port, view in ports}

    @carry.setter
    def carry(self, carry: Mapping[str, Any]) -> None:
        self._set_carry(carry, "carry")

    def save_carry(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the carry to a safetensors file, complete or not at all.

        Blocks until the disk has it: not for a control loop's own thread.

        Args:
            path: the file to write.
            overwrite: replace a file that is there.

        Raises:
            CarryError: if the file exists or cannot be written.
        """
        file = Path(path)
        if not overwrite and file.exists():
            raise CarryError(f"{file}: exists already; pass overwrite=True to replace it")
        names = [port.name for port in self.manifest.carry_ports]
        with self._lock:
            data = encode_tensors(
                dict(zip(names, self._step.carry, strict=True)), {"policy": self.manifest.name}
            )
        try:
            write_atomically(file, data, replace=overwrite)
        except FileExistsError as error:  # it has appeared meanwhile
            raise CarryError(
                f"{file}: exists already; pass overwrite=True to replace it"
            ) from error
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise CarryError(f"{file}: cannot be written: {error}") from error

    def restore_carry(self, path: str | Path) -> None:
        """Takes over a carry that `save_carry` wrote, from a session with as many rows.

        Raises:
            CarryError: if the file cannot be read or does not fit, or holds values that `carry`
                cannot be set to; nothing is changed then.
        """
        file = Path(path)
        expected = self._rows * byte_count(self.manifest.carry_ports)
        try:
            if (size := file.stat().st_size) > expected + _HEADER_BYTES:
                raise CarryError(f"{file}: {size} bytes, but the carry takes {expected}")
            data = file.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise CarryError(f"{file}: cannot be read: {error}") from error
        self._set_carry(decode_tensors(data, file, _carry_error), file)

    def _views(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The arrays as the user sees them: without batch axis in a session for one robot."""
        return arrays if self.batch_size is not None else [a.reshape(a.shape[1:]) for a in arrays]

    def _set_carry(self, carry: Any, where: str | Path) -> None:
        ports = self.manifest.carry_ports
        expected = port_shapes(ports, () if self.batch_size is None else (self._rows,))
        if not isinstance(carry, Mapping):
            raise CarryError(f"{where}: expected a dict by port name, got {type(carry).__name__}")
        for name, value in carry.items():
            if isinstance(value, np.ma.MaskedArray):
                raise CarryError(
                    f"{where}: {name!r} is a masked array, and a carry has no mask; give its "
                    "masked elements a value with .filled(...)"
                )
        # Copied first: an array given here may be changed by another thread while it is checked.
        try:
            arrays = {name: np.array(value) for name, value in carry.items()}
        except (ValueError, TypeError) as error:
            raise CarryError(f"{where}: a value is no array of numbers: {error}") from error
        if self.batch_size is None:
            for name, array in arrays.items():
                if name in expected and array.shape == (1, *expected[name][0]):
                    arrays[name] = array.reshape(expected[name][0])
        check_tensors(arrays, expected, where, _carry_error)
        if self._check_finite:
            for port in ports:
                self._refuse_non_finite(port.name, arrays[port.name], where)
        with self._lock:
            for target, port in zip(self._step.carry, ports, strict=True):
                target[...] = arrays[port.name]
            self._carry_changes += 1

    def _refuse_non_finite(self, name: str, array: np.ndarray, where: str | Path) -> None:
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return
        # A running minimum starts at infinity, say: what a fresh carry holds is no accident.
        initial = np.broadcast_to(self._initial[name], array.shape)
        as_initial = (array == initial) | (np.isnan(array) & np.isnan(initial))
        wrong = np.argwhere(~np.isfinite(array) & ~as_initial)
        if wrong.size:
            index = tuple(int(i) for i in wrong[0])
            raise CarryError(
                f"{where}: {name!r} is {array[index]} at index {list(index)}; every later action "
                "would suffer from it. Give a finite carry, or reset the session"
            )

    def _choose(self, rows: Any) -> Any:
        """Returns an index of the first axis that selects the rows asked for."""
        if rows is None:
            return slice(None)
        try:
            chosen = np.asarray(rows)
        except ValueError as error:
            raise CarryError(
                f"rows: {error}; expected a boolean mask of length {self._rows} or row numbers"
            ) from error
        if chosen.ndim == 1 and chosen.size == 0 and not isinstance(rows, np.ndarray):
            return slice(0)
        if chosen.dtype == np.bool_:
            if chosen.shape != (self._rows,):
                raise CarryError(f"rows: a mask of shape {chosen.shape}, expected ({self._rows},)")
            return chosen
        if chosen.ndim > 1 or chosen.dtype.kind not in "iu":
            raise CarryError(
                f"rows: {chosen.dtype} of shape {chosen.shape}; expected a boolean mask of length "
                f"{self._rows} or row numbers"
            )
        if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= self._rows):
            raise CarryError(f"rows: {chosen.tolist()} has a row outside 0..{self._rows - 1}")
        return chosen


def _carry_error(file: str | Path, reason: str) -> ServingError:
    return CarryError(f"{file}: {reason}")
