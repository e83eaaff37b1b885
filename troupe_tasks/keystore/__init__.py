"""Keys: each agent's, kept in the strongest way that its machine offered when it was created."""
