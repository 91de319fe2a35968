"""What came of a load: a record per request, figures of them, and comparisons of figures."""
