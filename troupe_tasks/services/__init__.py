"""Services: the programs that stay up for agents, and who keeps them up."""
