"""The command strings that the original runners would have run, defects included, for comparison only.

Nothing here is shared with the planner, whose tests compare the two. It reads as the original does: values
end at a second colon, an absent argument is a blank, the length of a text tells devices apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lowbit.errors import LowbitError
from lowbit.tipc.chain_plan import check_mode, find_root
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.dialects import amp_words, trained_name
from lowbit.tipc.fields import ConfigFile

_SHORTEST_ADDRESSES = len("0.0.0.0,0.0.0.0")


@dataclass(frozen=True)
class OriginalCommand:
    """A string that the original passes to the shell's `eval`, and the folder in which it does so.

    `log` is what PaddleClas's runner adds to its status lines; the generic one names no log there.
    """

    command: str
    folder: str = "."
    log: str | None = None

    def __str__(self) -> str:
        return self.command if self.log is None else f"{self.command} - {self.log}"


def original_commands(config: ChainConfig, mode: str) -> list[str]:
    """The commands as the original's status lines have them, in its order.

    >>> original_commands(read_config(path), "lite_train_lite_infer")[0]  # doctest: +SKIP
    'python3.7 train.py --output-dir=./test_tipc/output/…'
    """
    return [str(step) for step in original_steps(config, mode)]


def original_steps(config: ChainConfig, mode: str) -> list[OriginalCommand]:
    """The commands with their folders and logs."""
    check_mode(mode)
    if config.dialect.is_paddleclas:
        if config.layout != 51:
            raise LowbitError(
                f"{config.file.source}, line 1: expected the layout of 51 lines, which is the only one that "
                "PaddleClas's runner reads; --dialect generic shows what the runner of 32 lines does"
            )
        return list(_PaddleClas(config, mode).commands())
    lines = _Lines(config.file, config.layout)
    commands = _commands_32 if config.layout == 32 else _commands_51
    output = f"./test_tipc/output/{lines.value(2)}/{mode}"
    return [OriginalCommand(command) for command in commands(lines, mode, output)]


@dataclass(frozen=True)
class _Lines:
    file: ConfigFile
    layout: int
    raw: bool = False  # with the blanks at the ends of lines, and all lines of the file

    def _parts(self, position: int) -> list[str]:
        if self.raw:
            return self.file.raw[position - 1].split(":") if position <= len(self.file.raw) else [""]
        line = self.file.line(position)
        return line.text.split(":") if line and line.number <= self.layout else [""]

    def key(self, position: int) -> str:
        return self._parts(position)[0]

    def value(self, position: int) -> str:
        return (*self._parts(position), "")[1]

    def of_mode(self, position: int, mode: str) -> str:
        entries = (entry.split("=") for entry in self.value(position).split("|"))
        return next(((*entry, "")[1] for entry in entries if entry[0] == mode), "")

    def set(self, position: int, value: str | None = None) -> str:
        key, value = self.key(position), self.value(position) if value is None else value
        return " " if key == "null" or value in ("null", " ", "") else f"{key}={value}"

    def each(self, position: int) -> list[str]:
        return _each(self.value(position))


@dataclass(frozen=True)
class _Device:
    gpu: str
    addresses: str

    @classmethod
    def parse(cls, text: str) -> _Device:
        if len(text) <= _SHORTEST_ADDRESSES:
            return cls(text, "")
        addresses, *rest = text.split(";")
        return cls((*rest, "")[0], addresses)

    @property
    def has_machines(self) -> bool:
        return len(self.addresses) > _SHORTEST_ADDRESSES

    @property
    def nodes(self) -> int:
        return len(self.addresses.split(",")) if self.has_machines else 1

    def launcher(self, option: str = "--gpus") -> str:
        if len(self.gpu) <= 2:
            return ""
        machines = f"--ips={self.addresses} " if self.has_machines else ""
        return f"-m paddle.distributed.launch {machines}{option}={self.gpu} "


def _each(value: str) -> list[str]:
    parts = value.split("|")
    return parts[:-1] if parts[-1] == "" else parts


def _commands_32(lines: _Lines, mode: str, output: str) -> Iterator[str]:
    python = lines.value(3)
    if mode == "whole_infer":
        folder = lines.value(20)
        if lines.value(25) not in ("", "null"):
            yield f"{python} {lines.value(25)} {lines.set(21, lines.value(24))} {lines.set(20, folder)}"
        yield from _infer_32(lines, folder, lines.value(31), output)
        return
    for text, trainer in product(lines.each(4), lines.each(13)):
        device = _Device.parse(text)
        if lines.value(14) == "null":
            continue
        run = f"{output}/{trainer}_gpus_{device.gpu}_autocast_{trainer == 'amp_train'}_nodes_{device.nodes}"
        save = f"{run}.log"
        arguments = (
            *(lines.set(7, save), lines.set(6, lines.of_mode(6, mode))),
            *(lines.set(9), lines.set(8, lines.of_mode(8, mode))),
        )
        yield f"{python} {device.launcher()}{lines.value(14)} {' '.join(arguments)}"
        weights = f"{save}/{lines.value(10)}"
        if lines.value(17) not in ("", "null"):
            yield f"{python} {lines.value(17)} {lines.set(9, weights)} > {run}_eval.log 2>&1 "
        if lines.value(22) not in ("", "null"):
            export = (lines.set(21, weights), lines.set(20, save))
            yield f"{python} {lines.value(22)} {' '.join(export)} > {run}_export.log 2>&1 "
            yield from _infer_32(lines, save, "", output)


def _infer_32(lines: _Lines, folder: str, image: str, output: str) -> Iterator[str]:
    for word, size in product(lines.each(28), lines.each(29)):
        where = _hardware(word)
        if where is None:
            continue
        arguments = (f"{lines.key(28)}={word}", lines.set(30, folder), lines.set(29, size))
        images = (lines.set(31, image), lines.set(32))
        log = f"{output}/python_infer_{where}_batchsize_{size}.log"
        yield f"{lines.value(3)} {lines.value(27)} {' '.join(arguments + images)} > {log} 2>&1 "


def _hardware(word: str) -> str | None:
    return {"True": "gpu", "gpu": "gpu", "False": "cpu", "cpu": "cpu"}.get(word)


def _commands_51(lines: _Lines, mode: str, output: str) -> Iterator[str]:
    python = lines.value(3)
    if mode == "whole_infer":
        exports, flags = lines.each(38), lines.each(39)
        for index, model in enumerate(lines.each(37)):
            export = exports[index] if index < len(exports) else ""
            if export not in ("", "null"):
                arguments = f"{lines.set(29, model)} {lines.set(28, model)}"
                yield f"{python} {export} {arguments} > {output}/_export_{index}.log 2>&1 "
            flag = flags[index] if index < len(flags) else ""
            yield from _infer_51(lines, model, lines.value(48), output, flag)
        return
    use_gpu = lines.each(5)
    for index, text in enumerate(lines.each(4)):
        device, word = _Device.parse(text), use_gpu[index] if index < len(use_gpu) else ""
        for autocast, trainer in product(lines.each(6), lines.each(15)):
            train, export_line = _trainer_51(lines, trainer)
            if lines.value(train) == "null":
                continue
            run = f"{output}/{trainer}_gpus_{device.gpu}_autocast_{autocast}_nodes_{device.nodes}"
            save = f"{run}.log"
            weights = f"{save}/{lines.value(11)}"
            first = [lines.set(7, lines.of_mode(7, mode)), lines.set(10)]
            if device.launcher() and device.has_machines:
                first.reverse()
            settings = (
                *(lines.set(5, word), lines.set(8, save), *first),
                *(lines.set(6, autocast), lines.set(9, lines.of_mode(9, mode)), lines.set(13)),
            )
            yield f"{python} {device.launcher()}{lines.value(train)} {' '.join(settings)}"
            if lines.value(24) not in ("", "null"):
                evaluation = (lines.set(10, weights), lines.set(5, word), lines.set(25))
                yield f"{python} {lines.value(24)} {' '.join(evaluation)} > {run}_eval.log 2>&1 "
            if lines.value(export_line) not in ("", "null"):
                exported = (lines.set(29, weights), lines.set(28, save))
                yield f"{python} {lines.value(export_line)} {' '.join(exported)} > {run}_export.log 2>&1 "
                below = lines.value(36)
                folder = save if below in ("null", "##") else f"{save}/{below}"
                yield from _infer_51(lines, folder, lines.value(12), output, str(train == 17))


def _trainer_51(lines: _Lines, trainer: str) -> tuple[int, int]:
    """The lines of a trainer's commands; an unknown name gets those of norm_train."""
    return next(((line, line + 14) for line in (17, 18, 19, 20, 21) if trainer == lines.key(line)), (16, 30))


