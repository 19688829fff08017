package roles

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// Errors of the configuration tell the correct form.
func TestAppMistakes(t *testing.T) {
	t.Parallel()
	const one = "[app]\nworkers = [\"unix:/run/w0.sock\"]\n"
	for text, want := range map[string]string{
		"trusted_proxies = [\"10.0.0.0/64\"]": `trusted_proxies: "10.0.0.0/64" is not a network`,
		"[http]\nproxy_protocol = true": "http.proxy_protocol is on, and " +
			"trusted_proxies is empty",
		"[ssh]\nproxy_protocol = true": "ssh.proxy_protocol is on, and " +
			"trusted_proxies is empty",
		one + "slots = \"many\"":      `"many" is not a whole number`,
		one + "slots = \"auto\"":      `"auto" is not a whole number`,
		one + "max_slots = 4":         "app.max_slots was removed: ",
		one + "slow_start = \"10s\"":  "app.slow_start was removed: ",
		one + "sticky = \"cookie:a\"": "app.sticky was removed: ",
		one + "reserve = 2":           "app.reserve was removed: ",
		one + "fast = [\"/ready\"]":   "app.fast was removed: ",
		one + "slots = 0":             "app.slots is 0",
		one + "slots = -3":            "app.slots is -3",
		"[app]\nworkers = [\"10.0.0.1:80\"]": "must be like unix:/run/app/w0.sock or " +
			"http://127.0.0.1:3001",
		"[app]\nworkers = [\"https://a\"]":                                       "must be like unix:/run/app/w0.sock",
		"[app]\nworkers = [\"a b=unix:/run/a\"]":                                 `worker "a b=unix:/run/a": the name must have letters`,
		"[app]\nworkers = [\"unix:/a/w0.sock\", \"unix:/b/w0.sock\"]":            `name one, as in "b=unix:/b/w0.sock"`,
		"[app]\nworkers = [\"a=unix:/a/w0\", \"b=unix:/a/w0\"]":                  `unix:/a/w0 is the worker "a" and "b"`,
		"[app]\nworkers = [\"a=http://A\", \"b=http://a:80/\"]":                  `http://a is the worker "a" and "b"`,
		"[app]\nworkers = [\"unix:/" + strings.Repeat("x", 104) + "\"]":          "longer than the 103 bytes",
		one + "slow = [\"readiness\"]":                                           "app.slow was removed: ",
		one + "send_file = \"X-Sendfile\"":                                       "app.send_file was removed: ",
		one + "also = [\"/x\"]":                                                  "app.also: \"/x\" has to begin with",
		one + "health = \"ready\"":                                               "it has to be a path",
		one + "[[app.pool]]\nname = \"b\"\nshare = 100\nworkers = [\"unix:/b\"]": "move those of app.workers into a pool",
		"[[app.pool]]\nname = \"a\"\nshare = 60\nworkers = [\"unix:/a\"]":        "add up to 60: the percentages have to",
		"[[app.pool]]\nname = \"a\"\nshare = 100":                                `app.pool "a" has no workers`,
		"[[app.pool]]\nname = \"a/b\"\nshare = 100\nworkers = [\"unix:/a\"]":     `app.pool "a/b" needs a name`,
		"[app.pool]\nname = \"a\"\nshare = 100\nworkers = [\"unix:/a\"]":         "write [[app.pool]]",
		"[[app.pool]]\nname = \"a\"\nshares = 100\nworkers = [\"unix:/a\"]":      `unknown key "app.pool.shares"; did you mean "app.pool.share"?`,
		"[[app.pool]]\nname=\"a\"\nshare=50\nworkers=[\"unix:/a\"]\n" +
			"[[app.pool]]\nname=\"a\"\nshare=50\nworkers=[\"unix:/b\"]": `there are two pools "a"`,
	} {
		cfg, err := loadTextAs(t, config.RoleServe, text)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, not %s", text, err, want)
		}
	}
}

func TestAppRouting(t *testing.T) {
	t.Parallel()
	cfg, err := loadTextAs(t, config.RoleServe, `
[app]
slots = 2
[[app.pool]]
name = "puma"
share = 90
workers = ["unix:/run/app/w0.sock", "x=http://[::1]:3000"]
[[app.pool]]
name = "other"
share = 10
slots = 8
workers = ["http://127.0.0.1:3001"]
`)
	if err == nil {
		err = cfg.Check()
	}
	r, errOfRouting := cfg.App.Routing()
	if err != nil || errOfRouting != nil {
		t.Fatal(err, errOfRouting)
	}
	if len(r.Pools) != 2 {
		t.Fatalf("routing = %+v, want 2 pools", r)
	}
	want := app.WorkerOptions{Name: "w0", Address: "unix:/run/app/w0.sock", Slots: 2}
	if got := r.Pools[0].Workers; got[0] != want || got[1].Name != "x" {
		t.Errorf("workers = %+v, want %+v and x", got, want)
	}
	if got := r.Pools[1].Workers[0]; got != (app.WorkerOptions{Name: "127.0.0.1:3001", Address: "http://127.0.0.1:3001", Slots: 8}) {
		t.Errorf("worker of the second pool = %+v, want 127.0.0.1:3001 with 8 slots", got)
	}
}

// SIGHUP takes workers and pools at once; that there is an application at all needs a restart.
func TestAppReload(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	file := filepath.Join(state, "packhorse.toml")
	write := func(text string) {
		t.Helper()
		text = "state = \"" + state + "\"\n[[node]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n" + text
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[app]\nworkers = [\"unix:" + state + "/w0\"]\n")
	flags := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	src := config.AddFlags(flags, config.RoleGateway, getenv([]string{"HOME=" + state}...))
	if err := flags.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	cfg, err := src.LoadChecked()
	if err != nil {
		t.Fatal(err)
	}
	d := testDeps(t, config.RoleGateway, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	proxy, err := newApp(d)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	r := &reloader{
		source: src, running: cfg, level: new(slog.LevelVar), log: slog.New(slog.NewTextHandler(&logged, nil)),
		apply: d.life.reload,
	}
	names := func() string {
		var list []string
		for _, w := range proxy.Workers() {
			list = append(list, w.Pool+"/"+w.Name)
		}
		return strings.Join(list, " ")
	}
	for _, step := range []struct{ text, want, says string }{
		{"[[app.pool]]\nname=\"x\"\nshare=50\nworkers=[\"unix:/w1\"]\n" +
			"[[app.pool]]\nname=\"y\"\nshare=50\nworkers=[\"unix:/w2\",\"unix:/w3\"]\n", "x/w1 y/w2 y/w3",
			"read the configuration again"},
		{"[[app.pool]]\nname=\"x\"\nshare=60\nworkers=[\"unix:/w1\"]\n", "x/w1 y/w2 y/w3", "add up to 60"},
		{"[app]\nworkers = [\"unix:/w4\"]\nmax_body = \"1MiB\"\n", "app/w4", "app.max_body"},
		{"", "app/w4", "app.workers"},
		{"[[app.pool]]\nname=\"x\"\nshare=100\nworkers=[\"unix:/w1\"]\n", "x/w1", "read the configuration again"},
		{"", "x/w1", "keys=app.pool"},
	} {
		logged.Reset()
		write(step.text)
		r.reload()
		if got := names(); got != step.want || !strings.Contains(logged.String(), step.says) {
			t.Errorf("%s\ngives %s, not %s\n%s", step.text, got, step.want, &logged)
		}
	}
}
