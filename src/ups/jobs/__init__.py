"""What each command does: jobs compose physics, data and pages; they know no flags and own no mathematics."""
