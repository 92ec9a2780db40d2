"""Compiling quantized models with TorchInductor to fused oneDNN int8 kernels."""
