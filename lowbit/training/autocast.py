"""The numerics of mixed precision on any device: inside a `with`, Paddle's operators compute on a grid.

Paddle's own autocast needs kernels for the narrow type, and its CPU build has none. Here operands are
rounded to the grid and held in fp32, so that fp32 kernels multiply exactly the values that narrow
hardware would and accumulate in fp32 as it does; the result is rounded again. Rounding is a pair of
casts, which rounds gradients on their way back as well: all three products of a layer are covered.

Python reaches operators as attributes of `paddle._C_ops`, and `a @ b` by methods of the tensor type; both
are wrapped while a `with` is open, in every thread, and wrappers act only in threads that opened one.
In-place operators (`add_`) are left as they are: the next product rounds what they leave behind.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, _C_ops

from lowbit.errors import LowbitError
from lowbit.numerics.grid import Grid, round_to_grid
from lowbit.training.op_lists import O2_METHODS, O2_ROUNDED, OPAQUE, PRODUCT_METHODS, PRODUCTS


class _Open(threading.local):
    """The grids of the open `with`s of one thread, innermost last, each with its level."""

    def __init__(self) -> None:
        self.stack: list[tuple[Grid, str]] = []


_open = _Open()
_lock = threading.Lock()
_users = 0
_originals: list[tuple[Any, str, Any]] = []


@contextmanager
def rounding(grid: Grid, level: str) -> Iterator[None]:
    """Inside the `with`, products (O1) or nearly everything (O2) is computed on the grid; O0 rounds nothing.

    May be nested, and then the innermost counts. Nothing stays wrapped after the last one is left.

    >>> with rounding(BF16, "O1"):
    ...     loss = criterion(model(images), labels)
    """
    _open.stack.append((grid, level))
    _acquire()
    try:
        yield
    finally:
        _open.stack.pop()
        _release()


def _acquire() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for name, spared in PRODUCTS.items():
                _replace(_C_ops, name, functools.partial(_wrap_product, spared=spared))
            for name in O2_ROUNDED:
                _replace(_C_ops, name, _wrap_o2)
            for name in OPAQUE:
                _replace(_C_ops, name, _wrap_opaque)
            for name in PRODUCT_METHODS:
                _replace(Tensor, name, functools.partial(_wrap_product, spared={}))
            for name in O2_METHODS:
                _replace(Tensor, name, _wrap_o2)


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _originals:
                owner, name, original = _originals.pop()
                setattr(owner, name, original)


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, wrap(original))


def _active() -> tuple[Grid | None, str]:
    grid, level = _open.stack[-1] if _open.stack else (None, "O0")
    return (grid, level) if level != "O0" else (None, level)


def _wrap_product(original: Callable[..., Any], spared: dict[int, str]) -> Callable[..., Any]:
    names = frozenset(spared.values())

    @functools.wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        grid, _ = _active()
        if grid is None:
            return original(*args, **kwargs)
        args = tuple(a if place in spared else _rounded(a, grid) for place, a in enumerate(args))
        kwargs = {name: a if name in names else _rounded(a, grid) for name, a in kwargs.items()}
        return _result_rounded(original(*args, **kwargs), grid)

    return product


def _wrap_o2(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def rounded(*args: Any, **kwargs: Any) -> Any:
        grid, level = _active()
        result = original(*args, **kwargs)
        return result if grid is None or level != "O2" else _result_rounded(result, grid)

    return rounded


def _wrap_opaque(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(*args: Any, **kwargs: Any) -> Any:
        grid, level = _active()
        if grid is not None:
            raise LowbitError(
                f"{level} mixed precision cannot round the products inside a whole recurrent layer on this "
                "device: build it from cells (paddle.nn.LSTMCell, GRUCell), or train without amp_level"
            )
        return original(*args, **kwargs)

    return refused


def _rounded(value: Any, grid: Grid) -> Any:
    # A value of a static graph is no Tensor: a model exported inside a `with` comes out unrounded.
    if isinstance(value, Tensor):
        return round_to_grid(value, grid) if value.dtype == paddle.float32 else value
    if isinstance(value, (list, tuple)):  # einsum and multi_dot take their factors as a list
        return [_rounded(item, grid) for item in value]
    return value


def _result_rounded(result: Any, grid: Grid) -> Any:
    """The result with its first tensor on the grid; further ones are statistics, masks and caches."""
    if isinstance(result, (list, tuple)):
        return type(result)((_rounded(result[0], grid), *result[1:]))
    return _rounded(result, grid)
