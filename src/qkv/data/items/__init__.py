"""What one training item is, and how items become a batch: one module for each kind."""
