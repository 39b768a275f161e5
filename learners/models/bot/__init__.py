"""Body Transformer and what it is made of."""
