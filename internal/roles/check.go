package roles

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"

	"github.com/packhorse-git/packhorse/internal/credential"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// check finds the values that cannot be right by themselves or together. Every message says what to do.
func (c *Config) check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	c.checkListeners(bad)
	c.checkAuth(bad)
	c.checkSSH(bad)
	c.checkStorage(bad)
	c.checkNodes(bad)
	c.checkWebhooks(bad)
	c.checkChoices(bad)
	c.checkNumbers(bad)
	return errors.Join(all...)
}

// checkListeners finds addresses that would let in more than is meant.
func (c *Config) checkListeners(bad func(format string, args ...any)) {
	if _, err := splitAddress(c.HTTP.Address); err != nil {
		bad("http.address: %w", err)
	}
	if c.Ops.Address != "" {
		if host, err := splitAddress(c.Ops.Address); err != nil {
			bad("ops.address: %w", err)
		} else if !isLoopback(host) && !c.Ops.Expose {
			bad("ops.address %q can be reached by other machines, and it serves profiles to whoever reaches it: "+
				"add --ops-expose (ops.expose = true) if that network is trusted, or listen on 127.0.0.1", c.Ops.Address)
		}
	}
	if (c.HTTP.TLSCert == "") != (c.HTTP.TLSKey == "") {
		bad("TLS needs both --tls-cert and --tls-key (http.tls_cert, http.tls_key)")
	}
}

// checkChoices finds words that are none of those which may stand there.
func (c *Config) checkChoices(bad func(format string, args ...any)) {
	oneOf := func(key, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		bad("%s is %q; it has to be one of %q", key, value, allowed)
	}
	oneOf("auth.hook.fail", c.Auth.Hook.Fail, failClosed, failStale)
	oneOf("fetch.wants", c.Fetch.Wants, "auto", "any", "reachable", "tip")
	oneOf("fetch.unborn", c.Fetch.Unborn, string(repo.UnbornAdvertise), string(repo.UnbornAllow), string(repo.UnbornIgnore))
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "auto", "text", "json")
}

// checkNumbers finds numbers, sizes and times outside of what makes sense.
func (c *Config) checkNumbers(bad func(format string, args ...any)) {
	within := func(key string, n, low, high int) {
		if n < low || n > high {
			bad("%s is %d; it has to be from %d to %d", key, n, low, high)
		}
	}
	const many = 1 << 24
	within("auth.guesses", c.Auth.Guesses, 0, many)
	within("auth.hook.cache_size", c.Auth.Hook.CacheSize, 0, many)
	within("git.slots", c.Git.Slots, 0, 1024)
	within("git.queue", c.Git.Queue, 0, many)
	within("git.nice", c.Git.Nice, 0, 19)
	within("git.threads", c.Git.Threads, 0, 1024)
	within("git.window", c.Git.Window, -1, 10000)
	within("git.shallow_window", c.Git.ShallowWindow, -1, 10000)
	within("git.snapshot_window", c.Git.SnapshotWindow, -1, 10000)
	within("git.shallow_compression", c.Git.ShallowCompression, -1, 9)
	within("fetch.max_wants", c.Fetch.MaxWants, 1, many)
	within("fetch.max_haves", c.Fetch.MaxHaves, 1, many)
	within("fetch.max_shallow", c.Fetch.MaxShallow, 1, many)
	within("push.max_commands", c.Push.MaxCommands, 1, many)
	within("push.max_options", c.Push.MaxOptions, 0, 10_000)
	within("push.slots", c.Push.Slots, 0, 1024)
	within("push.queue", c.Push.Queue, 0, many)
	within("storage.channels", c.Storage.Channels, 1, many)
	within("lanes.small", c.Lanes.Small, 1, many)
	within("maintenance.loose_objects", c.Maintenance.LooseObjects, 1, many)
	within("warmup.least", c.Warmup.Least, 1, many)
	within("warmup.packs", c.Warmup.Packs, 1, 100)
	within("maintenance.packs", c.Maintenance.Packs, 1, many)
	within("maintenance.loose_refs", c.Maintenance.LooseRefs, 1, many)
	within("lanes.hit", c.Lanes.Hit, 1, many)
	within("lanes.cold", c.Lanes.Cold, 1, many)
	within("lanes.push", c.Lanes.Push, 1, many)
	within("lanes.search", c.Lanes.Search, 0, 1024)
	within("lanes.maintenance", c.Lanes.Maintenance, 1, 1024)
	if c.Lanes.Anonymous <= 0 || c.Lanes.Anonymous > 1 {
		bad("lanes.anonymous is %v; it has to be more than 0, and 1 at most", c.Lanes.Anonymous)
	}
	for _, s := range []struct {
		key   string
		value Size
		least Size
	}{
		{"http.max_header", c.HTTP.MaxHeader, 4 << 10},
		{"http.max_body", c.HTTP.MaxBody, 64 << 10},
		{"push.max_size", c.Push.MaxSize, 0},
		{"push.max_memory", c.Push.MaxMemory, 0},
		{"lanes.request_bytes", c.Lanes.RequestBytes, 1 << 20},
		{"cache.max_bytes", c.Cache.MaxBytes, 0},
		{"cache.min_free", c.Cache.MinFree, 0},
		{"warmup.max_bytes", c.Warmup.MaxBytes, 1},
	} {
		if s.value < s.least {
			bad("%s is %d; it has to be at least %s", s.key, int64(s.value), s.least)
		}
	}
	for _, d := range []struct {
		key   string
		value Duration
	}{
		{"storage.channel_idle", c.Storage.ChannelIdle},
		{"storage.stall", c.Storage.Stall},
		{"http.header_timeout", c.HTTP.HeaderTimeout},
		{"http.idle_timeout", c.HTTP.IdleTimeout},
		{"http.read_stall", c.HTTP.ReadStall},
		{"http.write_stall", c.HTTP.WriteStall},
		{"cache.max_idle", c.Cache.MaxIdle},
		{"git.wait", c.Git.Wait},
		{"maintenance.quiet", c.Maintenance.Quiet},
		{"warmup.window", c.Warmup.Window},
		{"push.wait", c.Push.Wait},
		{"push.time_limit", c.Push.TimeLimit},
		{"push.hook_time_limit", c.Push.HookTimeLimit},
	} {
		if d.value.Duration <= 0 {
			bad("%s is %s; it has to be more than 0s", d.key, d.value)
		}
	}
}

