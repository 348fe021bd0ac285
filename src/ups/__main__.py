"""`python -m ups` is `ups`."""

from ups.cli import main

main()
