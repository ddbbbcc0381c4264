"""The studio: runs, trainings and models in a browser. Every number comes from `inspection` or a run's files.

`app` puts it together. `runs` and `trainings` know run folders and processes, `views` and `frames` look inside models,
and `page` is what the browser loads.
"""
