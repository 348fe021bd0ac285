"""What keeps checkpoints: what one holds, and folders of them, verified."""
