"""Accuracy on SQuAD and MNLI, of float and quantized models side by side (needs the extra `eval`)."""
