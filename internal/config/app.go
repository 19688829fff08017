package config

import (
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
)

// AppConfig is the application behind a gateway or serve (docs/how-to/app.md). Requests that are not Git's and not
// below /-/ or /.api/ go to its workers. Without workers they are answered with 404.
type AppConfig struct {
	// Addresses of the workers: "unix:PATH" or "http://HOST:PORT", with an optional name before it, as in
	// "a=unix:/run/app/w0.sock". The default name is that of the socket without ".sock", or HOST:PORT. SIGHUP reloads this
	// list and the others of this table and its pools, except send_file_roots.
	Workers []string `toml:"workers"`

	// Number of requests that a worker is given at the same time. It must not be more than the threads of a worker.
	Slots Slots `toml:"slots"`

	// Maximum number of requests that wait for a worker. Further requests get 503 with Retry-After.
	Queue int `toml:"queue"`

	// Maximum time that a request waits for a worker.
	Wait Duration `toml:"wait"`

	// Path patterns of requests that are answered at once, such as readiness checks. A "*" stands for any text. Only they
	// may use the reserved slots.
	Fast []string `toml:"fast"`

	// Path patterns of requests that take long. Metrics and the log show them separately, and they do not count for the
	// SLI.
	Slow []string `toml:"slow"`

	// Number of slots in each pool that are reserved for fast requests, if there are patterns for them. One slot is always
	// left for others. "auto" reserves one of four or more slots, and none of fewer.
	Reserve Reserve `toml:"reserve"`

	// Path patterns below /-/ and /.api/ that go to the application.
	Also []string `toml:"also"`

	// Path of the health check, as in "/-/readiness". A worker is ready if it responds with 2xx. Empty: a worker is ready
	// if it accepts a connection.
	Health string `toml:"health"`

	// Time between two health checks of a worker.
	HealthInterval Duration `toml:"health_interval"`

	// Timeout of a health check.
	HealthTimeout Duration `toml:"health_timeout"`

	// Number of consecutive health checks without a response after which a worker is down. A worker that responds that it
	// is not ready is drained at once.
	HealthFailures int `toml:"health_failures"`

	// Number of consecutive good health checks before a worker that was down or not ready gets requests again. The number
	// doubles for a worker that fails again within a minute.
	HealthPasses int `toml:"health_passes"`

	// Maximum time that "packhorse drain worker --wait" waits for the requests of a worker.
	Drain Duration `toml:"drain"`

	// Time that a drained worker has to be idle before it is reported as drained, so that others that send it requests
	// notice the drain.
	Blackout Duration `toml:"blackout"`

	// Part of a pool's workers, from 0 to 1, that may be out of service at the same time, drained or not ready. One always
	// may.
	DrainShare float64 `toml:"drain_share"`

	// Timeout of connecting to a worker.
	ConnectTimeout Duration `toml:"connect_timeout"`

	// Timeout for the header of a worker's response.
	AnswerTimeout Duration `toml:"answer_timeout"`

	// Maximum pause of a worker within its response, or while it receives a request. The limit for clients is
	// http.write_stall.
	Stall Duration `toml:"stall"`

	// Time that an unused connection to a worker is kept. An open connection can occupy a thread of the worker.
	KeepIdle Duration `toml:"keep_idle"`

	// Maximum size of a request body. A body is received before a worker is chosen; a long one goes to a file in
	// STATE/app. A client may pause for http.read_stall, and has ten times that for each 64 KiB.
	MaxBody Size `toml:"max_body"`

	// Maximum stored size of a response when the client is slower than the worker. Beyond it the worker waits.
	MaxAnswer Size `toml:"max_answer"`

	// Maximum size of all bodies in memory. The rest goes to files.
	MaxMemory Size `toml:"max_memory"`

	// Maximum size of all bodies in files.
	MaxSpool Size `toml:"max_spool"`

	// Response header by which a worker names a file to send: "X-Sendfile" or "X-Accel-Redirect". Empty: none. Clients do
	// not see the header.
	SendFile string `toml:"send_file"`

	// Directories of such files. For X-Accel-Redirect, each has the path that stands for it, as in
	// "/protected/=/srv/files".
	SendFileRoots []string `toml:"send_file_roots"`

	// Maximum number of upgraded connections, such as WebSocket. 0: none.
	Upgrades int `toml:"upgrades"`

	// Maximum time that both sides of an upgraded connection may be silent.
	UpgradeIdle Duration `toml:"upgrade_idle"`

	Pool []PoolConfig `toml:"pool"`
}

