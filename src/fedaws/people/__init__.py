"""People after training: enrolled, verified, identified, removed; and the model that goes to their devices."""
