"""The loads behind the policies' promises, a file for each, with its goals, figures and charts."""
