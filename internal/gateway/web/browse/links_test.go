package browse

import "testing"

// hostVisitor is a Visitor with the address of the server.
type hostVisitor struct{ Visitor }

func (hostVisitor) Address(path string) string { return "https://git.example:8443/" + path }

func TestSSHAddress(t *testing.T) {
	t.Parallel()
	for ssh, want := range map[string]string{
		"":                 "",
		":22":              "git@git.example:team/a b",
		":2222":            "ssh://git@git.example:2222/team/a%20b",
		"ssh.example":      "git@ssh.example:team/a b",
		"ssh.example:22":   "git@ssh.example:team/a b",
		"ssh.example:2222": "ssh://git@ssh.example:2222/team/a%20b",
		"[::1]":            "ssh://git@[::1]/team/a%20b",
		"[::1]:2222":       "ssh://git@[::1]:2222/team/a%20b",
	} {
		q := &request{Site: &Site{ssh: ssh}, v: hostVisitor{}}
		if got := q.sshAddress("team/a b"); got != want {
			t.Errorf("with SSH at %q, the address is %q, want %q", ssh, got, want)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		link, target, to string
		inside           bool
	}{
		{"README", "docs/README.md", "docs/README.md", true}, {"a/b", "../c", "c", true}, {"a/b", "../..", "..", false},
		{"a", "../x", "../x", false}, {"a", "..x", "..x", true}, {"a", "/etc/passwd", "etc/passwd", false},
		{"a/b", "./../a/./b", "a/b", true},
	} {
		if to, inside := follow(test.link, test.target); inside != test.inside || inside && to != test.to {
			t.Errorf("%q to %q leads to %q, %v; want %q, %v", test.link, test.target, to, inside, test.to, test.inside)
		}
	}
}

func TestInRepository(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{"x.png": "docs/x.png", "../a/b": "a/b", "/a/b": "a/b",
		"../../a": "a", "/": ""} {
		if got := inRepository("docs", to); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}
