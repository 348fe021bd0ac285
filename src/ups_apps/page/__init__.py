"""The page on which people play with a simulator: one template, one script, one style sheet, and any engine."""
