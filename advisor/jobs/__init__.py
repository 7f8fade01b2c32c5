"""What each command does, phase after phase."""
