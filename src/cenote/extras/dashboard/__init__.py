"""The live dashboard: every pool of the process on one page. See `docs/dashboard.md`."""

from .asgi import Dashboard, dashboard
from .server import DashboardServer, serve_dashboard

app = dashboard.app

__all__ = ["Dashboard", "DashboardServer", "app", "dashboard", "serve_dashboard"]
