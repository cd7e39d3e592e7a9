"""What every runtime gives: a step bound to memory of its own, and the checks they share."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.manifest import Manifest, Port


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What an artefact itself says about one of its inputs or outputs."""

    shape: tuple[int | None, ...] | None
    """With the batch axis; None for a size that is open, or for a shape that is unknown."""
    dtype: str
    """NumPy's name of the element type."""


class Step:
    """The step of one session, with all its memory allocated once.

    The carry lies in two sets of arrays. `run` reads the current set and fills the other one;
    `advance` exchanges them, which is all that a successful step changes. A `run` that raises
    therefore leaves the carry as it was. Nothing here is safe for use by two threads at once.

    Attributes:
        carry: the current carry, arrays [B, ...] in port order; the caller may write into them.
        next_carry: the carry that the last `run` computed, likewise.
        observation: arrays [B, ...] in port order; written by the caller before `run`.
        action: arrays [B, ...] in port order; valid after `run`, overwritten by the next.
        extra: extra outputs, likewise.
        reset: booleans [B], true for rows that `run` is to start afresh; all false unless the
            caller sets some, and without effect where the manifest has no reset port.
    """

    run: Callable[[], object]
    """Computes action, extra outputs and the next carry from observation and carry; takes and
    returns nothing. Raises whatever the runtime raises; the current carry is unchanged then."""

    def __init__(self, manifest: Manifest, batch_size: int) -> None:
        self.manifest = manifest
        self.observation = _zeros(manifest.observation_ports, batch_size)
        self.action = _zeros(manifest.action_ports, batch_size)
        self.extra = _zeros(manifest.extra_output_ports, batch_size)
        self.reset = np.zeros(batch_size, np.bool_)
        self._has_reset = manifest.reset_port is not None
        self.carry = _zeros(manifest.carry_ports, batch_size)
        self.next_carry = _zeros(manifest.carry_ports, batch_size)

    def advance(self) -> None:
        """Makes the carry that `run` computed the current one."""
        self.carry, self.next_carry = self.next_carry, self.carry

    def _inputs(self) -> list[np.ndarray]:
        """Arrays in the order of an artefact's inputs."""
        reset = [self.reset] if self._has_reset else []
        return [*self.carry, *self.observation, *reset]

    def _outputs(self) -> list[np.ndarray]:
        """Arrays in the order of an artefact's outputs."""
        return [*self.action, *self.next_carry, *self.extra]

    def _store(self, values: Sequence[np.ndarray], names: Sequence[str]) -> None:
        """Copies what a runtime returned into the output arrays.

        Raises:
            ValueError: if the number of values, a shape or an element type is another.
        """
        targets = self._outputs()
        if len(values) != len(targets):
            raise ValueError(f"{len(values)} outputs, expected {len(targets)}")
        for target, value, name in zip(targets, values, names, strict=True):
            if value.shape != target.shape or value.dtype != target.dtype:
                raise ValueError(
                    f"output {name!r} is {value.dtype}{list(value.shape)}, "
                    f"expected {target.dtype}{list(target.shape)}"
                )
            np.copyto(target, value)


class BoundStep(Step, abc.ABC):
    """A step whose arrays the runtime was told of beforehand, once for each direction of the carry.

    What there is to do in a step is one call of a function with all its arguments known, so `run`
    is that function itself.
    """

    def __init__(self, manifest: Manifest, batch_size: int) -> None:
        super().__init__(manifest, batch_size)
        self.run = self._bound()
        super().advance()
        self._next_run = self._bound()
        super().advance()

    @abc.abstractmethod
    def _bound(self) -> Callable[[], object]:
        """Returns a function that reads the current carry and fills the next."""

    def advance(self) -> None:
        """Makes the carry that `run` computed the current one."""
        # Without a call between them, so that no signal's handler is either.
        self.carry, self.next_carry = self.next_carry, self.carry
        self.run, self._next_run = self._next_run, self.run


