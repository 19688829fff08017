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

	"http.header_timeout": "it is always 10s",
	"http.read_stall":     "set http.stall",
	"http.write_stall":    "set http.stall",

	"node.channel_idle": "it is always 10s",
	"node.files":        "files are passed where that is possible; delete the key",
	"node.stall":        "it is always 1m",

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
}
