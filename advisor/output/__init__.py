"""Files of a run folder and text on the terminal."""
