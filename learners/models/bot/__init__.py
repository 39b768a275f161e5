"""Body Transformer (BoT): bodies, embodiment graphs, masked attention and the policies."""
