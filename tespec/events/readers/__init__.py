"""One file per on-disk format; `READS` of a file gives the opening function of each suffix it reads."""
