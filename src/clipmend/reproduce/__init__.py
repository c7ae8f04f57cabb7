"""Published tables, run again: what is known of how they were made, the figures that were printed, and the runs themselves."""
