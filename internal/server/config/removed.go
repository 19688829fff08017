package config

// removed has the keys and tables that packhorse does not have any more, and what to do instead. A text completes
// "KEY was removed: ". A key in an array of tables has no index: "mirror.requests".
var removed = map[string]string{
	"app.blackout":        "it is one second",
	"app.connect_timeout": "it is five seconds",
	"app.drain_share":     "a third of a pool may be out of service; \"packhorse drain worker --force\" drains more",
	"app.fast":            "no slots are reserved any more; delete the key",
	"app.health_failures": "a worker is down after three checks without a response",
	"app.health_interval": "a worker is checked every second",
	"app.health_passes":   "a worker gets requests after two good checks",
	"app.health_timeout":  "it is five seconds",
	"app.max_answer":      "1 MiB of a response is stored for a slow client",
	"app.max_memory":      "all stored bodies take at most 256 MiB",
	"app.max_slots":       "it belonged to slots = \"auto\"; set app.slots",
	"app.max_spool":       "bodies are not stored in files",
	"app.reserve":         "no slots are reserved any more; delete the key",
	"app.send_file":       "files of the application are not sent; have a web server do it, or the worker",
	"app.send_file_roots": "files of the application are not sent; have a web server do it, or the worker",
	"app.slow":            "all requests are measured together; the paths of slow ones are in the log",
	"app.slow_start":      "a worker that comes back gets its share at once; delete the key",
	"app.stall":           "it is one minute",
	"app.sticky":          "requests are split at random; delete the key",
	"app.upgrade_idle":    "it is ten minutes",

	"auth.hook.cache_size": "it is always 10000",

	"cache.max_idle":  "it is always 5m",
	"cache.min_free":  "a twentieth of the file system stays free, from 1 to 5 GiB",
	"cache.probation": "it is always 20s",

	"cgroup": "limit memory and CPU time with systemd",

	"fetch.allow_any":         "it is always false; a repository can set uploadpack.allowAnySHA1InWant",
	"fetch.allow_reachable":   "it is always false; a repository can set uploadpack.allowReachableSHA1InWant",
	"fetch.allow_ref_in_want": "it is always true; a repository can set uploadpack.allowRefInWant",
	"fetch.allow_tip":         "it is always false; a repository can set uploadpack.allowTipSHA1InWant",
	"fetch.keep_alive":        "it is always 5s; a repository can set uploadpack.keepAlive",
	"fetch.max_haves":         "it is always 1000000",
	"fetch.max_shallow":       "it is always 100000",
	"fetch.max_wants":         "it is always 1000000",
	"fetch.object_info":       "it is always true; a repository can set transfer.advertiseObjectInfo",
	"fetch.session_id":        "it is always true; a repository can set transfer.advertiseSID",
	"fetch.unborn":            "it is always \"advertise\"; a repository can set lsrefs.unborn",

	"git.cgroup":              "the reaper finds the processes of git commands without it; delete the key",
	"git.nice":                "it is always 5",
	"git.per_repository":      "a repository may use all slots but one",
	"git.queue":               "it is always 256",
	"git.shallow_compression": "it is always 3; delete the key",
	"git.shallow_window":      "it is always 1; delete the key",
	"git.slow":                "it is always 30s",
	"git.snapshot_window":     "it is always 0; delete the key",
	"git.threads":             "each pack gets an equal share of the CPUs",
	"git.wait":                "it is always 1m",
	"git.window":              "it is always 5; delete the key",
	"git.window_memory":       "it is at most 256 MiB; limits.memory lowers it",

	"http.header_timeout": "it is always 10s",
	"http.read_stall":     "set http.stall",
	"http.write_stall":    "set http.stall",

	"index.nice":    "it is always 15",
	"index.results": "it is always 100000",
	"index.timeout": "it is always 1m",

	"lanes.adaptive":    "it is always true",
	"lanes.anonymous":   "it is always 0.5",
	"lanes.fair":        "callers always share lanes fairly; trusted_proxies makes the clients of a proxy known",
	"lanes.maintenance": "set maintenance.slots",
	"lanes.pages":       "it is always 256",
	"lanes.push":        "it is always 256; push.slots limits those that run",
	"lanes.search":      "it is always two for each CPU",
	"lanes.small":       "it is always 1024",

	"lfs.upload_expiry": "it is always 24h",

	"maintenance.loose_objects": "it is always 1000",
	"maintenance.loose_refs":    "it is always 500",
	"maintenance.packs":         "it is always 20",
	"maintenance.quiet":         "it is always 10s",

	"mirror.max_refs": "it is always 1000000",
	"mirror.stall":    "it is always 5m",
	"mirror.timeout":  "it is always 30s",

	"node.channel_idle": "it is always 10s",
	"node.files":        "files are passed where that is possible; delete the key",
	"node.stall":        "it is always 1m",

	"ops.activity": "requests are always listed; delete the key",
	"ops.tree":     "child processes are always measured; delete the key",

	"push.max_commands": "it is always 100000",
	"push.max_options":  "it is always 100; a repository can set receive.advertisePushOptions",
	"push.queue":        "it is always 256",
	"push.set_head":     "the first push always sets HEAD; \"packhorse repo set-head\" changes it",
	"push.time_limit":   "git.time_limit applies to pushes, too",
	"push.wait":         "it is always 1m",

	"resolver.entries":     "it is always 100000",
	"resolver.missing_ttl": "it is always 2s",
	"resolver.ttl":         "it is always 1m",
	"resolver.watched":     "it is always 10000",

	"sli.app":     "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.call":    "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.cold":    "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.enabled": "requests are always measured; delete the key",
	"sli.heavy":   "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.hit":     "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.page":    "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.push":    "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.resolve": "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.search":  "the limit of a class is fixed; sli.scale multiplies all of them",
	"sli.small":   "the limit of a class is fixed; sli.scale multiplies all of them",

	"ssh.address_logins":       "it is always a quarter of ssh.connections, at most 128",
	"ssh.auth_tries":           "it is always 6",
	"ssh.keep_alive":           "it is always 30s",
	"ssh.login_grace":          "it is always 30s",
	"ssh.logins":               "it is always half of ssh.connections, at most 256",
	"ssh.session_idle_timeout": "it is always 12h",
	"ssh.sessions":             "it is always 10",

	"storage.channel_idle": "it is always 30s",
	"storage.channels":     "it is always 4096",
	"storage.stall":        "it is always 1m",

	"store.min_free": "a twentieth of the file system stays free, at most 5 GiB",
	"store.wait":     "it is always 30s",

	"tracing.callers": "it is always 10",

	"warmup.least":  "it is always 2",
	"warmup.packs":  "it is always 4",
	"warmup.window": "it is always 10m",

	"watchdog.blocked":   "other signs than slow probes and goroutines that do not run are not watched; delete the key",
	"watchdog.count":     "it is always 10",
	"watchdog.dir":       "dumps are in the directory dumps of the state directory",
	"watchdog.interval":  "it is sixty times watchdog.stall",
	"watchdog.max_bytes": "it is always 256 MiB",
	"watchdog.min_free":  "it is always 64 MiB",
	"watchdog.trace":     "dumps have no execution trace; get one from /debug/pprof/trace of the private listener",

	"webhook.give_up": "it is always 168h",
}
