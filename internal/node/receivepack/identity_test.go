package receivepack

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node"
)

// Git accepts the name of every pusher, and the fields of a reflog stay intact.
func TestIdentity(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"alice":             "alice <alice@http.192.0.2.1>",
		"alice@example.com": "alice@example.com <alice@example.com>",
		"a@b@c":             "a@b@c <a-b-c@http.192.0.2.1>",
		"":                  "anonymous <anonymous@http.192.0.2.1>",
		"...":               "anonymous <anonymous@http.192.0.2.1>",
		"<>\n":              "anonymous <anonymous@http.192.0.2.1>",
		".bot.":             "bot <bot@http.192.0.2.1>",
		"a\x00b":            "ab <ab@http.192.0.2.1>",
		"Jo Ann":            "Jo Ann <Jo-Ann@http.192.0.2.1>",
		"x> 0 +0000\tpush\n" + strings.Repeat("0", 40): "x 0 +0000push" + strings.Repeat("0", 40) + " <x-0-+0000push" +
			strings.Repeat("0", 40) + "@http.192.0.2.1>",
		"\xff\xfe": "anonymous <anonymous@http.192.0.2.1>",
		"Jürgen":   "Jürgen <Jürgen@http.192.0.2.1>",
	} {
		if got := newIdentity(node.Pusher{Name: name, Address: "192.0.2.1"}, "http"); got.name+" <"+got.email+">" != want {
			t.Errorf("%q: got %+v, want %s", name, got, want)
		}
	}
	for address, want := range map[string]string{"": "a@ssh.localhost", "2001:db8::1": "a@ssh.2001-db8--1",
		"fe80::1%eth0": "a@ssh.fe80--1", "x>y": "a@ssh.localhost"} {
		if got := newIdentity(node.Pusher{Name: "a", Address: address}, "ssh"); got.email != want {
			t.Errorf("address %q: got %s, want %s", address, got.email, want)
		}
	}
	if got := newIdentity(node.Pusher{Name: strings.Repeat("ü", 1000)}, "http"); len(got.name) > maxNameBytes {
		t.Errorf("name of %d bytes, want at most %d", len(got.name), maxNameBytes)
	}
}

func FuzzIdentity(f *testing.F) {
	for _, name := range []string{"alice", "a@b", "<>", "x\n", "\x00", ".", "é>"} {
		f.Add(name, "192.0.2.1")
	}
	f.Fuzz(func(t *testing.T, name, address string) {
		i := newIdentity(node.Pusher{Name: name, Address: address}, "http")
		n, email := i.name, i.email
		if n == "" || n != strings.Trim(n, " .,:;<>\"\\'") || strings.ContainsAny(n+email, "<>\n\r\t\x00") ||
			strings.Count(email, "@") != 1 || strings.Contains(email, " ") {
			t.Errorf("%q <%q>", n, email)
		}
	})
}

// The reflog names the pusher, over HTTP and SSH, and hooks see the same name.
func TestReflogNamesThePusher(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Hooks: hooks(t, map[string]string{
		"pre-receive": `echo "$GIT_COMMITTER_NAME $GIT_COMMITTER_EMAIL $REMOTE_USER $REMOTE_ADDR"`})})
	w.Git("config", "core.logAllRefUpdates", "true")
	c := w.clone()
	out := w.mustPush(c, "main")
	if got := w.Git("log", "-g", "-1", "--format=%gn <%ge> %gs", "main"); got != "tester <tester@http.192.0.2.1> push" {
		t.Errorf("the reflog says %q", got)
	}
	if !strings.Contains(out, "remote: tester tester@http.192.0.2.1 tester 192.0.2.1") {
		t.Errorf("the hook is told\n%s", out)
	}
	for _, name := range []string{"", "...", "m<a>l\nlory\t0 +0000"} {
		body := command2(t, c.ID("main"), "refs/heads/x"+strings.Repeat("x", len(name)), "report-status") +
			c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q")
		pusher := node.Pusher{Name: strings.ReplaceAll(name, "\x00", ""), Address: "192.0.2.1"}
		if _, err := w.server.Serve(t.Context(), w.target(), node.Session{}, pusher, strings.NewReader(body),
			&recorder{}); err != nil {
			t.Errorf("a push by %q: %v", name, err)
		}
		ref := "x" + strings.Repeat("x", len(name))
		if got := w.Git("log", "-g", "-1", "--format=%gn <%ge> %gs", ref); !strings.HasSuffix(got, "@ssh.192.0.2.1> push") {
			t.Errorf("the reflog of a push by %q says %q", name, got)
		}
	}
	w.clean()
}