// PoolConfig is a set of workers that gets a share of the requests, for example to compare two kinds of workers under
// the same traffic. Each pool is a table of its own. The log shows the pool of each request.
type PoolConfig struct {
	// Name of the pool in the log and the metrics: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Percentage of the requests. The shares of all pools add up to 100. The share of a pool without a usable worker goes
	// to the others.
	Share int `toml:"share"`

	// Addresses of the pool's workers, instead of app.workers.
	Workers []string `toml:"workers"`

	// Number of requests that a worker of this pool is given at the same time. 0: app.slots.
	Slots Slots `toml:"slots"`
}

func defaultApp() AppConfig {
	return AppConfig{
		Workers: []string{}, Fast: []string{}, Slow: []string{}, Also: []string{}, SendFileRoots: []string{},
		Slots: 1, Queue: 1000, Wait: Duration{30 * time.Second}, Reserve: balance.AutoReserve,
		HealthInterval: Duration{time.Second}, HealthTimeout: Duration{5 * time.Second}, HealthFailures: 3, HealthPasses: 2,
		Drain: Duration{time.Minute}, Blackout: Duration{time.Second}, DrainShare: 0.34,
		ConnectTimeout: Duration{5 * time.Second}, AnswerTimeout: Duration{time.Minute}, Stall: Duration{time.Minute},
		KeepIdle: Duration{time.Second},
		MaxBody:  1 << 30, MaxAnswer: 1 << 30, MaxMemory: 256 << 20, MaxSpool: 8 << 30, Upgrades: 1000,
		UpgradeIdle: Duration{10 * time.Minute},
	}
}

func defaultPool() PoolConfig { return PoolConfig{Workers: []string{}} }

func (c *AppConfig) checkNumbers(b bounds) {
	b.number("app.slots", int(c.Slots), 1, maxSlots)
	b.number("app.queue", c.Queue, 0, many)
	if c.Reserve != balance.AutoReserve {
		b.number("app.reserve", int(c.Reserve), 0, maxSlots)
	}
	b.number("app.health_failures", c.HealthFailures, 1, 100)
	b.number("app.health_passes", c.HealthPasses, 1, 100)
	b.time("app.wait", c.Wait)
	b.time("app.health_interval", c.HealthInterval)
	b.time("app.health_timeout", c.HealthTimeout)
	b.time("app.drain", c.Drain)
	b.time("app.connect_timeout", c.ConnectTimeout)
	b.time("app.answer_timeout", c.AnswerTimeout)
	b.time("app.stall", c.Stall)
	b.time("app.keep_idle", c.KeepIdle)
	b.time("app.upgrade_idle", c.UpgradeIdle)
	b.number("app.upgrades", c.Upgrades, 0, many)
	b.size("app.max_body", c.MaxBody, 64<<10)
	b.size("app.max_answer", c.MaxAnswer, 64<<10)
	b.size("app.max_memory", c.MaxMemory, 64<<10)
	b.size("app.max_spool", c.MaxSpool, 64<<10)
	if math.IsNaN(c.DrainShare) || c.DrainShare < 0 || c.DrainShare > 1 {
		b.bad("app.drain_share is %v; it has to be from 0 to 1", c.DrainShare)
	}
}

// maxSlots is the maximum of app.slots.
const maxSlots = 1 << 16
