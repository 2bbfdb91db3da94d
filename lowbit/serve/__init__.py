"""An exported model behind HTTP: the Open Inference Protocol (KServe v2). Start with `app`.

`app` has routes, limits and metrics, `protocol` reads requests and writes responses, `batching` computes
waiting requests as one batch, `model` opens and describes what is served.
"""

from lowbit.serve.app import Limits, make_app, serve
from lowbit.serve.model import ServedModel, open_served_model

__all__ = ["Limits", "ServedModel", "make_app", "open_served_model", "serve"]
