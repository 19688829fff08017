# The configuration of Unicorn comes from the environment: WORKERS and BIND.
worker_processes Integer(ENV.fetch("WORKERS", "2"))
listen ENV.fetch("BIND")
