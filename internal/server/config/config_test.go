package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// loadText loads a configuration file with this text, as serve would with these flags.
func loadText(t *testing.T, text string, args ...string) (Config, Origins, error) {
	t.Helper()
	return loadTextAs(t, RoleServe, text, args...)
}

// loadTextAs is loadText for a role.
func loadTextAs(t *testing.T, role Role, text string, args ...string) (Config, Origins, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	src := AddFlags(flags, role, getenv)
	if err := flags.Parse(append([]string{"--config", file}, args...)); err != nil {
		t.Fatal(err)
	}
	cfg, from, err := src.Load()
	for key, origin := range from {
		from[key] = strings.ReplaceAll(origin, file, "FILE")
	}
	if err != nil {
		err = errorText(strings.ReplaceAll(err.Error(), file, "FILE"))
	}
	return cfg, from, err
}

// getenv knows HOME alone.
func getenv(name string) string {
	if name == "HOME" {
		return "/home/git"
	}
	return ""
}

type errorText string

func (e errorText) Error() string { return string(e) }

func TestLoad(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadText(t, `
root = "/srv/git"
[http]
address = "127.0.0.1:9000"
public_read = true

[cache]
max_bytes = "3GiB"
grace = "90s"
[lfs]
min_free = 4096
[shutdown]
grace = "1m"
`, "--http", "127.0.0.1:9001", "--no-cache", "--public-read=false", "--shutdown-grace=5s")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"root":             {"/srv/git", "FILE:2"},
		"state":            {"/srv/git/.packhorse", "default"},
		"cache.dir":        {"/srv/git/.packhorse/cache", "default"},
		"http.address":     {"127.0.0.1:9001", "--http"},
		"http.public_read": {"false", "--public-read"},
		"cache.enabled":    {"false", "--no-cache"},
		"cache.max_bytes":  {"3GiB", "FILE:8"},
		"cache.grace":      {"1m30s", "FILE:9"},
		"lfs.min_free":     {"4KiB", "FILE:11"},
		"shutdown.grace":   {"5s", "--shutdown-grace"},
		"log.level":        {"info", "default"},
	}
	for _, s := range Settings(&cfg) {
		if w, ok := want[s.Key]; ok {
			if got := [2]string{s.String(), from[s.Key]}; got != w {
				t.Errorf("%s is %q, want %q", s.Key, got, w)
			}
			delete(want, s.Key)
		}
	}
	if len(want) > 0 {
		t.Errorf("no such keys: %v", want)
	}
}

func TestLoadMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"[cache]\nmax_byte = 1", `FILE:2: unknown key "cache.max_byte"; did you mean "cache.max_bytes"?`},
		{"[http]\nadress = \"x\"\n[log]\nlvel = \"x\"",
			"FILE:2: unknown key \"http.adress\"; did you mean \"http.address\"?\nFILE:4: unknown key \"log.lvel\"; did you " +
				"mean \"log.level\"?"},
		{"authorized_keys = 3", `FILE:1: unknown key "authorized_keys"; did you mean "ssh.authorized_keys"?`},
		{"entirely_different = 3",
			`FILE:1: unknown key "entirely_different"; docs/reference/config.md and "packhorse config show" list the keys`},
		{"\n[chace]\nenabled = true", `FILE:2: unknown key "chace"; did you mean "cache"?`},
		{"[shutdown]\ngrace = 30", `FILE:2: shutdown.grace: "30" is not a duration: write a number and a unit`},
		{"[shutdown]\ngrace = \"30\"", `FILE:2: shutdown.grace: "30" is not a duration: write a number and a unit`},
		{"[shutdown]\ngrace = \"-3s\"", `is not a duration`},
		{"[cache]\nmax_bytes = \"many\"", `"many" is not a size`},
		{"[cache]\nmax_bytes = \"9999999TiB\"", `is not a size`},
		{"[lfs]\nquota = \"50g\"", `"50g" is not a size: write a whole number and a unit (KiB, MiB, GiB or TiB)`},
		{"[git]\nslots = \"two\"", "FILE:2: git.slots: "},
		{"[http\n", "FILE:1:6: "},
	} {
		_, _, err := loadText(t, test.text)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q gives\n %v\nwant\n %s", test.text, err, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, want string // want: a part of the error, or "" for none
	}{
		{"", ""},
		{"--http [::1]:80", ""},
		{"--http localhost:http", ""},
		{"--http 0.0.0.0:80", "--public-read"},
		{"--http :80", "--public-read"},
		{"--http [::]:80", "--public-read"},
		{"--http example.com:80", "--public-read"},
		{"--http :80 --public-read", ""},
		{"--http 127.0.0.1", "HOST:PORT"},
		{"--http 127.0.0.1:99999", "HOST:PORT"},
		{"--ops :9090", "--ops-expose"},
		{"--ops :9090 --ops-expose", ""},
		{"--ops=", ""},
		{"--tls-cert x", "http.tls_cert needs http.tls_key (--tls-key)"},
		{"--wants all", `fetch.wants is "all"; it has to be one of ["auto" "any" "reachable" "tip"]`},
		{"--log-level loud", "log.level"},
		{"--git-slots -1", "git.slots is -1; it has to be from 0 to 1024"},
	} {
		cfg, _, err := loadText(t, "", strings.Fields(test.args)...)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil {
			err = cfg.CheckOpen()
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	if cfg, _, err := loadText(t, "[http]\nmax_header = 1\nmax_body = 5\n[git]\nslots = 4000"); err != nil {
		t.Error(err)
	} else if err := cfg.Check(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three mistakes, got %v", err)
	}
}

func TestCheckSSHAlgorithms(t *testing.T) {
	t.Parallel()
	const listens = "[ssh]\naddress = \"127.0.0.1:0\"\nanonymous = true\n"
	for text, want := range map[string]string{
		`ciphers = ["aes128-gcm@openssh.com", "aes256-ctr"]`:          "",
		`macs = ["hmac-sha2-256"]`:                                    "",
		`key_exchanges = ["diffie-hellman-group14-sha256"]`:           "",
		`ciphers = ["aes128-cbc"]`:                                    `ssh.ciphers: unknown algorithm "aes128-cbc": use one of aes128-gcm`,
		`macs = ["hmac-md5"]`:                                         `ssh.macs: unknown algorithm "hmac-md5": use one of hmac-sha2-256-etm`,
		`key_exchanges = ["curve25519-sha256", "curve25519-sha256 "]`: `ssh.key_exchanges: unknown algorithm "curve25519-sha256 "`,
	} {
		cfg, _, err := loadText(t, listens+text)
		if err == nil {
			err = cfg.Check()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestShowIsAConfiguration checks that the output of config show is a configuration file with the same values.
func TestShowIsAConfiguration(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadText(t, "root = \"/srv/a \\\"b\\\"\"\n[cache]\ngrace = \"36h\"", "--git", "/opt/git")
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	if err := ShowConfig(&shown, &cfg, from); err != nil {
		t.Fatal(err)
	}
	again, _, err := loadText(t, shown.String())
	if err != nil {
		t.Fatalf("%v in\n%s", err, &shown)
	}
	if !reflect.DeepEqual(again, cfg) {
		t.Errorf("config show gives other values:\n%+v\n%+v", again, cfg)
	}
}

func TestShowPrintsEffectiveValues(t *testing.T) {
	t.Parallel()
	show := func(args ...string) string {
		cfg, from, err := loadText(t, "", args...)
		if err != nil {
			t.Fatal(err)
		}
		var shown bytes.Buffer
		if err := ShowConfig(&shown, &cfg, from); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(shown.String()), " ")
	}
	for _, want := range []string{
		fmt.Sprintf("slots = 0 # default (auto: %d here)", runtime.GOMAXPROCS(0)),
		`max_bytes = "0" # default (auto)`,
	} {
		if got := show(); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if got := show("--git-slots", "1"); !strings.Contains(got, "slots = 1 # --git-slots ") {
		t.Errorf("with one slot: %s", got)
	}
}

func TestSizeAndDurationRoundTrip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"0": "0", "1": "1", "1024": "1KiB", "10 GiB": "10GiB", "2GB": "2GB",
		"1536": "1536", "2000000": "2MB", "512B": "512", "3TiB": "3TiB"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s.String() != want {
			t.Errorf("size %q is %q (%v), want %q", text, s, err, want)
		}
	}
	for text, want := range map[string]string{"90s": "1m30s", "5m": "5m", "2h": "2h", "0s": "0s", "100ms": "100ms",
		"1h0m1s": "1h0m1s", "14d": "336h"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.String() != want {
			t.Errorf("duration %q is %q (%v), want %q", text, d, err, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{"", "root = \"x\"", "[http]\naddress = 3", "http.address = \"a:1\"",
		"http = {address = \"a:1\", x = [{}]}", "[[http]]\n", "[a.b]\nc.d=1",
		"[[node]]\nname = \"a\"\n[[node]]\nweight = 2\n", "node = [{name = \"a\"}]",
		"[[route]]\nnodes = [\"a\", 3]", "[[node.x]]\n[node.y]",
		"git.slots = 3\n[push.fsck]\nbadName = 1", "root = \"\"\"\n[http]\naddress = 1\n\"\"\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg := DefaultConfig()
		if err := parseFile("FILE", text, &cfg, Origins{}); err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "FILE:") {
					t.Errorf("mistake without a place: %s", err)
				}
				break // a message may have several lines
			}
			return
		}
		for key, line := range keyLines(text) {
			if line < 1 || line > bytes.Count(text, []byte("\n"))+1 {
				t.Errorf("%q stands on line %d", key, line)
			}
		}
		_ = cfg.Check()
	})
}

func TestFetchPolicy(t *testing.T) {
	t.Parallel()
	cfg, _, err := loadText(t, "")
	if err != nil || !reflect.DeepEqual(*cfg.Fetch.Policy(), repo.DefaultPolicy()) {
		t.Errorf("default: %+v, %v", cfg.Fetch.Policy(), err)
	}
	cfg, _, err = loadText(t, "[fetch]\nallow_filter = false\ngrace = \"0s\"\n")
	want := repo.DefaultPolicy()
	want.Filter, want.Grace = false, 0
	if err != nil || !reflect.DeepEqual(*cfg.Fetch.Policy(), want) {
		t.Errorf("all turned: %+v, %v", cfg.Fetch.Policy(), err)
	}
}

// A table of checks changes those that it names; what is shown can be read again.
func TestPushFsck(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadText(t, "[push.fsck]\nmissingEmail = \"warn\"\nbadTimezone = \"error\"\n")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{ badTimezone = "error", missingEmail = "warn", missingSpaceBeforeDate = "ignore", zeroPaddedFilemode = "ignore" }`
	if got := cfg.Push.Fsck.TOML(); got != want || from["push.fsck"] != "FILE:1" || cfg.Check() != nil {
		t.Errorf("%s from %s: %v", got, from["push.fsck"], cfg.Check())
	}
	again, _, err := loadText(t, "[push]\nfsck = "+want+"\n")
	if err != nil || again.Push.Fsck.TOML() != want {
		t.Errorf("what was shown is read as %s: %v", again.Push.Fsck.TOML(), err)
	}
	for text, want := range map[string]string{
		"[push.fsck]\nbadZone = \"warn\"\n": `push.fsck: unknown object check "badZone"`,
		"[push.fsck]\nbadName = 3\n":        "FILE:2",
	} {
		cfg, _, err := loadText(t, text)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	const good = "[[auth.oidc]]\nissuer = \"https://ci.example\"\naudience = \"a\"\nrepositories = [\"h/{r}\"]\n"
	cfg, _, err := loadText(t, good+"claims = { ref = \"refs/heads/*\", \"a.b\" = \"c\" }\nca = \"ca.pem\"\n")
	if err != nil || cfg.Check() != nil {
		t.Fatalf("error = %v, check = %v, want none", err, cfg.Check())
	}
	want := auth.OIDCRule{Issuer: "https://ci.example", Audience: "a", Repositories: []string{"h/{r}"}, May: "read",
		Claims: map[string]string{"ref": "refs/heads/*", "a.b": "c"}, CA: cfg.Auth.OIDC[0].CA}
	if got := cfg.Auth.OIDCRules(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("OIDCRules() = %+v, want %+v", got, want)
	}
	if got, want := cfg.Auth.OIDC[0].Claims.TOML(), `{ "a.b" = "c", ref = "refs/heads/*" }`; got != want {
		t.Errorf("claims = %s, want %s", got, want)
	}
	if !filepath.IsAbs(cfg.Auth.OIDC[0].CA) {
		t.Errorf("ca = %q, want an absolute path", cfg.Auth.OIDC[0].CA)
	}
	if err := cfg.CheckOpen(); err != nil {
		t.Errorf("CheckOpen() = %v, want nil", err)
	}
	for text, want := range map[string]string{
		good + "may = \"admin\"\n":                               "auth.oidc",
		good + "claims = { ref = 3 }\n":                          "claims.ref: 3 is not a string",
		strings.Replace(good, "https:", "http:", 1):              `auth.oidc 1: "http://ci.example" is not`,
		strings.Replace(good, "h/{r}", "**", 1):                  "everybody",
		good + good + "claims = \"sub\"\n":                       "is a table",
		strings.Replace(good, "audience = \"a\"\n", "", 1):       "required",
		strings.Replace(good, "audience", "audienc", 1):          `did you mean "auth.oidc.audience"?`,
		strings.Replace(good, "[[auth.oidc]]", "[auth.oidc]", 1): "write [[auth.oidc]]",
	} {
		cfg, _, err := loadText(t, text)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want one with %q", text, err, want)
		}
	}
}

func TestForgeMistakes(t *testing.T) {
	t.Parallel()
	const valid = "push.enabled = false\nmaintenance.enabled = false\n[auth.origin]\nurl = \"https://forge.example/git/\"\n"
	for _, test := range []struct{ text, want string }{
		{valid + "prefix = \"forge\"\nfold_case = true", ""},
		{valid + "[auth.hook]\nurl = \"http://127.0.0.1:1/\"", "credentials for an origin must not reach the hook"},
		{valid + "prefix = \"/forge/\"", "auth.origin.prefix: \"/forge/\" is not a path"},
		{"[auth.origin]\nurl = \"https://forge.example/\"", "set push.enabled = false"},
		{"[auth.origin]\nurl = \"https://forge.example/\"", "set maintenance.enabled = false"},
		{strings.Replace(valid, "https", "ssh", 1), "cannot check credentials"},
		{strings.Replace(valid, "https", "file", 1), "auth.origin.url"},
		{strings.Replace(valid, "forge.", "user:pass@forge.", 1), "auth.origin.url"},
	} {
		cfg, _, err := loadText(t, "root = \".\"\nhttp.address = \":8080\"\n"+test.text)
		if err == nil {
			err = cfg.Check()
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error = %v, want %q", test.text, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("%s: error %v has the password", test.text, err)
		}
	}
}
