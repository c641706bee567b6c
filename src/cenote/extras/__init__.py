"""The dashboard, the exporters and the ASGI helpers. Nothing else in cenote imports them."""
