"""From a place (folder, GGUF file, hub id) to a loaded member."""
