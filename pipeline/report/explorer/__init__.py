"""The page to explore a catalog: its columns as codes, and the page that counts them."""
