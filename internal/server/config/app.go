package config

// AppConfig is the application behind a gateway or serve (docs/how-to/app.md). Requests that are not Git's and not
// below /-/ or /.api/ go to its workers. Without workers they are answered with 404.
type AppConfig struct {
	// Workers lists the addresses of the workers: "unix:PATH" or "http://HOST:PORT", with an optional name before it, as
	// in "a=unix:/run/app/w0.sock". The default name is that of the socket without ".sock", or HOST:PORT. SIGHUP reloads
	// this list and the others of this table and its pools.
	Workers []string `toml:"workers"`

	// Slots is the number of requests that a worker gets at the same time. It must not be more than the threads of a
	// worker.
	Slots int `toml:"slots" default:"1" range:"1..65536"`

	// Queue is the maximum number of requests that wait for a worker. Further requests get 503 with Retry-After.
	Queue int `toml:"queue" default:"1000" range:"0.."`

	// Wait is the maximum time that a request waits for a worker.
	Wait Duration `toml:"wait" default:"30s" range:">0s"`

	// Also lists paths below /-/ and /.api/ that go to the application, with all paths below them.
	Also []string `toml:"also"`

	// Health is the path of the health check, as in "/-/readiness". A worker is ready if it responds with 2xx. Empty means
	// that a worker is ready if it accepts a connection.
	Health string `toml:"health"`

	// Drain is the maximum time that "packhorse drain worker --wait" waits for the requests of a worker.
	Drain Duration `toml:"drain" default:"1m" range:">0s"`

	// AnswerTimeout is the timeout for the header of a worker's response.
	AnswerTimeout Duration `toml:"answer_timeout" default:"1m" range:">0s"`

	// KeepIdle is the time that an unused connection to a worker is kept. An open connection can occupy a thread of the
	// worker.
	KeepIdle Duration `toml:"keep_idle" default:"1s" range:">0s"`

	// MaxBody is the maximum size of a request body. A client may pause for http.stall.
	MaxBody Size `toml:"max_body" default:"1GiB" range:"64KiB.."`

	// Upgrades is the maximum number of upgraded connections, such as WebSocket. 0 means none.
	Upgrades int `toml:"upgrades" default:"1000" range:"0.."`

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
