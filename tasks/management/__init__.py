"""The commands of `manage.py`: relay, workers, pause, resume, cancel, api_client, and more."""
