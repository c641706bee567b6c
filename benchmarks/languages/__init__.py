"""The same statements and transactions in other languages: where the limit is."""
