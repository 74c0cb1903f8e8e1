"""What proposes plans."""
