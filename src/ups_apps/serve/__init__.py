"""A trained simulator as a service: requests by HTTP, frames as they are computed by WebSocket."""

from ups_apps.serve.client import Client, ServiceError

__all__ = ["Client", "ServiceError"]
