"""What a run will take, before it runs: the machine, its speed, the plan of each model, and the prompts."""
