"""What an exported page runs in a browser: the engine, its worker, and onnxruntime-web 1.30.0 (MIT)."""
