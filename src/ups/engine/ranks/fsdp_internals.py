"""All use of FSDP2's private parts: votes inside its collectives, its groups, resets after failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState


@contextmanager
def _beyond_votes() -> Iterator[None]:
    """What fails in here finds the other ranks inside the collective, where no vote can reach them; it says so."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        error.beyond_votes = True  # type: ignore[union-attr]
        raise


class _Gated:
    """Votes between the allocation of the buffers and the launch."""

    def __init__(self, gate: Callable[[str], None], name: str) -> None:
        super().__init__()
        self.gate, self.name = gate, name


class GatedAllGather(_Gated, DefaultAllGather):
    """An all-gather that a failure on another rank can keep from starting."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self.gate(f"all-gather of {self.name} ({output_tensor.numel()} numbers)")
        with _beyond_votes():
            return super().__call__(output_tensor, input_tensor, group, async_op)


class GatedReduceScatter(_Gated, DefaultReduceScatter):
    """A reduce-scatter that a failure on another rank can keep from starting."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        self.gate(f"reduce-scatter of {self.name} ({input_tensor.numel()} numbers)")
        with _beyond_votes():
            return super().__call__(output_tensor, input_tensor, group, op, async_op)


def state_of(module: Any) -> Any:
    """What torch knows of a sharded module."""
    return module._get_fsdp_state()


def groups(root: Any) -> Iterator[Any]:
    """The groups of parameters that are gathered together, in every unit."""
    for state in root._state_ctx.all_states:
        yield from groups_of(state)


def groups_of(state: Any) -> list[Any]:
    """The groups of parameters of one unit that are gathered together."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []  # torch before 2.13


def undo(module: Any, device: torch.device) -> None:
    """Reshard every group and drop every part of a gradient, after an exception anywhere in forward or backward."""
    root = state_of(module)
    if hasattr(module, "reset_iter_state"):
        module.reset_iter_state()
    else:  # torch before 2.13
        _reset(root, device)
    for group in groups(root):
        for piece in group.fsdp_params:
            # What a block's backward or an earlier microbatch left would be added to the next attempt's gradient.
            piece.unsharded_accumulated_grad = None
            if hasattr(piece, "_unsharded_param"):
                piece._unsharded_param.grad = None
            piece.free_unsharded_param()


class Rounding:
    """Whether pieces are rounded on their way, as the policy of their unit says, or gathered as they are kept.

    Either way has tensors of its own, so that a backward that is still to come finds those of its forward. What is
    gathered while it changes is let go of.
    """

    def __init__(self, module: Any) -> None:
        pieces = [piece for group in groups(state_of(module)) for piece in group.fsdp_params]
        self.pieces = [piece for piece in pieces if piece.param_dtype is not None]
        self.others: list[dict[str, Any]] = [{"param_dtype": None, "all_gather_outputs": []} for _ in self.pieces]
        self.on = True

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        self.on = on
        names = ("param_dtype", "all_gather_outputs", "_unsharded_param")  # the last is missing before its first use
        for i, piece in enumerate(self.pieces):
            piece.free_unsharded_param()
            mine = {name: vars(piece).pop(name) for name in names if name in vars(piece)}
            vars(piece).update(self.others[i])
            self.others[i] = mine


def before_end_of_backward(module: Any, call: Callable[[], None]) -> None:
    """Have `call` run after each backward and before FSDP2 reduces what is left and finishes it."""
    for state in state_of(module)._state_ctx.all_states:
        end = state._root_post_backward_final_callback

        def both(end: Callable[[], None] = end) -> None:
            call()
            end()

        state._root_post_backward_final_callback = both


def reduce_at_end(part: Any) -> None:
    """Make the end of this backward reduce the part's gradient, though its backward is over."""
    for group in groups_of(state_of(part)):
        group._training_state = TrainingState.IDLE


def _reset(root: Any, device: torch.device) -> None:
    """What `reset_iter_state` does where there is none: everything launched has ended, and every unit is at rest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    shared = root._comm_ctx
    shared.all_gather_state = None
    if hasattr(shared, "reduce_scatter_states"):
        shared.reduce_scatter_states.clear()
    else:
        shared.reduce_scatter_state = None
    getattr(shared, "_last_post_reduce_events", {}).clear()
    shared.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._training_state = TrainingState.IDLE
        state._modules_to_run_forward.clear()
    for group in groups(root):
        group._all_gather_result = group._post_reduce_event = group._all_reduce_state = None
        group._reshard_after_forward_event = group._partial_reduce_output = None
        group._post_forward_indices.clear()
        group._training_state = TrainingState.IDLE
        group._to_sharded()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False
