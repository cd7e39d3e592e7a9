"""One policy for many robots: a Triton server that keeps their carries, and its clients."""

from serving.fleet.remote import RemotePolicy
from serving.fleet.repository import write_model_repository
from serving.fleet.server import Addresses, TritonServer
from serving.fleet.settings import FleetSettings

__all__ = [
    "RemotePolicy",
    "write_model_repository",
    "FleetSettings",
    "TritonServer",
    "Addresses",
]
