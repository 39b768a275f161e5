"""Files for a robot's program: exported policies, and policies of other programs in ONNX files."""
