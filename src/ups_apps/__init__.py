"""What people use a simulator with: exports, and whatever else is made of a finished run."""
