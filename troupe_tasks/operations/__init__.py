"""One file per thing that changes an agent, as named steps over a journal."""
