"""From answers to advice: gains, groups, looks at held-out questions, predictions, the recommendation."""
