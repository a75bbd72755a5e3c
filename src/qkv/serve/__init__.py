"""HTTP: the models of this machine behind an API (`api/`) and in the browser (`page/`)."""
