"""Other implementations in the place of Paddle's operators, while a `with` is open and in its thread only."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

from paddle import Tensor, _C_ops, autograd

from lowbit.errors import LowbitError


class OpOverrides:
    """Operators of `paddle._C_ops`, by name, each with a function that may compute it.

    The function gets the operator's arguments and returns its result, or None to let Paddle's compute it.
    `open()` can be nested and used in several threads at once: the operators are replaced for the whole
    process, but act in those threads only that have one open, and the last one to close puts Paddle's back.

    overrides = OpOverrides({"relu": lambda *arguments, **named: None})
    with overrides.open():
        model(images)
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions
        self._lock, self._users = threading.Lock(), 0
        self._opened = threading.local()
        self._replaced: dict[str, tuple[Any, Any]] = {}  # name: Paddle's operator and ours

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within it, and in this thread, the functions are asked first."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._install()
        self._opened.depth = self._depth() + 1
        try:
            with _NO_RETAINED_GRAPHS.open():
                yield
        finally:
            self._opened.depth -= 1
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._remove()

    def is_called_directly(self, name: str) -> bool:
        """Whether the operator, called now in this thread, is ours and nobody has wrapped it."""
        replaced = self._replaced.get(name)
        return self._depth() > 0 and replaced is not None and getattr(_C_ops, name) is replaced[1]

    def _depth(self) -> int:
        return getattr(self._opened, "depth", 0)

    def _install(self) -> None:
        for name, function in self._functions.items():
            original = getattr(_C_ops, name)
            if not isinstance(original, BuiltinFunctionType):
                continue  # wrapped by someone, such as mixed precision, whose work we would leave out
            ours = self._operator(function, original)
            self._replaced[name] = original, ours
            setattr(_C_ops, name, ours)

    def _remove(self) -> None:
        for name, (original, ours) in self._replaced.items():
            # Wrapped by someone else in the meantime, ours stays beneath, where it calls Paddle's.
            if getattr(_C_ops, name) is ours:
                setattr(_C_ops, name, original)
        self._replaced.clear()

    def _operator(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def operator(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named) if self._depth() else None
            return original(*arguments, **named) if result is None else result

        return operator


class _NoRetainedGraphs:
    """Refuses `backward(retain_graph=True)` while a `with` is open, in its thread.

    The replacements are PyLayers, and Paddle 3.3.1 crashes in a second backward pass through a PyLayer whose
    graph was retained. `paddle.grad(..., retain_graph=True)` works.
    """

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._opened = threading.local()

    @contextmanager
    def open(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._originals = [(owner, owner.backward) for owner in (Tensor, autograd)]
                for owner, original in self._originals:
                    owner.backward = self._checked(original)
        self._opened.depth = getattr(self._opened, "depth", 0) + 1
        try:
            yield
        finally:
            self._opened.depth -= 1
            with self._lock:
                self._users -= 1
                if not self._users:
                    for owner, original in self._originals:
                        owner.backward = original

    def _checked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def backward(*arguments: Any, **named: Any) -> Any:
            retains = signature.bind(*arguments, **named).arguments.get("retain_graph")
            if retains and getattr(self._opened, "depth", 0):
                raise LowbitError(
                    "backward(retain_graph=True) crashes in Paddle with lowbit's fast operators: add up the "
                    "losses and call backward once, or do without accelerate()"
                )
            return original(*arguments, **named)

        return backward


_NO_RETAINED_GRAPHS = _NoRetainedGraphs()
