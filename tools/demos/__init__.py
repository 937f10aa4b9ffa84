"""Demonstrations: small models that learn something in minutes."""
