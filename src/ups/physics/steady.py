"""SteadySystem: the linear equations of a steady state, how far a field is from solving them, and iterations to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ups.lazy_imports import Tensor, torch
from ups.types import PhysicsError

# Iterations after which a sample that has not converged never will.
MOST_ITERATIONS = 1000
# How often a device is asked whether all samples have converged: the answer stops its queue.
EVERY = 4


@dataclass(frozen=True)
class Refined:
    """Where iterations ended: the fields `(B, *S, 1)` in double precision, and per sample `(B,)` the relative residual
    before and after, and how many iterations it took."""

    values: Tensor
    before: Tensor
    after: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class SteadySystem:
    """A u = b for each sample of a batch, A symmetric and positive definite, in double precision.

    `operator` is u ↦ A u and `precondition` roughly its inverse, on `(B, *S)`; `right (B, *S)` is b. The residual of a
    field is ‖b − A u‖ / ‖b‖ over the cells of a sample. Zero has residual 1, and a field with an error of 1e-2 may have
    more: A amplifies what is rough. Single precision alone leaves about 1e-4 of it on 128 × 128 cells.
    """

    operator: Callable[[Tensor], Tensor]
    precondition: Callable[[Tensor], Tensor]
    right: Tensor

    def residual(self, u: Tensor) -> Tensor:
        """‖b − A u‖ / ‖b‖ of fields `(B, *S, 1)`, `(B,)`; 0 where both are zero."""
        rest = self.right - self.operator(u[..., 0].double())
        return self._relative(rest)

    def refined(self, u: Tensor, tolerance: float, most: int = MOST_ITERATIONS) -> Refined:
        """Preconditioned conjugate gradients from fields `(B, *S, 1)` until the residual of each is at most
        `tolerance`, for `most` iterations at the longest; a sample that has converged no longer moves or counts.

        They begin anew where the residual that they carry along has strayed from the true one, by round-off of a start
        that was far away."""
        start = u[..., 0].to(torch.float64)
        if not bool(start.isfinite().all()):
            raise PhysicsError("The fields to be refined are not finite.")
        before, size = self.residual(u), _dot(self.right, self.right)
        x = torch.where(size > 0, start, torch.zeros_like(start))  # where nothing drives a sample, it is zero
        goal, count, spent = tolerance**2 * size, torch.zeros_like(size), 0
        while spent < most:
            x, done, taken = self._descent(x, goal, most - spent)
            count, spent = count + done, spent + max(1, taken)
            rest = self.right - self.operator(x)
            if not bool((_dot(rest, rest) > goal).any()) or not taken:
                break
        after = self._relative(self.right - self.operator(x))
        return Refined(x.unsqueeze(-1), before, after, count.flatten().long())

    def _descent(self, x: Tensor, goal: Tensor, most: int) -> tuple[Tensor, Tensor, int]:
        """Conjugate gradients from `x` until the square of the residual they carry along is at most `goal`: the fields,
        the iterations of each sample, and those of all."""
        r = self.right - self.operator(x)
        z = self.precondition(r)
        p, rz = z, _dot(r, z)
        count, iteration = torch.zeros_like(rz), 0
        for iteration in range(most):
            active = _dot(r, r) > goal
            if iteration % EVERY == 0 and not bool(active.any()):
                return x, count, iteration
            q = self.operator(p)
            alpha = torch.where(active, rz / _dot(p, q), torch.zeros_like(rz))
            x = x + alpha * p
            r = r - alpha * q
            z = self.precondition(r)
            new = _dot(r, z)
            p = torch.where(active, z + (new / rz) * p, p)
            rz = torch.where(active, new, rz)
            count = count + active
        return x, count, most

    def solution(self, tolerance: float) -> Tensor:
        """The fields `(B, *S, 1)`, iterated from zero; a PhysicsError where they do not converge."""
        answer = self.refined(torch.zeros_like(self.right).unsqueeze(-1), tolerance)
        if not bool((answer.after <= tolerance).all()):
            raise PhysicsError(
                f"The steady state did not converge in {MOST_ITERATIONS} iterations; a coefficient must be finite and "
                "positive, its extremes less than a factor 1e5 apart."
            )
        return answer.values

    def _relative(self, rest: Tensor) -> Tensor:
        sizes = torch.stack([_dot(rest, rest), _dot(self.right, self.right)]).flatten(1)
        return (sizes[0] / sizes[1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).reshape(-1, *[1] * (a.ndim - 1))
