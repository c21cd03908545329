"""How the compact VLM is trained: one short script per stage."""
