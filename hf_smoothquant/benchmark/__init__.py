"""Speed, size and output error of int8 models beside float ones and other engines."""
