package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// needSSH skips a test where there is no OpenSSH client; in CI that is a failure.
func needSSH(t *testing.T) {
	for _, program := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

// TestSSH runs stories with OpenSSH's client.
func TestSSH(t *testing.T) {
	needSSH(t)
	runStories(t, "testdata/ssh")
}

// TestFetchOverSSH runs stories of fetches over SSH in every version of the protocol.
func TestFetchOverSSH(t *testing.T) {
	skipIfShort(t) // TestSSH has fetches too
	needSSH(t)
	templates := makeTemplates(t)
	for protocol, names := range map[string][]string{
		"0": {"incremental", "partial", "shallow"}, "1": {"shallow"},
		"2": {"incremental", "negotiation", "partial", "shallow"},
	} {
		t.Run("protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			var scripts []string
			for _, name := range names {
				scripts = append(scripts, filepath.Join("testdata/fetch", name+".txtar"))
			}
			runStoriesIn(t, shape{ssh: true, noIndex: true}, "", templates, protocol, scripts...)
		})
	}
	for _, protocol := range []string{"0", "2"} {
		t.Run("gateway-protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			runStoriesIn(t, shape{between: "unix", ssh: true}, "", templates, protocol, "testdata/fetch/incremental.txtar")
		})
	}
}

// rsaHostKey makes an RSA host key once for all servers: the search for its primes takes each of them a second, many
// with the race detector.
var rsaHostKey = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "packhorse-host-key-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f",
		file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(file)
})

// shareHostKey gives a server that has none yet the RSA host key of all; it makes its other ones itself.
func shareHostKey(ts *testscript.TestScript, state string) {
	file := filepath.Join(state, "ssh", "ssh_host_rsa_key")
	if _, err := os.Stat(file); err == nil {
		return
	}
	key, err := rsaHostKey()
	ts.Check(err)
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o700))
	ts.Check(os.WriteFile(file, key, 0o600))
}

// overSSH makes a user, and gives the flags with which serve lets it in.
func (s *story) overSSH(ts *testscript.TestScript) []string {
	cmdSSHUsers(ts, false, []string{"user"})
	return []string{"--ssh", "127.0.0.1:0", "--ssh-keys", ts.MkAbs("keys")}
}

// cmdSSHUsers makes key pairs: sshusers NAME... The private keys are users/NAME, the public ones keys/NAME, for
// --ssh-keys.
func cmdSSHUsers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: sshusers NAME...")
	}
	ts.Check(os.MkdirAll(ts.MkAbs("users"), 0o700))
	ts.Check(os.MkdirAll(ts.MkAbs("keys"), 0o700))
	for _, name := range args {
		file := ts.MkAbs(filepath.Join("users", name))
		if _, err := os.Stat(file); err == nil {
			continue
		}
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f",
			file).CombinedOutput(); err != nil {
			ts.Fatalf("%v\n%s", err, out)
		}
		public, err := os.ReadFile(file + ".pub")
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(filepath.Join("keys", name)), public, 0o600))
	}
}

// setSSH lets ssh and git reach a server that listens for them: host NAME is the server, for the user with the key
// users/NAME.
func (s *story) setSSH(ts *testscript.TestScript) {
	if s.running == nil || s.running.ssh == "" {
		return
	}
	u, err := url.Parse(s.running.ssh)
	ts.Check(err)
	config := ts.MkAbs("ssh_config")
	ts.Check(os.WriteFile(config, fmt.Appendf(nil, `Host *
	HostName %s
	Port %s
	User git
	IdentityFile %s/%%n
	IdentitiesOnly yes
	IdentityAgent none
	BatchMode yes
	HostKeyAlias packhorse
	StrictHostKeyChecking accept-new
	UserKnownHostsFile %s
	LogLevel ERROR
`, u.Hostname(), u.Port(), ts.MkAbs("users"), ts.MkAbs("known_hosts")), 0o600))
	ts.Setenv("SSH_CONFIG", config)
	ts.Setenv("GIT_SSH_COMMAND", "ssh -F "+config)
	if s.shape.ssh {
		ts.Setenv("URL", "ssh://user")
	}
}
