package config

import (
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
)

// AppConfig is the application behind a gateway or serve: requests that are not Git and not below /-/ or /.api/ go to its workers (docs/how-to/app.md). Without
// workers there is none, and such requests are answered with 404.
type AppConfig struct {
	// Addresses of the workers, each "unix:PATH" or "http://HOST:PORT", and "NAME=" before it if commands and metrics should call it otherwise than by the
	// socket's name without ".sock", or HOST:PORT. SIGHUP reads them again, as the other lists of this table and its pools but for send_file_roots.
	Workers []string `toml:"workers"`

	// How many requests a worker is given at once: a number, at most the threads that it has, or "auto", which measures what sharing a worker gains. For work
	// that only computes 1 is best.
	Slots Slots `toml:"slots"`

	// The most that "auto" gives a worker.
	MaxSlots int `toml:"max_slots"`

	// How many requests may wait for a worker. What comes then is answered with 503 and Retry-After.
	Queue int `toml:"queue"`

	// How long a request may wait for a worker.
	Wait Duration `toml:"wait"`

	// Path patterns of requests that are answered at once, as those for readiness are: a "*" stands for any text. They alone may take the slots in reserve.
	Fast []string `toml:"fast"`

	// Path patterns of requests that take long. Metrics and the log tell them apart, and no SLI judges them.
	Slow []string `toml:"slow"`

	// Slots of each pool that only fast requests take, if there are patterns of any; one is left for others. "auto" is one of four or more, and none of
	// fewer, where it would be too much.
	Reserve Reserve `toml:"reserve"`

	// Path patterns below /-/ and /.api/ that go to the application all the same.
	Also []string `toml:"also"`

	// What keeps a client in its pool where there are several: "cookie:NAME", "header:NAME" or "client", which is its address. Empty, and a request without
	// the key: nothing does.
	Sticky string `toml:"sticky"`

	// The path that tells whether a worker is ready, as in "/-/readiness": 2xx if it is. Empty: a worker that takes a connection is.
	Health string `toml:"health"`

	// How often workers are asked.
	HealthInterval Duration `toml:"health_interval"`

	// How long a worker may take to say whether it is ready.
	HealthTimeout Duration `toml:"health_timeout"`

	// After how many checks in a row that got no answer a worker is down. One that answers that it is not ready is drained at once.
	HealthFailures int `toml:"health_failures"`

	// How many checks in a row have to be good before a worker that was down or not ready is given requests again: more of them each time that it
	// changes within a minute.
	HealthPasses int `toml:"health_passes"`

	// How long a worker that is drained may take for what it has, until "packhorse drain worker --wait" gives up.
	Drain Duration `toml:"drain"`

	// How long a drained worker that has nothing left is not said to be drained yet: others that send it requests notice meanwhile.
	Blackout Duration `toml:"blackout"`

	// The part of a pool's workers, from 0 to 1, that may be out of service at once, by drain or by readiness; one always may.
	DrainShare float64 `toml:"drain_share"`

	// For how long a worker that comes back is given less than its share. "0s" turns that off.
	SlowStart Duration `toml:"slow_start"`

	// How long connecting to a worker may take.
	ConnectTimeout Duration `toml:"connect_timeout"`

	// How long a worker may take until its answer begins.
	AnswerTimeout Duration `toml:"answer_timeout"`

	// How long a worker may pause in the middle of an answer, or in taking a request. For clients it is http.write_stall.
	Stall Duration `toml:"stall"`

	// How long a connection to a worker is kept for the next request. It can keep a thread of the worker busy.
	KeepIdle Duration `toml:"keep_idle"`

	// The most bytes of a request's body. It is received before a worker is taken, to a file in STATE/app if it is long, and may pause for http.read_stall; each
	// 64 KiB of it have ten times that.
	MaxBody Size `toml:"max_body"`

	// The most bytes of an answer that is held for a client which takes it slower than the worker gives it. Beyond it the worker waits.
	MaxAnswer Size `toml:"max_answer"`

	// The most bytes of such bodies in memory, of all requests together. What is beyond goes to files.
	MaxMemory Size `toml:"max_memory"`

	// The most bytes of bodies and answers in files together.
	MaxSpool Size `toml:"max_spool"`

	// The header in which workers name a file to send as their answer: "X-Sendfile" or "X-Accel-Redirect"; empty: they cannot. Clients never see it.
	SendFile string `toml:"send_file"`

	// Directories that such files have to be in; for X-Accel-Redirect each with the path that stands for it before it, as in "/protected/=/srv/files".
	SendFileRoots []string `toml:"send_file_roots"`

	// How many connections may be upgraded, to WebSocket and others, at the same time. 0: none.
	Upgrades int `toml:"upgrades"`

	// How long neither side of such a connection may say anything.
	UpgradeIdle Duration `toml:"upgrade_idle"`

	Pool []PoolConfig `toml:"pool"`
}

// PoolConfig is a part of the application's workers that gets a share of the requests, so that two kinds of workers can be compared under the same
// traffic; each has a table of its own. The log says the pool of each request.
type PoolConfig struct {
	// What the log and the metrics call the pool: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Percent of the requests. Those of all pools add up to 100. A pool of which no worker can be used leaves its requests to the others.
	Share int `toml:"share"`

	// Addresses of the pool's workers, as in app.workers, which is empty then.
	Workers []string `toml:"workers"`

	// As app.slots, for the workers of this pool; "app" has that hold.
	Slots Slots `toml:"slots"`
}

func defaultApp() AppConfig {
	return AppConfig{
		Workers: []string{}, Fast: []string{}, Slow: []string{}, Also: []string{}, SendFileRoots: []string{},
		Slots: slotsAuto, MaxSlots: 8, Queue: 1000, Wait: Duration{30 * time.Second}, Reserve: balance.AutoReserve,
		HealthInterval: Duration{time.Second}, HealthTimeout: Duration{5 * time.Second}, HealthFailures: 3, HealthPasses: 2,
		Drain: Duration{time.Minute}, Blackout: Duration{time.Second}, DrainShare: 0.34, SlowStart: Duration{10 * time.Second},
		ConnectTimeout: Duration{5 * time.Second}, AnswerTimeout: Duration{time.Minute}, Stall: Duration{time.Minute}, KeepIdle: Duration{time.Second},
		MaxBody: 1 << 30, MaxAnswer: 1 << 30, MaxMemory: 256 << 20, MaxSpool: 8 << 30, Upgrades: 1000, UpgradeIdle: Duration{10 * time.Minute},
	}
}

func defaultPool() PoolConfig { return PoolConfig{Workers: []string{}, Slots: slotsOfApp} }

func (c *AppConfig) checkNumbers(b bounds) {
	if c.Slots != slotsAuto && c.Slots != slotsOfApp {
		b.number("app.slots", int(c.Slots), 1, maxSlots)
	}
	b.number("app.max_slots", c.MaxSlots, 1, maxSlots)
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

// maxSlots bounds the requests that one worker is given at once.
const maxSlots = 1 << 16
