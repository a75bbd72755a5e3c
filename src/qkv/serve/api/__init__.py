"""Routes of the API, a file for each kind of client."""
