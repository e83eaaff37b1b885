"""Docker Sandboxes, through Docker's own command line `sbx`."""
