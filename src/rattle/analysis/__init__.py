"""Analysis of trained models: landscapes, flatness, galleries, the error of the Taylor expansion."""
