package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestClientsWithCredentials has each client of the matrix clone a private repository with a token as the password of
// its URL. Clients that run ssh also use a key. A wrong credential fails.
func TestClientsWithCredentials(t *testing.T) {
	m := newPrivateMatrix(t)
	for _, c := range clients(os.Getenv("PACKHORSE_CLIENTS")) {
		if _, err := m.drive(c, "version"); err != nil {
			t.Logf("*** %s is not installed: NOT tested ***", c.name)
			continue
		}
		t.Run(c.name+"/"+c.protocol, func(t *testing.T) {
			t.Parallel()
			for how, server := range m.private {
				if how == "key" && !c.ssh {
					continue
				}
				op := operation{"clone", "random", []string{"ls-remote URL", "clone URL DIR"},
					[]string{"refs/remotes", "refs/tags"}, ""}
				if err := m.attempt(t, c, op, server, how); err != nil {
					t.Errorf("with a %s: %v", how, err)
				}
			}
			for how, server := range m.wrong {
				if how == "key" && !c.ssh {
					continue
				}
				if out, err := m.drive(c, "ls-remote", server+"/random.git"); err == nil {
					t.Errorf("with a wrong %s: %s", how, out)
				}
			}
		})
	}
}

// privateMatrix is a matrix whose server requires credentials.
type privateMatrix struct {
	*matrix
	private, wrong map[string]string // URLs, by kind of credential
	ssh            string            // URL for clients that do not run the ssh program; "": there is no ssh
}

func newPrivateMatrix(t *testing.T) *privateMatrix {
	m := &privateMatrix{matrix: &matrix{root: t.TempDir(), work: t.TempDir()}, private: map[string]string{},
		wrong: map[string]string{}}
	if err := os.CopyFS(m.repo("random"), os.DirFS(filepath.Join(makeTemplates(t), "random"))); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(m.work, "state")
	token := createToken(t, "ci", "--state", state)
	args := []string{"serve", "--root", m.root, "--state", state, "--http", "127.0.0.1:0", "--ops", "", "--log-format",
		"json"}
	ssh, noSSH := exec.LookPath("ssh")
	if noSSH == nil {
		for _, name := range []string{"ci", "stranger"} {
			keygen := exec.Command("ssh-keygen", "-q", "-t", "ecdsa", "-m", "PEM", "-N", "", "-C", name, "-f",
				filepath.Join(m.work, name))
			if out, err := keygen.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		args = append(args, "--ssh", "127.0.0.1:0", "--ssh-keys", filepath.Join(m.work, "ci.pub"))
	}
	p, err := startServer(m.work, append(os.Environ(), "GORACE=atexit_sleep_ms=0"), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(os.Interrupt)
		if err := p.wait(); err != nil || strings.Contains(p.logged(), "DATA RACE") {
			t.Errorf("the server ended with %v; its log:\n%s", err, p.logged())
		}
		if strings.Contains(p.logged(), token) {
			t.Error("the token is in the log")
		}
	})
	with := func(password string) string {
		u, err := url.Parse(p.http)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("ci", password)
		return u.String()
	}
	m.private["token"], m.wrong["token"] = with(token), with("wrong")
	if noSSH != nil {
		return m
	}
	u, err := url.Parse(p.ssh)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(m.work, "ssh_config")
	text := fmt.Sprintf("Host *\n\tHostName %s\n\tPort %s\n\tIdentityFile %s/%%n\n\tIdentitiesOnly yes\n\tIdentityAgent "+
		"none\n\tBatchMode yes\n"+
		"\tStrictHostKeyChecking no\n\tUserKnownHostsFile /dev/null\n\tLogLevel ERROR\n", u.Hostname(), u.Port(), m.work)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m.programs = filepath.Join(m.work, "bin")
	if err := os.Mkdir(m.programs, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %q -F %q \"$@\"\n", ssh, config)
	if err := os.WriteFile(filepath.Join(m.programs, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	// JGit knows neither %n nor BatchMode. It replaces the file with known hosts, so that the file must not be /dev/null.
	if err := os.Mkdir(filepath.Join(m.work, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	text = fmt.Sprintf("Host *\n\tIdentityFile %s/ci\n\tIdentitiesOnly yes\n\tStrictHostKeyChecking "+
		"no\n\tUserKnownHostsFile %s/known\n", m.work, m.work)
	if err := os.WriteFile(filepath.Join(m.work, ".ssh", "config"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m.ssh = fmt.Sprintf("ssh://git@%s:%s", u.Hostname(), u.Port())
	m.private["key"], m.wrong["key"] = "ssh://git@ci", "ssh://git@stranger"
	return m
}
