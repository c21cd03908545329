"""The compact VLM: it answers a question about an image from a fixed number of visual tokens."""
