"""Plans: sets of runs as YAML files, and what runs those that are missing."""
