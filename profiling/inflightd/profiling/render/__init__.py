"""A report and its trace as a person or another program wants them: terminal, JSON, page, PNG, Perfetto."""
