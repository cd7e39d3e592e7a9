"""Motion of thin rods from nothing but where their points are: a check on equations of motion.

The mass matrix and the forces follow from Lagrange's equations with derivatives taken numerically,
in float64, so that no formula is shared with the environments.
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

# Three Gauss-Legendre points integrate a rod's energy exactly.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(3)
FRACTIONS, SHARES = 0.5 * (NODES + 1.0), 0.5 * WEIGHTS

PointsOf = Callable[[np.ndarray], list[tuple[float, np.ndarray]]]
"""Gives mass and position of the points that make up the mechanism, for joint angles."""


def rod(mass: float, start: np.ndarray, end: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Masses and positions that stand for a thin uniform rod."""
    return [
        (mass * share, start + fraction * (end - start))
        for fraction, share in zip(FRACTIONS, SHARES, strict=True)
    ]


def derivative_of(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """Derivative by all coordinates, along a new last axis."""
    step = 1e-5
    columns = [
        (function(at + step * unit) - function(at - step * unit)) / (2.0 * step)
        for unit in np.eye(len(at))
    ]
    return np.stack(columns, axis=-1)


def simulate(
    points_of: PointsOf,
    angles: np.ndarray,
    speeds: np.ndarray,
    *,
    torques: np.ndarray,
    frictions: np.ndarray,
    gravity: float,
    duration_s: float,
) -> np.ndarray:
    """Angles and speeds after a time under constant torques; the last coordinate points up."""
    masses = np.array([mass for mass, _ in points_of(angles)])

    def positions(angles: np.ndarray) -> np.ndarray:
        return np.stack([position for _, position in points_of(angles)])

    def mass_matrix(angles: np.ndarray) -> np.ndarray:
        jacobian = derivative_of(positions, angles)
        return np.einsum("p,pci,pcj->ij", masses, jacobian, jacobian)

    def potential(angles: np.ndarray) -> np.ndarray:
        return np.array(gravity * masses @ positions(angles)[:, -1])

    def motion(_: float, state: np.ndarray) -> np.ndarray:
        angles, speeds = np.split(state, 2)
        change = derivative_of(mass_matrix, angles)
        inertial = np.einsum("ijk,j,k->i", change, speeds, speeds)
        inertial -= 0.5 * np.einsum("jki,j,k->i", change, speeds, speeds)
        force = torques - frictions * speeds - inertial - derivative_of(potential, angles)
        return np.concatenate([speeds, np.linalg.solve(mass_matrix(angles), force)])

    start = np.concatenate([angles, speeds])
    solution = solve_ivp(motion, (0.0, duration_s), start, rtol=1e-8, atol=1e-8)
    assert solution.success, solution.message
    return solution.y[:, -1]
