package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNetworkDown disables the network between a gateway and a node in its own network namespace, and enables it again.
// Neither side gets a reset or an end of the connection.
func TestNetworkDown(t *testing.T) {
	t.Parallel()
	id := os.Getpid() % 0xffff
	space, here, there := fmt.Sprintf("ph%d", id), fmt.Sprintf("pha%d", id), fmt.Sprintf("phb%d", id)
	ours, theirs := fmt.Sprintf("198.19.%d.%d", id>>8, id&0xfc|1), fmt.Sprintf("198.19.%d.%d", id>>8, id&0xfc|2)
	ip := func(line string) error {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
		return nil
	}
	t.Cleanup(func() {
		_ = ip("link del " + here)
		_ = ip("netns del " + space)
	})
	for _, line := range []string{
		"netns add " + space,
		"link add " + here + " type veth peer name " + there + " netns " + space,
		"addr add " + ours + "/30 dev " + here, "link set " + here + " up",
		"-n " + space + " addr add " + theirs + "/30 dev " + there, "-n " + space + " link set " + there + " up",
		"-n " + space + " link set lo up",
	} {
		if err := ip(line); err != nil {
			t.Skipf("*** THE NETWORK IS NOT TAKEN DOWN: no network namespace can be had here (it takes root and iproute2): %v "+
				"***", err)
		}
	}
	paced := exec.Command("ip", "netns", "exec", space, "sh", "-c",
		"echo bbr >/proc/sys/net/ipv4/tcp_congestion_control").Run() == nil
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}, namespace: space}
	origin := blobs(t)
	for _, name := range []string{"one", "two", "three", "six"} {
		if err := os.CopyFS(filepath.Join(p.dir, "repos", name+".git"), os.DirFS(origin.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	p.write("git", stuckGit, 0o755)
	secret := p.write("secret", "a-secret-of-more-than-sixteen-bytes\n", 0o600)
	p.nodeConfig = p.write("node.toml", fmt.Sprintf("%s[storage]\nsecret_file = %q\n", patient, secret), 0o600)
	p.startNode(theirs + ":0")
	p.gatewayConfig = p.write("gateway.toml", fmt.Sprintf("%s\n[[node]]\nname = \"one\"\naddress = %q\nsecret_file = "+
		"%q\n", patient, p.node.listen, secret), 0o600)
	p.startGateway()
	p.clone("six")
	inside := func(args ...string) string {
		out, err := exec.Command("ip", append([]string{"netns", "exec", space}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("ss"); err != nil || !paced {
		t.Logf("*** THE CONGESTION CONTROL BETWEEN MACHINES IS NOT LOOKED AT: it takes BBR and ss ***")
	} else {
		eventually(t, "the connections between machines have the system's congestion control", func() bool {
			sockets := inside("ss", "-Htin", "state", "established", "src", theirs, "dst", ours)
			n := strings.Count(sockets, theirs+":")
			return n > 0 && strings.Count(sockets, " bbr ") == n
		})
	}

	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	if err := ip("link set " + here + " down"); err != nil {
		t.Fatal(err)
	}
	p.begin("two").fails("down before the transfer")
	during.fails("down during the transfer")
	p.refused("three", "cannot be reached; try again")
	p.gone(children)
	p.idle(p.gateway)
	p.loosen()

	if err := ip("link set " + here + " up"); err != nil {
		t.Fatal(err)
	}
	p.found()
	p.clone("one")
	eventually(t, "the node holds nothing for the calls of before", func() bool {
		out, err := exec.Command("ip", "netns", "exec", space, "cat",
			fmt.Sprintf("/proc/%d/net/tcp", p.node.cmd.Process.Pid)).Output()
		return err == nil && strings.Count(string(out), " 01 ") <= 2 // ESTABLISHED: the connection for calls, and a channel
	})
}