// checkRole finds what a role needs and was not told.
func (c *Config) checkRole(role role) error {
	if role == roleGateway {
		if len(c.Node) == 0 {
			return errors.New("which nodes? name each with --node NAME=ADDRESS (or a [[node]] table in the configuration)")
		}
		if c.State == "" {
			return errors.New("there is no home directory for the admin socket; name a state directory with --state DIR")
		}
		return checkSocketPath(adminSocket(c.State))
	}
	if c.Root == "" {
		return errors.New("which repositories? name the directory that holds them with --root DIR (or root in the configuration)")
	}
	if role == roleStorage && c.Storage.Listen == "" {
		return errors.New("where do gateways reach this node? give --listen 127.0.0.1:9100 or --listen unix:PATH (or storage.listen in the configuration)")
	}
	return nil
}

// checkDisk finds what the machine lacks for these values in this role.
func (c *Config) checkDisk(role role) error {
	var all []error
	add := func(key string, err error) {
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", key, err))
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	if role.flags()&public != 0 && c.HTTP.TLSCert != "" {
		_, err := credential.LoadCertificate(c.HTTP.TLSCert, c.HTTP.TLSKey, quiet)
		add("http.tls_cert and http.tls_key", err)
	}
	if role.flags()&public != 0 {
		if err := c.checkOpen(); err != nil {
			all = append(all, err)
		}
		if c.Auth.Hook.SecretFile != "" {
			_, err := credential.LoadSecret(c.Auth.Hook.SecretFile, quiet)
			add("auth.hook.secret_file", err)
		}
		all = append(all, c.checkSSHDisk(quiet))
	}
	if role.flags()&repositories != 0 {
		if info, err := os.Stat(c.Root); err != nil {
			all = append(all, fmt.Errorf("root: %w; make the directory, or name the one that holds your bare repositories", err))
		} else if !info.IsDir() {
			all = append(all, fmt.Errorf("root: %s is not a directory; name the directory above your bare repositories", c.Root))
		}
		if _, err := exec.LookPath(c.Git.Program); err != nil {
			all = append(all, fmt.Errorf("git.program: %w; install git, or name the program with --git", err))
		}
		if c.Push.HooksDir != "" {
			_, err := os.ReadDir(c.Push.HooksDir)
			add("push.hooks_dir", err)
		}
		for i := range c.Webhook {
			if file := c.Webhook[i].SecretFile; file != "" {
				_, err := credential.LoadSecret(file, quiet)
				add(fmt.Sprintf("webhook %q", c.Webhook[i].Name), err)
			}
		}
		if c.Storage.Listen != "" {
			_, err := c.Storage.trust(quiet)
			add("storage", err)
		}
	}
	if role == roleGateway {
		for i := range c.Node {
			_, err := c.Node[i].trust(quiet)
			add(fmt.Sprintf("node %q", c.Node[i].Name), err)
		}
	}
	return errors.Join(all...)
}

func splitAddress(address string) (host string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return "", fmt.Errorf("%q is not HOST:PORT, as in 127.0.0.1:8080", address)
	}
	return host, nil
}

// isLoopback reports whether only this machine reaches the host. An empty host is every address of the machine. Of names,
// only localhost counts; what others resolve to may change.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