def _infer_51(lines: _Lines, folder: str, image: str, output: str, quantized: str) -> Iterator[str]:
    start = f"{lines.value(3)} {lines.value(40)} {lines.key(41)}"
    for word in lines.each(41):
        where = _hardware(word)
        if where == "cpu":
            for mkldnn, threads, size, precision in product(*map(lines.each, (42, 43, 44, 46))):
                if mkldnn == "False" and precision == "fp16":
                    continue
                if quantized == "True" and precision != "int8":
                    continue
                arguments: tuple[str, ...] = (
                    *(lines.set(42, mkldnn), lines.set(43, threads), lines.set(47, folder)),
                    *(lines.set(44, size), " ", lines.set(48, image), lines.set(50)),
                    *(lines.set(46, precision), lines.set(51)),
                )
                settings = f"usemkldnn_{mkldnn}_threads_{threads}_precision_{precision}_batchsize_{size}"
                yield f"{start}={word} {' '.join(arguments)} > {output}/python_infer_cpu_{settings}.log 2>&1 "
        elif where == "gpu":
            for tensorrt, precision, size in product(*map(lines.each, (45, 46, 44))):
                if quantized == "False" and "int8" in precision:
                    continue
                if ("fp16" in precision or "int8" in precision) and tensorrt == "False":
                    continue
                arguments = (
                    *(lines.set(45, tensorrt), lines.set(46, precision), lines.set(47, folder)),
                    *(lines.set(44, size), lines.set(48, image), lines.set(50), lines.set(51), " "),
                )
                settings = f"usetrt_{tensorrt}_precision_{precision}_batchsize_{size}"
                yield f"{start}={word} {' '.join(arguments)} > {output}/python_infer_gpu_{settings}.log 2>&1 "


