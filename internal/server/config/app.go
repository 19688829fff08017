package config

// AppConfig is the application behind a gateway or serve (docs/how-to/app.md). Requests that are not Git's and not
// below /-/ or /.api/ go to its workers. Without workers they are answered with 404.
type AppConfig struct {
	// Workers lists the addresses of the workers: "unix:PATH" or "http://HOST:PORT", with an optional name before it, as
	// in "a=unix:/run/app/w0.sock". The default name is that of the socket without ".sock", or HOST:PORT. SIGHUP reloads
	// this list and the others of this table and its pools, except send_file_roots.
	Workers []string `toml:"workers"`

	// Slots is the number of requests that a worker gets at the same time. It must not be more than the threads of a
	// worker.
	Slots int `toml:"slots" default:"1" range:"1..65536"`

	// Queue is the maximum number of requests that wait for a worker. Further requests get 503 with Retry-After.
	Queue int `toml:"queue" default:"1000" range:"0.."`

	// Wait is the maximum time that a request waits for a worker.
	Wait Duration `toml:"wait" default:"30s" range:">0s"`

	// Slow lists path patterns of requests that take long. A "*" stands for any text. Metrics and the log show these
	// requests separately, and they do not count for the SLI.
	Slow []string `toml:"slow"`

	// Also lists path patterns below /-/ and /.api/ that go to the application.
	Also []string `toml:"also"`

	// Health is the path of the health check, as in "/-/readiness". A worker is ready if it responds with 2xx. Empty means
	// that a worker is ready if it accepts a connection.
	Health string `toml:"health"`

	// HealthInterval is the time between two health checks of a worker.
	HealthInterval Duration `toml:"health_interval" default:"1s" range:">0s"`

	// HealthTimeout is the timeout of a health check.
	HealthTimeout Duration `toml:"health_timeout" default:"5s" range:">0s"`

	// HealthFailures is the number of consecutive health checks without a response after which a worker is down. A worker
	// that responds that it is not ready is drained at once.
	HealthFailures int `toml:"health_failures" default:"3" range:"1..100"`

	// HealthPasses is the number of consecutive good health checks before a worker that was down or not ready gets
	// requests again.
	HealthPasses int `toml:"health_passes" default:"2" range:"1..100"`

	// Drain is the maximum time that "packhorse drain worker --wait" waits for the requests of a worker.
	Drain Duration `toml:"drain" default:"1m" range:">0s"`

	// Blackout is the time that a drained worker has to be idle before it is reported as drained, so that others that send
	// it requests notice the drain.
	Blackout Duration `toml:"blackout" default:"1s"`

	// DrainShare is the part of a pool's workers, from 0 to 1, that may be out of service at the same time, drained or not
	// ready. One always may.
	DrainShare float64 `toml:"drain_share" default:"0.34" range:"0..1"`

	// ConnectTimeout is the timeout of connecting to a worker.
	ConnectTimeout Duration `toml:"connect_timeout" default:"5s" range:">0s"`

	// AnswerTimeout is the timeout for the header of a worker's response.
	AnswerTimeout Duration `toml:"answer_timeout" default:"1m" range:">0s"`

	// Stall is the maximum pause of a worker within its response, or while it receives a request. The limit for clients is
	// http.write_stall.
	Stall Duration `toml:"stall" default:"1m" range:">0s"`

	// KeepIdle is the time that an unused connection to a worker is kept. An open connection can occupy a thread of the
	// worker.
	KeepIdle Duration `toml:"keep_idle" default:"1s" range:">0s"`

	// MaxBody is the maximum size of a request body. A body is received before a worker is chosen; a long one goes to a
	// file in STATE/app. A client may pause for http.read_stall.
	MaxBody Size `toml:"max_body" default:"1GiB" range:"64KiB.."`

	// MaxAnswer is the maximum part of a response that is stored when the client is slower than the worker. Beyond it the
	// worker waits.
	MaxAnswer Size `toml:"max_answer" default:"1GiB" range:"64KiB.."`

	// MaxMemory is the maximum size of all bodies in memory. The rest goes to files.
	MaxMemory Size `toml:"max_memory" default:"256MiB" range:"64KiB.."`

	// MaxSpool is the maximum size of all bodies in files.
	MaxSpool Size `toml:"max_spool" default:"8GiB" range:"64KiB.."`

	// SendFile is the response header with which a worker names a file to send: "X-Sendfile" or "X-Accel-Redirect". Empty
	// means none. Clients do not see the header.
	SendFile string `toml:"send_file" values:"X-Sendfile X-Accel-Redirect"`

	// SendFileRoots lists the directories of such files. For X-Accel-Redirect, each has the path that stands for it, as in
	// "/protected/=/srv/files".
	SendFileRoots []string `toml:"send_file_roots"`

	// Upgrades is the maximum number of upgraded connections, such as WebSocket. 0 means none.
	Upgrades int `toml:"upgrades" default:"1000" range:"0.."`

	// UpgradeIdle is the maximum time that both sides of an upgraded connection may be silent.
	UpgradeIdle Duration `toml:"upgrade_idle" default:"10m" range:">0s"`

	Pool []PoolConfig `toml:"pool"`
}

// PoolConfig is a set of workers that gets a share of the requests, for example to compare two kinds of workers under
// the same traffic. Each pool is a separate table. The log shows the pool of each request.
type PoolConfig struct {
	// Name is the name of the pool in the log and the metrics: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Share is the percentage of the requests. The shares of all pools add up to 100. The share of a pool without a usable
	// worker goes to the others.
	Share int `toml:"share" range:"0..100"`

	// Workers lists the addresses of the pool's workers, instead of app.workers.
	Workers []string `toml:"workers"`

	// Slots is the number of requests that a worker of this pool gets at the same time. 0 means app.slots.
	Slots int `toml:"slots" range:"0..65536"`
}
