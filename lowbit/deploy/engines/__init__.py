"""The programs that run an exported model, behind one interface."""

from lowbit.deploy.engines.engine import Engine, EngineOptions
from lowbit.deploy.engines.paddle_engine import PaddleEngine

__all__ = ["Engine", "EngineOptions", "PaddleEngine"]