class _PaddleClas:
    """PaddleClas's runner: absolute paths, its own options, inference in `deploy/`."""

    def __init__(self, config: ChainConfig, mode: str) -> None:
        self._lines = _Lines(config.file, config.layout, raw=True)
        self._root = find_root(Path(config.file.source))
        self._python, self._model = self._lines.value(3), self._lines.value(2)
        self._output = f"{self._root}/test_tipc/output/{self._model}/{mode}"
        self._mode = mode

    def commands(self) -> Iterator[OriginalCommand]:
        lines = self._lines
        if self._mode == "whole_infer":
            yield from self._post_quantize()
            return
        for text in lines.each(4):
            for autocast, trainer in product(lines.each(6), lines.each(15)):
                yield from self._run(_Device.parse(text), autocast, trainer)

    def _run(self, device: _Device, autocast: str, trainer: str) -> Iterator[OriginalCommand]:
        lines = self._lines
        train, export = self._trainer(trainer)
        if train == "null":
            return
        run = f"{self._output}/{trainer}_gpus_{device.gpu}_autocast_{autocast}_nodes_{device.nodes}"
        # It asks for the epochs of a mode without a name, finds none, and takes 2 in every mode.
        epochs, use_gpu = lines.set(7, "1" if lines.value(5) == "npu" else "2"), lines.set(5)
        launched = len(device.gpu) > 2
        first = [epochs, lines.set(10)]
        if launched and device.has_machines:
            first.reverse()
        arguments = (
            *(use_gpu, lines.set(8, run), *first, " ".join(amp_words(autocast))),
            *(lines.set(9), lines.set(13), "-o Global.print_mem_info=True"),
            "-o Global.log_ranks=0,1,2,3,4,5,6,7" if launched else "",
        )
        command = f"{self._python} {device.launcher('--devices')}{train} {' '.join(arguments)}"
        yield OriginalCommand(command, log=f"{run}.log")
        weights = f"{run}/{trained_name(self._model)}/{lines.value(11)}"
        if lines.value(24) not in ("", "null"):
            arguments = (lines.value(24), lines.set(10, weights), use_gpu, lines.set(25))
            log = f"{run}_eval.log"
            yield OriginalCommand(f"{self._python} {' '.join(arguments)} > {log} 2>&1", log=log)
        if export not in ("", "null"):
            # For a model whose folder is called RecModel it sets the wrong variable, and names no weights.
            given = lines.set(29, weights) if trained_name(self._model) == self._model else ""
            log = f"{run}_export.log"
            words = f"{self._python} {export} {given} {lines.set(28, run)} > {log} 2>&1"
            yield OriginalCommand(words, log=log)
            yield from self._infer(run, device.gpu)

    def _trainer(self, trainer: str) -> tuple[str, str]:
        """The commands of training and of export; an unknown name gets those of norm_train."""
        lines = self._lines
        for train, export in ((17, 31), (18, 32), (19, 33)):
            if trainer == lines.key(train):
                return lines.value(train), lines.value(export)
        if trainer == lines.key(20):
            return f"{lines.value(16)}  {lines.value(20)}", lines.value(30)
        train, export = (21, 35) if trainer == lines.key(21) else (16, 30)
        return lines.value(train), lines.value(export)

    def _post_quantize(self) -> Iterator[OriginalCommand]:
        """Quantization without training, which is all that it runs in `whole_infer`."""
        lines = self._lines
        if lines.value(34) in ("", "null", "False"):
            return
        log = f"{self._output}/export.log"
        yield OriginalCommand(f"{self._python} {lines.value(34)} > {log} 2>&1", log=log)
        yield from self._infer(f"../{lines.value(37)}/quant_post_static_model", "0")

    def _infer(self, folder: str, gpu: str) -> Iterator[OriginalCommand]:
        lines = self._lines
        for word in lines.each(41):
            where = _hardware(word)
            start = f"{self._python} {lines.value(40)} {lines.key(41)}={word}"
            common = (lines.set(47, folder), lines.set(48), lines.set(50))
            if where == "cpu":
                for mkldnn, threads, size, precision in product(*map(lines.each, (42, 43, 44, 46))):
                    arguments: tuple[str, ...] = (
                        *(f"{lines.key(42)}={mkldnn}", lines.set(43, threads), common[0]),
                        *(lines.set(44, size), *common[1:], lines.set(51)),
                    )
                    case = f"usemkldnn_{mkldnn}_threads_{threads}_precision_{precision}_batchsize_{size}"
                    yield self._inference(f"{start} {' '.join(arguments)}", f"cpu_gpus_{gpu}_{case}")
            elif where == "gpu":
                for tensorrt, precision, size in product(*map(lines.each, (45, 46, 44))):
                    if precision == "True" and tensorrt == "False":
                        continue
                    arguments = (
                        *(lines.set(45, tensorrt), lines.set(46, precision), common[0]),
                        *(lines.set(44, size), *common[1:]),
                    )
                    case = f"usetrt_{tensorrt}_precision_{precision}_batchsize_{size}"
                    yield self._inference(f"{start} {' '.join(arguments)}", f"gpu_gpus_{gpu}_{case}")

    def _inference(self, command: str, name: str) -> OriginalCommand:
        log = f"{self._output}/python_infer_{name}.log"
        return OriginalCommand(f"{command} > {log} 2>&1 ", folder="deploy", log=log)
