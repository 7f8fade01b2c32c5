"""Where the models of a run compute: in this process, one after the other, or side by side on a Ray cluster."""
