package config

import (
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror"
)

func TestMirrorMistakes(t *testing.T) {
	t.Parallel()
	const ssh = "from = \"ssh://git@host/\"\nauth = \"rules\"\n"
	for _, test := range []struct{ table, want string }{
		{"to = \"x\"", `FILE:2: mirror "": from: which origin?`},
		{"from = \"file:///srv/git\"",
			`FILE:3: mirror "file:///srv/git": from: origin "file:///srv/git": scheme "file": use https, http or ssh`},
		{"from = \"git@github.com:acme\"", `write ssh://USER@HOST/ for SSH`},
		{"from = \"ext::sh -c id\"", "use https, http or ssh"},
		{"from = \"https://-oProxyCommand=id/\"", "invalid host"},
		{"from = \"ssh://-oProxyCommand=id@host/\"", "no credentials in a URL"},
		{"from = \"https:///team\"", "invalid host"},
		{"from = \"https://host/?a=b\"", "a query or fragment is not allowed"},
		{"from = \"https://me:hunter2@host/\"", `mirror "https://...@host/": from: the URL contains a user name or a password`},
		{"from = \"https://host/a//-/../b\\\\c/\"", "invalid path"},
		{"from = \"https://host/\"\nto = \"../x\"", "FILE:4: mirror \"https://host/\": to: "},
		{"from = \"https://host/\"\n[[mirror]]\nfrom = \"http://HOST/\"", "there are two mirrors at"},
		{"from = \"https://host/\"\nallow = [\"a//b\"]", "FILE:4: mirror \"https://host/\": allow: "},
		{"from = \"https://host/\"\nrefs = [\"heads/*\"]", "FILE:4: mirror \"https://host/\": refs: "},
		{"from = \"https://host/\"\nrefs = []", "remove the key to mirror branches and tags"},
		{"from = \"https://host/\"\nfresh = \"never\"", `FILE:4: mirror "https://host/": fresh: "never" is not "always"`},
		{"from = \"https://host/\"\nfresh = \"webhook\"", "needs webhook_secret_file"},
		{"from = \"https://host/\"\npush = \"both\"", `mirror "https://host/": push is "both"; it has to be one of`},
		{"from = \"https://host/\"\nproxy = \"host:3128\"", "proxy: it is not a URL"},
		{"from = \"https://host/\"\ntoken_file = \"a\"\napp_id = 3\napp_installation = 4\napp_key_file = \"b\"", "more than one credential"},
		{"from = \"https://host/\"\napp_id = 3", "app_id needs app_installation"},
		{"from = \"https://host/\"\nuser = \"me\"", "user needs token_file"},
		{"from = \"https://host/\"\nssh_key = \"a\"", "are for origins with ssh://"},
		{"from = \"ssh://git@host/\"\nssh_key = \"a\"\nknown_hosts = \"b\"", "an SSH origin cannot decide about readers"},
		{ssh, "an SSH origin needs ssh_key and known_hosts"},
		{ssh + "ssh_key = \"a\"\nknown_hosts = \"b\"\ntoken_file = \"c\"", "an SSH origin uses ssh_key"},
	} {
		cfg, from, err := loadText(t, "root = \"/srv/git\"\n[[mirror]]\n"+test.table)
		if err == nil {
			f := &Findings{from: from}
			cfg.checkValues(f)
			err = f.Err()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", test.table, err, test.want)
		}
	}
}

func TestMirrorTables(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadTextAs(t, RoleMirror, `
[[mirror]]
from = "https://github.com/acme"
deny = ["secret/**"]
[[mirror]]
from = "ssh://git@example.com:2222"
to = "/ours/"
auth = "rules"
ssh_key = "key"
known_hosts = "hosts"
`, "--origin", "https://gitlab.com", "--origin", "https://github.com/acme", "--fresh=30s", "--stale-for=1h")
	if err == nil {
		err = cfg.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Root != "/home/git/.local/state/packhorse/mirror" || cfg.State != cfg.Root+"/.packhorse" ||
		cfg.HTTP.Address != mirrorAddress || len(cfg.Mirror) != 3 {
		t.Fatalf("root %q, state %q, address %q and %d mirrors, want defaults and 3", cfg.Root, cfg.State, cfg.HTTP.Address,
			len(cfg.Mirror))
	}
	for i, want := range [][2]string{{"https://github.com/acme/", "github.com/acme"},
		{"ssh://git@example.com:2222/", "ours"}, {"https://gitlab.com/", "gitlab.com"}} {
		m := &cfg.Mirror[i]
		u, err := m.URL()
		if err != nil || u.String() != want[0] || m.To != want[1] {
			t.Errorf("mirror %d is %v at %q (%v), want %v", i, u, m.To, err, want)
		}
		fresh, err := m.Freshness()
		if err != nil || fresh != (mirror.Freshness{Every: 30 * time.Second}) || m.StaleFor.Duration != time.Hour {
			t.Errorf("mirror %d is fresh for %v and stale for %v (%v), want 30s and 1h", i, fresh, m.StaleFor, err)
		}
	}
	if from["mirror[2].from"] != "--origin" || from["mirror[0].fresh"] != "--fresh" {
		t.Errorf("origins of the values %q and %q, want the flags", from["mirror[2].from"], from["mirror[0].fresh"])
	}
}

func TestMirrorAllowed(t *testing.T) {
	t.Parallel()
	for _, fold := range []bool{false, true} {
		m := MirrorConfig{Allow: []string{"acme/**", "Tools/*"}, Deny: []string{"acme/Secret"}, FoldCase: fold}
		allowed, err := m.Allowed()
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{"acme/app": true, "acme/app.git": true, "acme/secret": false,
			"acme/Secret.git": false, "ACME/secret": false, "Tools/a": true, "tools/a": fold, "Tools/a/b": false,
			"other/app": false} {
			path, err := git.ParseRepoPath(text)
			if got := allowed(path); err != nil || got != want {
				t.Errorf("allowed(%q) = %v, want %v; fold_case = %v", text, got, want, fold)
			}
		}
	}
}

// TestMirrorIsNotOpen checks that a mirror may listen on all addresses if its origin decides about readers.
func TestMirrorIsNotOpen(t *testing.T) {
	t.Parallel()
	for auth, open := range map[string]bool{MirrorByOrigin: false, MirrorByRules: true} {
		cfg, _, err := loadTextAs(t, RoleMirror, "[[mirror]]\nfrom = \"https://host/\"\nauth = \""+auth+"\"")
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.CheckOpen(); (err != nil) != open {
			t.Errorf("auth = %q: CheckOpen() = %v, want an error: %v", auth, err, open)
		}
	}
}
