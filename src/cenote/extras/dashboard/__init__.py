"""The live dashboard: every pool of the process on one page. See `docs/dashboard.md`."""

from .asgi import Dashboard, dashboard
from .server import DashboardServer, serve_dashboard

__all__ = ["Dashboard", "DashboardServer", "dashboard", "serve_dashboard"]
