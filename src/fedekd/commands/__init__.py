"""The commands, one file each: what they are asked with, and what they do. Each imports what it needs when it runs."""
