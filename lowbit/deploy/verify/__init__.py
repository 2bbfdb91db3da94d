"""Whether a deployed model computes what was trained. Start with `comparison.verify`.

| module | has |
|---|---|
| `comparison` | model and engines on all images |
| `candidates` | the engines that are compared, and the files they read |
| `agreement`, `evidence` | how often they agree, and what that proves |
| `integer_reference` | the runtime in the place of the model, once its integers are proven equal |
| `layer_differences` | the first layer that differs |
| `latency` | speed of the quantized form against fp32, interleaved |
| `predictions` | classes by model and engine, for the confusion matrix |
| `record` | verify.json, and exporting what is missing |
| `tables` | the printed tables |
"""

from lowbit.deploy.verify.agreement import Agreement
from lowbit.deploy.verify.candidates import (
    ENGINES,
    Candidate,
    Size,
    compare_sizes,
    installed_engines,
    open_candidates,
    parse_engines,
)
from lowbit.deploy.verify.comparison import EngineReport, Report, verify
from lowbit.deploy.verify.evidence import Evidence
from lowbit.deploy.verify.latency import Latency, compare_latency
from lowbit.deploy.verify.layer_differences import (
    LayerDifference,
    OnnxGraph,
    compare_layers,
    first_wrong_layers,
)
from lowbit.deploy.verify.predictions import Predictions
from lowbit.deploy.verify.record import export_fp32, export_missing, report_values

__all__ = [
    "ENGINES",
    "Agreement",
    "Candidate",
    "EngineReport",
    "Evidence",
    "Latency",
    "LayerDifference",
    "OnnxGraph",
    "Predictions",
    "Report",
    "Size",
    "compare_latency",
    "compare_layers",
    "compare_sizes",
    "export_fp32",
    "export_missing",
    "first_wrong_layers",
    "installed_engines",
    "open_candidates",
    "parse_engines",
    "report_values",
    "verify",
]
