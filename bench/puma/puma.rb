# Puma, by the environment: THREADS, WORKERS (0: a single process), BIND, DELAY for wait_for_less_busy_worker, and QUEUE=false for threads that read requests
# themselves, which is enough where they come whole. The rest is as Debian ships it.
threads_count = Integer(ENV.fetch("THREADS", "2"))
threads threads_count, threads_count
workers Integer(ENV.fetch("WORKERS", "0"))
bind ENV.fetch("BIND")
environment "production"
wait_for_less_busy_worker Float(ENV["DELAY"]) if ENV["DELAY"]
queue_requests false if ENV["QUEUE"] == "false"
