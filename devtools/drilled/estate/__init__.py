"""An estate on plain Celery that moves over: the same task, under one base or the other."""
