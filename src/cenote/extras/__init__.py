"""What watches: the dashboard and the exporters. Nothing of cenote needs them."""
