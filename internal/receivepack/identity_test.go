package receivepack

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node"
)

// Whatever a pusher is called, git takes the name, and a reflog keeps its fields.
func TestCommitter(t *testing.T) {
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
		"x> 0 +0000\tpush\n" + strings.Repeat("0", 40): "x 0 +0000push" + strings.Repeat("0", 40) + " <x-0-+0000push" + strings.Repeat("0", 40) + "@http.192.0.2.1>",
		"\xff\xfe": "anonymous <anonymous@http.192.0.2.1>",
		"Jürgen":   "Jürgen <Jürgen@http.192.0.2.1>",
	} {
		if n, email := committer(node.Pusher{Name: name, Address: "192.0.2.1"}, "http"); n+" <"+email+">" != want {
			t.Errorf("%q is %s <%s>, want %s", name, n, email, want)
		}
	}
	for address, want := range map[string]string{"": "a@ssh.localhost", "2001:db8::1": "a@ssh.2001-db8--1", "fe80::1%eth0": "a@ssh.fe80--1", "x>y": "a@ssh.localhost"} {
		if _, email := committer(node.Pusher{Name: "a", Address: address}, "ssh"); email != want {
			t.Errorf("from %q it is %s, want %s", address, email, want)
		}
	}
	if n, _ := committer(node.Pusher{Name: strings.Repeat("ü", 1000)}, "http"); len(n) > maxCommitter {
		t.Errorf("a name of %d bytes", len(n))
	}
}

func FuzzCommitter(f *testing.F) {
	for _, name := range []string{"alice", "a@b", "<>", "x\n", "\x00", ".", "é>"} {
		f.Add(name, "192.0.2.1")
	}
	f.Fuzz(func(t *testing.T, name, address string) {
		n, email := committer(node.Pusher{Name: name, Address: address}, "http")
		if n == "" || n != strings.Trim(n, " .,:;<>\"\\'") || strings.ContainsAny(n+email, "<>\n\r\t\x00") || strings.Count(email, "@") != 1 || strings.Contains(email, " ") {
			t.Errorf("%q <%q>", n, email)
		}
	})
}

// The reflog says who pushed, over HTTP and SSH, and hooks see the same.
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
		body := command2(t, c.ID("main"), "refs/heads/x"+strings.Repeat("x", len(name)), "report-status") + c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q")
		pusher := node.Pusher{Name: strings.ReplaceAll(name, "\x00", ""), Address: "192.0.2.1"}
		if _, err := w.server.Serve(t.Context(), w.target(), node.Session{}, pusher, strings.NewReader(body), &recorder{}); err != nil {
			t.Errorf("a push by %q: %v", name, err)
		}
		ref := "x" + strings.Repeat("x", len(name))
		if got := w.Git("log", "-g", "-1", "--format=%gn <%ge> %gs", ref); !strings.HasSuffix(got, "@ssh.192.0.2.1> push") {
			t.Errorf("the reflog of a push by %q says %q", name, got)
		}
	}
	w.clean()
}
