"""An ensemble or a strategy behind an OpenAI-compatible HTTP endpoint: ``advisor serve``."""
