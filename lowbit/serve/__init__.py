"""An exported model behind HTTP: the Open Inference Protocol (KServe v2), batching, limits and metrics."""

from lowbit.serve.app import Limits, make_app, serve
from lowbit.serve.model import ServedModel, open_served_model

__all__ = ["Limits", "ServedModel", "make_app", "open_served_model", "serve"]
