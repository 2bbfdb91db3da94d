"""Other implementations instead of Paddle's operators, while a `with` is open and in its thread only.

Also `change_class`, by which layers get another forward in place.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

from paddle import Tensor, _C_ops, autograd, nn

from lowbit.errors import LowbitError


def change_class(layer: nn.Layer, to: type[nn.Layer]) -> None:
    """Give a layer another class in place: a subclass of its own, or one that it had before.

    Its parameters, hooks and name stay, and so does every reference to it. Conversions use it, such as
    quantizing and fusing.

    >>> norm = nn.BatchNorm2D(3)
    >>> change_class(norm, type("Watched", (nn.BatchNorm2D,), {}))
    """
    if not (issubclass(to, type(layer)) or issubclass(type(layer), to)):
        raise TypeError(f"{type(layer).__name__} and {to.__name__} are not subclasses of each other")
    layer.__class__ = to


class ScopedPatch:
    """A part of the process that is replaced while a `with` is open, and acts in its thread only.

    `open()` can be nested and used in several threads at once: the first to open calls `_install`, the last
    to close `_remove`. What was installed asks `_is_open` whether the calling thread has one open.
    """

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._opened = threading.local()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within it, and in this thread, the replacement acts."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._install()
        self._opened.depth = getattr(self._opened, "depth", 0) + 1
        try:
            yield
        finally:
            # In another thread at the end of the process, where a thread never closed what it opened.
            self._opened.depth = getattr(self._opened, "depth", 1) - 1
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._remove()

    def _is_open(self) -> bool:
        return getattr(self._opened, "depth", 0) > 0

    def _install(self) -> None:
        raise NotImplementedError

    def _remove(self) -> None:
        raise NotImplementedError


class MethodPatch(ScopedPatch):
    """A method of several classes or modules, called through `wrapper(original, *arguments, **named)`.

    patch = MethodPatch((Optimizer, Adam), "step", wrapper)
    """

    def __init__(self, owners: Sequence[Any], name: str, wrapper: Callable[..., Any]) -> None:
        super().__init__()
        self._owners, self._name, self._wrapper = owners, name, wrapper
        self._originals: list[tuple[Any, Callable[..., Any]]] = []

    def _install(self) -> None:
        self._originals = [(owner, getattr(owner, self._name)) for owner in self._owners]
        for owner, original in self._originals:
            setattr(owner, self._name, self._wrapped(original))

    def _remove(self) -> None:
        for owner, original in self._originals:
            setattr(owner, self._name, original)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*arguments: Any, **named: Any) -> Any:
            if not self._is_open():
                return original(*arguments, **named)
            return self._wrapper(original, *arguments, **named)

        return method


def _refuse_retained_graph(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """`backward`, except for `retain_graph=True`.

    The replacements are PyLayers, and Paddle 3.3.1 crashes in a second backward pass through a PyLayer whose
    graph was retained. `paddle.grad(..., retain_graph=True)` works.
    """
    if inspect.signature(original).bind(*arguments, **named).arguments.get("retain_graph"):
        raise LowbitError(
            "backward(retain_graph=True) crashes in Paddle with lowbit's fast operators: add up the "
            "losses and call backward once, or do without accelerate()"
        )
    return original(*arguments, **named)


_NO_RETAINED_GRAPHS = MethodPatch((Tensor, autograd), "backward", _refuse_retained_graph)


class OpOverrides(ScopedPatch):
    """Operators of `paddle._C_ops`, by name, each with a function that may compute it.

    The function gets the operator's arguments and returns its result, or None to let Paddle's compute it.

    overrides = OpOverrides({"relu": lambda *arguments, **named: None})
    with overrides.open():
        model(images)
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions
        self._replaced: dict[str, tuple[Any, Any]] = {}  # name: Paddle's operator and ours

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within it, and in this thread, the functions are asked first."""
        with super().open(), _NO_RETAINED_GRAPHS.open():
            yield

    def is_called_directly(self, name: str) -> bool:
        """Whether the operator, called now in this thread, is ours and is not wrapped."""
        replaced = self._replaced.get(name)
        return self._is_open() and replaced is not None and getattr(_C_ops, name) is replaced[1]

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
            result = function(*arguments, **named) if self._is_open() else None
            return original(*arguments, **named) if result is None else result

        return operator
