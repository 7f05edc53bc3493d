"""Services of other projects by their own names, on ours: one module for each of them."""
