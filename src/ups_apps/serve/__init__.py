"""A trained simulator as a service: requests by HTTP, frames as they are computed by WebSocket."""

from ups_apps.serve.client import RemoteSimulator, ServiceError

__all__ = ["RemoteSimulator", "ServiceError"]
