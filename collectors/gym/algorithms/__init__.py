"""Networks and update rules: soft actor-critic, proximal policy optimisation."""
