"""A chain's result as JUnit XML, which CI systems show: a test case for each step."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from lowbit.tipc.result import ChainResult, Status, StepResult

_TAIL = 40  # lines of a failed step's log
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: ChainResult) -> str:
    """The document. What is skipped or not run is a skipped case with its reason."""
    name = f"{result.model_name}.{Path(result.config).stem}.{result.mode}"
    counts = result.counts
    suite = ET.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(result.steps)),
        failures=str(counts["failed"]),
        errors="0",
        skipped=str(counts["skipped"] + counts["not run"]),
        time=f"{result.seconds:.3f}",
        timestamp=result.started,
    )
    for step in result.steps:
        case = ET.SubElement(
            suite, "testcase", name=_clean(step.name), classname=_clean(name), time=f"{step.seconds:.3f}"
        )
        if step.status is Status.FAILED:
            failure = ET.SubElement(case, "failure", message=_clean(step.reason or ""))
            failure.text = _clean("\n".join((step.command, *log_tail(Path(result.root) / step.log, _TAIL))))
        elif step.status is not Status.PASSED:
            ET.SubElement(case, "skipped", message=_clean(f"{step.status.value}: {step.reason}"))
        elif step.checks:
            ET.SubElement(case, "system-out").text = _clean(_checks(step))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _checks(step: StepResult) -> str:
    words = {True: "ok", False: "failed", None: "not checked"}
    return "\n".join(f"{words[check.passed]}: {check.name}: {check.detail}" for check in step.checks)


def log_tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, however large it is; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 400 * lines))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def _clean(text: str) -> str:
    """XML has no way to write most control characters."""
    return _NOT_IN_XML.sub("\ufffd", text)
