package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Enabled reports whether there is an application.
func (c *AppConfig) Enabled() bool { return len(c.Workers) > 0 || len(c.Pool) > 0 }

const (
	defaultPoolName = "app" // of the workers that are in no [[app.pool]]
	maxPools        = 32
	maxWorkers      = 1000 // of all pools
)

// check reports mistakes in the application's workers and in the patterns of requests.
func (c *AppConfig) check(f *Findings) {
	bad := f.bad
	if len(c.Workers) > 0 && len(c.Pool) > 0 {
		f.at("app.workers")("the application has workers in app.workers and in [[app.pool]] tables: move those of " +
			"app.workers into a pool")
		return
	}
	before := len(f.All)
	c.checkPools(f)
	if _, err := c.Routing(); err != nil && len(f.All) == before { // pools are a part of it
		f.at("app")("%w", err)
	}
	if _, err := c.files(); err != nil {
		f.at("app.send_file_roots")("%w", err)
	}
	for _, p := range c.Also {
		if !strings.HasPrefix(p, "/-/") && !strings.HasPrefix(p, "/.api/") {
			bad("app.also: %q has to begin with /-/ or /.api/: all other paths without Git requests belong to the application",
				p)
		}
	}
	if c.Health != "" && (!strings.HasPrefix(c.Health, "/") ||
		strings.ContainsFunc(c.Health, func(r rune) bool { return r <= ' ' || r >= 0x7f })) {
		bad("app.health is %q; it has to be a path, as in \"/-/readiness\"", c.Health)
	}
	if (c.SendFile == "") != (len(c.SendFileRoots) == 0) {
		bad("app.send_file and app.send_file_roots need each other: the header that names a file, and the directories " +
			"of such files")
	}
}

func (c *AppConfig) checkPools(f *Findings) {
	if len(c.Pool) > maxPools {
		f.at("app.pool")("there are %d pools; an application has at most %d", len(c.Pool), maxPools)
	}
	names, workers, addresses, all, shares := map[string]bool{}, map[string]string{}, map[string]string{}, 0, 0
	for i, p := range c.allPools() {
		table := "app"
		if len(c.Pool) > 0 {
			table = fmt.Sprintf("app.pool[%d]", i)
		}
		if !nodeName.MatchString(p.Name) {
			f.at(table+".name")("app.pool %q needs a name of letters, digits, \".\", \"_\" and \"-\"", p.Name)
		}
		if names[p.Name] {
			f.at(table+".name")("there are two pools %q; put all their workers in one", p.Name)
		}
		names[p.Name] = true
		if len(p.Workers) == 0 {
			f.at(table+".workers")("app.pool %q has no workers: name them with workers = [\"unix:/run/app/w0.sock\"], or "+
				"remove the pool", p.Name)
		}
		shares += p.Share
		for _, text := range p.Workers {
			all++
			w, err := app.ParseWorker(text)
			if err != nil {
				f.at(table+".workers")("app.pool %q: %w", p.Name, err)
				continue
			}
			if other, taken := workers[w.Name]; taken {
				f.at(table+".workers")("%q would be the name of two workers of the application, %s and %s: name one, as in "+
					"\"b=%s\"", w.Name, other, w.Address, w.Address)
			}
			if other, taken := addresses[w.Address]; taken {
				f.at(table+".workers")("%s is the worker %q and %q: it would get more requests than it has slots", w.Address,
					other, w.Name)
			}
			workers[w.Name], addresses[w.Address] = w.Address, w.Name
		}
	}
	if all > maxWorkers {
		f.at("app.workers")("the application has %d workers: at most %d are allowed", all, maxWorkers)
	}
	if len(c.Pool) > 0 && shares != 100 {
		f.at("app.pool[0].share")("the shares of the application's pools add up to %d: the percentages have to add up to 100",
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
	for _, list := range []struct {
		key  string
		from []string
		to   *[]app.Pattern
	}{{"slow", c.Slow, &o.Slow}, {"also", c.Also, &o.Also}} {
		for _, text := range list.from {
			p, err := app.ParsePattern(text)
			if err != nil {
				return o, fmt.Errorf("app.%s: %w", list.key, err)
			}
			*list.to = append(*list.to, p)
		}
	}
	o.Queue = balance.Limits{Queue: c.Queue, Wait: c.Wait.Duration}
	return o, nil
}

// files returns the directories of send_file_roots.
func (c *AppConfig) files() (list []app.FileRoot, err error) {
	for _, text := range c.SendFileRoots {
		root := app.FileRoot{Dir: text}
		if c.SendFile == sendByRedirect {
			uri, dir, ok := strings.Cut(text, "=")
			if !ok || !strings.HasPrefix(uri, "/") || !strings.HasSuffix(uri, "/") || len(uri) < 2 {
				return nil, fmt.Errorf("app.send_file_roots: %q has no path that %s uses for the directory: write it before "+
					"the directory, as in \"/protected/=/srv/files\"", text, sendByRedirect)
			}
			root = app.FileRoot{URI: uri, Dir: dir}
		}
		if !filepath.IsAbs(root.Dir) {
			return nil, fmt.Errorf("app.send_file_roots: %q is not an absolute path", root.Dir)
		}
		list = append(list, root)
	}
	return list, nil
}

// sendByRedirect is the header that names a file by a path that stands for its directory.
const sendByRedirect = "X-Accel-Redirect"

// Options returns the options of the proxy.
func (c *AppConfig) Options(cfg Config) (o app.Options, err error) {
	o = app.Options{
		Health: app.Health{
			Path: c.Health, Interval: c.HealthInterval.Duration, Timeout: c.HealthTimeout.Duration, Failures: c.HealthFailures,
			Passes: c.HealthPasses,
		},
		Blackout: c.Blackout.Duration, DrainShare: c.DrainShare,
		ConnectTimeout: c.ConnectTimeout.Duration, HeaderTimeout: c.AnswerTimeout.Duration, StallTimeout: c.Stall.Duration,
		KeepIdle: c.KeepIdle.Duration,
		Bodies: app.Bodies{
			MaxRequest: int64(c.MaxBody), MaxResponse: int64(c.MaxAnswer), MaxMemory: int64(c.MaxMemory),
			MaxDir: int64(c.MaxSpool),
			Dir:    filepath.Join(cfg.State, "app"), ReadStall: cfg.HTTP.ReadStall.Duration,
		},
		Files: app.Files{Header: c.SendFile}, MaxUpgrades: c.Upgrades, UpgradeIdle: c.UpgradeIdle.Duration,
	}
	if c.Upgrades == 0 {
		o.MaxUpgrades = -1
	}
	if o.Routing, err = c.Routing(); err == nil {
		o.Files.Roots, err = c.files()
	}
	return o, err
}

// Reloaded copies the keys that apply to a running application from a new configuration. It returns false if an
// application appears or disappears, which needs a restart.
func (c *AppConfig) Reloaded(next *AppConfig) bool {
	if !c.Enabled() || !next.Enabled() {
		return c.Enabled() == next.Enabled()
	}
	c.Workers, c.Pool, c.Slots, c.Queue, c.Wait = next.Workers, next.Pool, next.Slots, next.Queue, next.Wait
	c.Slow, c.Also = next.Slow, next.Also
	return true
}
