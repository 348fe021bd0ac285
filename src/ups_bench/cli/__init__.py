"""The commands of the proof."""
