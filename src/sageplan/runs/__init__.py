"""From a task's name to its numbers: everything that one run trains and measures, in one folder that resumes."""
