"""Adapters to models of others. The pipeline never imports them: they are handed to it as callables."""
