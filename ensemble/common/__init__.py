"""What all three packages share: safe text, files, limits for untrusted input."""
