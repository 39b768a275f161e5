"""Planning by sampling (MPPI), for demonstrations."""
