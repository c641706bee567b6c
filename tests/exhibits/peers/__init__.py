"""The other libraries' own tests, with their own pools and with the adapters: see `make peers`."""
