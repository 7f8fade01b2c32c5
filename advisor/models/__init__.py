"""The models of a pool: their lines, what they are, how they are asked, and their profiles."""
