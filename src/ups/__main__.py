"""`python -m ups` is `ups`."""

from ups.cli.app import main

main()
