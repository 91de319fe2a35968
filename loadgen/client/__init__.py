"""A client that measures: it sends a load when it is due, and notes when each token of the answers arrived."""
