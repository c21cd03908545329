"""Tests of the published methods we compare with."""
