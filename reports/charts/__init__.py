"""What the sections draw with: matplotlib's axes in the look of the page, and the way from a figure to the page."""
