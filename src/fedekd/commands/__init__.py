"""The commands, one file each: their options, and what they do. Each imports what it needs when it runs."""
