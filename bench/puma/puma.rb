# The configuration of Puma comes from the environment: THREADS, WORKERS (0: a single process), BIND, and DELAY for
# wait_for_less_busy_worker. With QUEUE=false threads read requests themselves, which is enough for requests that arrive
# completely. All other settings are Debian's.
threads_count = Integer(ENV.fetch("THREADS", "2"))
threads threads_count, threads_count
workers Integer(ENV.fetch("WORKERS", "0"))
bind ENV.fetch("BIND")
environment "production"
wait_for_less_busy_worker Float(ENV["DELAY"]) if ENV["DELAY"]
queue_requests false if ENV["QUEUE"] == "false"
