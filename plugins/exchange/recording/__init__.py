"""Record what any batched environment does into a store, while its own loop runs."""
