"""Data from elsewhere: published files by name, addresses, stores; fetched whole or not at all."""
