"""D4RL's tasks: physics, rewards, resets and step limits."""
