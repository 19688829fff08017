package config

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// AppConfig is the application behind a gateway or serve (docs/how-to/app.md). Requests that are not Git's and not
// below /-/ or /.api/ go to its workers. Without workers they are answered with 404.
type AppConfig struct {
	// Workers lists the addresses of the workers: "unix:PATH" or "http://HOST:PORT", with an optional name before it, as
	// in "a=unix:/run/app/w0.sock". SIGHUP reloads the lists of this table.
	Workers []string `toml:"workers"`

	// Slots is the number of requests that a worker gets at the same time, at most the threads of a worker.
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

	// MaxBody is the maximum size of a request body.
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

// Enabled reports whether there is an application.
func (c *AppConfig) Enabled() bool { return len(c.Workers) > 0 || len(c.Pool) > 0 }

const (
	defaultPoolName = "app" // of the workers that are in no [[app.pool]]
	maxPools        = 32
	maxWorkers      = 1000 // of all pools
)

// check reports mistakes in the application's workers and paths.
func (c *AppConfig) check(f *Findings) {
	if len(c.Workers) > 0 && len(c.Pool) > 0 {
		f.at("app.workers", "the application has workers in app.workers and in [[app.pool]] tables: move those of "+
			"app.workers into a pool")
		return
	}
	c.checkPools(f)
	for _, p := range c.Also {
		if !strings.HasPrefix(p, "/-/") && !strings.HasPrefix(p, "/.api/") {
			f.bad("app.also: %q has to begin with /-/ or /.api/: all other paths without Git requests belong to the application",
				p)
		}
	}
	if c.Health != "" && (!strings.HasPrefix(c.Health, "/") ||
		strings.ContainsFunc(c.Health, func(r rune) bool { return r <= ' ' || r >= 0x7f })) {
		f.bad("app.health is %q; it has to be a path, as in \"/-/readiness\"", c.Health)
	}
}

func (c *AppConfig) checkPools(f *Findings) {
	if len(c.Pool) > maxPools {
		f.at("app.pool", "there are %d pools; an application has at most %d", len(c.Pool), maxPools)
	}
	names, workers, addresses, all, shares := map[string]bool{}, map[string]string{}, map[string]string{}, 0, 0
	for i, p := range c.allPools() {
		table := "app"
		if len(c.Pool) > 0 {
			table = fmt.Sprintf("app.pool[%d]", i)
		}
		if !nodeName.MatchString(p.Name) {
			f.at(table+".name", "app.pool %q needs a name of letters, digits, \".\", \"_\" and \"-\"", p.Name)
		}
		if names[p.Name] {
			f.at(table+".name", "there are two pools %q; put all their workers in one", p.Name)
		}
		names[p.Name] = true
		if len(p.Workers) == 0 {
			f.at(table+".workers", "app.pool %q has no workers: name them with workers = [\"unix:/run/app/w0.sock\"], or "+
				"remove the pool", p.Name)
		}
		shares += p.Share
		for _, text := range p.Workers {
			all++
			w, err := app.ParseWorker(text)
			if err != nil {
				f.at(table+".workers", "app.pool %q: %w", p.Name, err)
				continue
			}
			if other, taken := workers[w.Name]; taken {
				f.at(table+".workers", "%q would be the name of two workers of the application, %s and %s: name one, as in "+
					"\"b=%s\"", w.Name, other, w.Address, w.Address)
			}
			if other, taken := addresses[w.Address]; taken {
				f.at(table+".workers", "%s is the worker %q and %q: it would get more requests than it has slots", w.Address,
					other, w.Name)
			}
			workers[w.Name], addresses[w.Address] = w.Address, w.Name
		}
	}
	if all > maxWorkers {
		f.at("app.workers", "the application has %d workers: at most %d are allowed", all, maxWorkers)
	}
	if len(c.Pool) > 0 && shares != 100 {
		f.at("app.pool[0].share", "the shares of the application's pools add up to %d: the percentages have to add up to 100",
			shares)
	}
}

// allPools returns the pools, including the pool of app.workers.
func (c *AppConfig) allPools() []PoolConfig {
	if len(c.Workers) > 0 && len(c.Pool) == 0 {
		return []PoolConfig{{Name: defaultPoolName, Share: 100, Workers: c.Workers}}
	}
	return c.Pool
}

// Routing returns the options that may change while the proxy runs.
func (c *AppConfig) Routing() (o app.Routing, err error) {
	for _, p := range c.allPools() {
		pool := app.PoolOptions{Name: p.Name, Share: p.Share}
		for _, text := range p.Workers {
			w, err := app.ParseWorker(text)
			if err != nil {
				return o, err
			}
			w.Slots = cmp.Or(p.Slots, c.Slots)
			pool.Workers = append(pool.Workers, w)
		}
		o.Pools = append(o.Pools, pool)
	}
	o.Also = c.Also
	o.Queue = balance.Limits{Queue: c.Queue, Wait: c.Wait.Duration}
	return o, nil
}

// Options returns the options of the proxy.
func (c *AppConfig) Options(cfg Config) (o app.Options, err error) {
	o = app.Options{
		Health: app.Health{
			Path: c.Health,
			// A worker that ends is noticed within three seconds, and a single lost check takes no worker out of service.
			Interval: time.Second, Failures: 3,
			Passes: 2, // a worker that just started may fail again
		},
		Blackout:      time.Second, // others that send it requests notice its checks meanwhile
		HeaderTimeout: c.AnswerTimeout.Duration, KeepIdle: c.KeepIdle.Duration,
		MaxBody: int64(c.MaxBody), ReadStall: cfg.HTTP.Stall.Duration, MaxUpgrades: c.Upgrades,
	}
	if c.Upgrades == 0 {
		o.MaxUpgrades = -1
	}
	o.Routing, err = c.Routing()
	return o, err
}

// Reloaded copies the keys that apply to a running application from a new configuration. It returns false if an
// application appears or disappears, which needs a restart.
func (c *AppConfig) Reloaded(next *AppConfig) bool {
	if !c.Enabled() || !next.Enabled() {
		return c.Enabled() == next.Enabled()
	}
	c.Workers, c.Pool, c.Slots, c.Queue, c.Wait = next.Workers, next.Pool, next.Slots, next.Queue, next.Wait
	c.Also = next.Also
	return true
}
