"""`ups export`: a simulator in formats that need no `ups`."""
