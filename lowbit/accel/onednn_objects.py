"""oneDNN's C interface as far as it is needed: its library, and its objects with their lives.

The numbers and signatures are those of version 3, whose interface is kept from one release to the next.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

from lowbit.errors import LowbitError

_CPU, _BF16, _F32, _ANY_LAYOUT, _IN_ORDER = 1, 2, 3, 1, 1
_IMPLEMENTATION = 8  # a query: the name of an implementation
_AVX512_BF16 = 0xE7  # of the instruction sets, each of which has the bits of those that it includes
SRC, DST = 1, 17  # what a change of layout reads and writes
Dims = c_int64 * 12


class _Owned(c_void_p):
    """An object of the library's, given back when Python forgets it."""

    kind = ""

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.value and not is_finalizing():  # at the very end, this module's names are gone
            getattr(library(), f"dnnl_{self.kind}_destroy")(self)


class Memory(_Owned):
    kind = "memory"


class MemoryDescription(_Owned):
    kind = "memory_desc"


class Primitive(_Owned):
    kind = "primitive"


class PrimitiveDescription(_Owned):
    kind = "primitive_desc"


class _Version(Structure):
    _fields_ = [
        *(("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p)),
        *(("cpu_runtime", c_uint), ("gpu_runtime", c_uint)),
    ]


class Argument(Structure):
    _fields_ = [("role", c_int), ("memory", c_void_p)]


@cache
def why_missing() -> str | None:
    """Why the library cannot be used here; None when it can."""
    try:
        found = library().dnnl_version().contents
    except (OSError, AttributeError) as error:
        return f"Paddle's wheel has no usable oneDNN here ({error})"
    return None if found.major == 3 else f"Paddle's wheel has oneDNN {version()}, lowbit knows version 3"


@cache
def version() -> str:
    """Such as `3.6.2`; the last bits of a sum may differ between two of them."""
    found = library().dnnl_version().contents
    return f"{found.major}.{found.minor}.{found.patch}"


def multiplies_bf16() -> bool:
    """Whether the library has instructions here that multiply bf16 and add in fp32."""
    return library().dnnl_get_effective_cpu_isa() & _AVX512_BF16 == _AVX512_BF16


@cache
def library() -> ctypes.CDLL:
    """The one in Paddle's wheel, which Paddle has loaded, too."""
    import paddle

    folder = Path(paddle.__file__).parent / "libs"
    found = ctypes.CDLL(str(next(iter(sorted(folder.glob("libdnnl.so*"))), folder / "libdnnl.so.3")))
    found.dnnl_version.restype = POINTER(_Version)
    found.dnnl_primitive_desc_query_md.restype = c_void_p
    found.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
    found.dnnl_memory_desc_get_size.restype = c_size_t
    found.dnnl_memory_desc_get_size.argtypes = [c_void_p]
    found.dnnl_memory_desc_equal.argtypes = [c_void_p, c_void_p]
    return found


def call(name: str, *arguments: object) -> None:
    """Call a function by its name after `dnnl_`; a LowbitError when it fails."""
    status = getattr(library(), f"dnnl_{name}")(*arguments)
    if status != 0:
        raise LowbitError(
            f"oneDNN's {name} failed with status {status}; train with Global.fast_convolutions=False"
        )


@cache
def engine() -> c_void_p:
    """The CPU."""
    made = c_void_p()
    call("engine_create", byref(made), _CPU, c_size_t(0))
    return made


@cache
def _stream() -> c_void_p:
    made = c_void_p()
    call("stream_create", byref(made), engine(), _IN_ORDER)
    return made


def description(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> MemoryDescription:
    """An fp32 tensor of this shape, by default one axis after the other in memory."""
    made = MemoryDescription()
    if strides is None:
        strides = (1,)
        for size in reversed(shape[1:]):
            strides = (strides[0] * size, *strides)
    call(
        "memory_desc_create_with_strides",
        byref(made), len(shape), Dims(*shape), _F32, Dims(*strides),
    )  # fmt: skip
    return made


def free_description(shape: tuple[int, ...], *, bf16: bool = False) -> MemoryDescription:
    """A tensor of this shape in whichever layout is fastest, in fp32 or bf16."""
    made, kind = MemoryDescription(), _BF16 if bf16 else _F32
    call("memory_desc_create_with_tag", byref(made), len(shape), Dims(*shape), kind, _ANY_LAYOUT)
    return made


def take_implementation(description: PrimitiveDescription, prefix: str) -> bool:
    """Move a description on to the first implementation whose name begins so; False when there is none.

    The library orders them by what it takes for fastest. After False, the description is at its last one.
    """
    name = c_char_p()
    while True:
        call("primitive_desc_query", description, _IMPLEMENTATION, 0, byref(name))
        if name.value is not None and name.value.decode().startswith(prefix):
            return True
        if library().dnnl_primitive_desc_next_impl(description):
            return False


def memory(description: c_void_p) -> Memory:
    """A tensor's place, to be set before it is used."""
    made = Memory()
    call("memory_create", byref(made), description, engine(), None)
    return made


def primitive(description: c_void_p) -> Primitive:
    """Something that can be executed, with its machine code."""
    made = Primitive()
    call("primitive_create", byref(made), description)
    return made


def execute(primitive: c_void_p, arguments: list[Argument]) -> None:
    """Run a primitive; done when it returns."""
    array = (Argument * len(arguments))(*arguments)
    call("primitive_execute", primitive, _stream(), len(arguments), array)


def change_layout(change: Primitive, before: Memory, after: Memory) -> None:
    """Copy a tensor from one layout to another."""
    execute(change, [Argument(SRC, before), Argument(DST, after)])
