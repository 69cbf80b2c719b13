"""What a deployed function does beside its work: say what happened, through Powertools."""
