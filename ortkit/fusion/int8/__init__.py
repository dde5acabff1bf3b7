"""Int8 products and convolutions of quantized models, with what follows them."""
