"""Plans: sets of runs defined in YAML files, and the execution of their missing runs."""
