"""One writer per dataset layout: each takes the film of a street and leaves files."""
