"""Worker roles, one file each; :mod:`doorbuster.workers.runner` runs them."""
