"""Reading the files that ONNX Runtime's profiler writes: events, runs, what a device did."""
