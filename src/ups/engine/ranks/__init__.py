"""What knows ranks: who this process is, votes, and a module replicated or sharded among them."""
