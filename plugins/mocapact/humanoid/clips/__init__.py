"""Reference motion clips and the snippets cut from them."""
