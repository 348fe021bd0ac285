"""The data of a run: from its config to windows of a split, and what must be known of them."""