class Runtime(abc.ABC):
    """One artefact, loaded and checked against the ports; makes steps for sessions.

    Used from several threads: `bind` may be called from any.
    """

    def __init__(self, bundle: Bundle, artefact: str) -> None:
        self.manifest = bundle.manifest
        self.file = bundle.artefact_path(artefact)

    @abc.abstractmethod
    def _make_step(self, batch_size: int) -> Step: ...

    def bind(self, batch_size: int) -> Step:
        """Returns a step for `batch_size` rows, its carry all zeros.

        The step is run once on zeros, so that the first real one pays for no allocation or
        compilation, and so that an artefact that cannot run or gives other shapes is found here.

        Raises:
            BundleError: if the artefact does not run.
        """
        try:
            step = self._make_step(batch_size)
            step.run()
        except Exception as error:  # every runtime has its own family of errors
            raise BundleError(
                self.file, f"does not run with {batch_size} rows: {error}; export it again"
            ) from error
        return step


def input_ports(manifest: Manifest) -> dict[str, Port]:
    """Returns an artefact's inputs by name, in order."""
    reset = [] if manifest.reset_port is None else [manifest.reset_port]
    ports = [*manifest.carry_ports, *manifest.observation_ports, *reset]
    return {port.name: port for port in ports}


def output_ports(manifest: Manifest) -> dict[str, Port]:
    """Returns an artefact's outputs by name, in order; next carry by its own name."""
    ports = {port.name: port for port in manifest.action_ports}
    ports.update({port.next_name: port for port in manifest.carry_ports})
    ports.update({port.name: port for port in manifest.extra_output_ports})
    return ports


def check_signature(
    file: Path,
    manifest: Manifest,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
) -> None:
    """Checks what an artefact says about itself against the manifest.

    Converters lose sizes of outputs now and then, so an open size passes there; the first run
    finds what is wrong with it.

    Raises:
        BundleError: naming the artefact and the tensor.
    """
    _check_names(file, "input", inputs, input_ports(manifest))
    _check_names(file, "output", outputs, output_ports(manifest))
    for name, port in input_ports(manifest).items():
        shape = inputs[name].shape
        open_sizes = shape is None or None in shape[1:]
        # A fixed batch in the file can serve only the batch size for which the bundle is made.
        wrong_batch = bool(shape) and shape[0] not in (None, manifest.batch_size)
        if open_sizes or wrong_batch or not _fits(inputs[name], port):
            raise _mismatch(file, "input", name, inputs[name], port, manifest.batch_size)
    for name, port in output_ports(manifest).items():
        if not _fits(outputs[name], port):
            raise _mismatch(file, "output", name, outputs[name], port, manifest.batch_size)


def _zeros(ports: Sequence[Port], batch_size: int) -> list[np.ndarray]:
    return [np.zeros((batch_size, *port.shape), port.dtype) for port in ports]


def _check_names(
    file: Path, kind: str, found: Mapping[str, Tensor], expected: Mapping[str, Port]
) -> None:
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected]
    if missing or surplus:
        raise BundleError(
            file,
            f"its {kind}s do not match the manifest: missing {missing[:20]}, "
            f"unexpected {surplus[:20]}; export it again",
        )


def _fits(tensor: Tensor, port: Port) -> bool:
    if tensor.dtype != port.dtype:
        return False
    if tensor.shape is None:
        return True
    sizes = zip(tensor.shape[1:], port.shape, strict=False)
    return len(tensor.shape) == len(port.shape) + 1 and all(a in (None, b) for a, b in sizes)


def _mismatch(
    file: Path, kind: str, name: str, tensor: Tensor, port: Port, batch_size: int | None
) -> BundleError:
    found = "unknown" if tensor.shape is None else _shape(tensor.shape)
    expected = _shape((batch_size, *port.shape))
    return BundleError(
        file,
        f"{kind} {name!r} is {tensor.dtype}{found}, the manifest says {port.dtype}{expected}; "
        "export it again",
    )


def _shape(sizes: Sequence[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in sizes)}]"
