"""RATTLE: randomized adversarial training via Taylor expansion."""
