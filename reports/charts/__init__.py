"""Means to draw the charts of the sections: an SVG canvas, scales, rows with intervals, and places for names."""
