package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRoadFaults breaks the connections between a gateway and its node.
func TestRoadFaults(t *testing.T) {
	t.Parallel()
	together(t, map[string]func(*testing.T){
		"cut-off":          cutOff,
		"half-open":        halfOpen,
		"gateway-vanishes": gatewayVanishes,
		"breaks":           roadBreaks,
		"replica":          replicaTakesOver,
		"slow":             slowRoad,
	})
}

// cutOff drops all packets without an error at either end.
func cutOff(t *testing.T) {
	p := newPair(t, true)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.proxy.set(weather{hold: true})
	p.proxy.strike(lost)
	p.begin("two").fails("cut off before the transfer")
	during.fails("cut off during the transfer")
	p.refused("three", "cannot be reached; try again")
	p.gone(children)
	p.letsGo(p.node, -2) // the node has no descriptor of the gateway left, also not for the idle channel
	p.idle(p.gateway)
	p.loosen()

	p.proxy.set(weather{})
	p.found()
	p.clone("one")
	p.letsGo(p.node, 0)
	p.letsGo(p.gateway, 0)

	// After a transfer, for a moment.
	p.proxy.set(weather{hold: true})
	after := p.begin("four")
	p.proxy.set(weather{})
	after.whole("cut off for a moment")
}

// halfOpen loses all open connections without an error at either end. New connections work, as after a restart of a
// machine between the two.
func halfOpen(t *testing.T) {
	p := newPair(t, true)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.proxy.strike(lost)
	during.fails("lost during the transfer")
	p.gone(children)
	p.loosen()
	p.found()
	p.clone("one")

	// The node's machine restarts, and its resets are lost as well. The gateway's idle channels lead nowhere.
	p.clone("two")
	losses := func() int { return strings.Count(p.gateway.logged(), "storage node is down") }
	before := losses()
	p.proxy.strike(lost)
	p.kill(p.node)
	p.startNode(p.node.listen) // may take longer than the gateway takes to miss it
	eventually(t, "the node is missed", func() bool { return losses() > before })
	p.found()
	p.clone("three")
	p.clone("four")
	p.letsGo(p.gateway, 0)
}

// gatewayVanishes loses the gateway's machine, which does not send a reset.
func gatewayVanishes(t *testing.T) {
	p := newPair(t, true)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.proxy.strike(lost)
	p.kill(p.gateway)
	during.fails("lost during the transfer")
	p.gone(children)
	p.letsGo(p.node, -2)
	p.loosen()
	p.startGateway()
	p.found()
	p.clone("one")
	p.letsGo(p.node, 0)
}

// roadBreaks ends channels and calls between the announcement of a channel and its use, with the first byte, and in the
// middle. It does so in each way that the peer notices.
func roadBreaks(t *testing.T) {
	p := newPair(t, true)
	repos := []string{"one", "two", "three", "four", "five"}
	for _, repo := range repos {
		p.clone(repo) // from now on from the cache: only the connection fails
	}
	n := 0
	for _, kind := range []between{sideChannels, controlCalls} {
		for _, f := range []fate{cut, ended, halfEnd, dropped} {
			for _, after := range []int64{-1, 0, 10, 1 << 20} {
				if kind == controlCalls && (after != 0 || f == dropped) { // a call has few bytes; dropped, it is as half-open
					continue
				}
				if f == dropped && after >= 0 {
					continue
				}
				what := fmt.Sprintf("%s, %d after %d bytes", kind, f, after)
				p.proxy.strike(ended) // none of before
				p.found()
				p.proxy.set(weather{then: f, after: max(after, 0), early: after < 0}, kind)
				c := p.begin(repos[n%len(repos)])
				n++
				c.fails(what)
				if strings.Contains(c.out.String(), "early EOF") || after > 10 {
					continue
				}
				if out := c.out.String(); !strings.Contains(out, "503") {
					t.Errorf("%s: before the first byte git says %s; want error 503", what, out)
				}
				p.proxy.set(weather{})
			}
			p.proxy.set(weather{})
			p.proxy.strike(ended)
			p.found()
			p.clone("six")
		}
	}
	// Whether the node sees that a channel is gone before its claim comes is a matter of luck: until it did.
	eventually(t, "a channel is gone when it is claimed", func() bool {
		p.proxy.strike(ended)
		p.found()
		p.proxy.set(weather{then: dropped, early: true}, sideChannels)
		p.begin("one").fails("gone when it is claimed")
		p.proxy.set(weather{})
		return p.metric(p.node, `packhorse_channel_claims_refused_total{reason="unknown"}`) > 0
	})
	p.letsGo(p.node, 0)
	p.letsGo(p.gateway, 0)
}

// A node that fails before the first byte is replaced by another without the client noticing.
func replicaTakesOver(t *testing.T) {
	p := newPair(t, true)
	bad := p.proxy
	spare := p.start("storage", "--config", p.nodeConfig, "--root", filepath.Join(p.dir, "repos"), "--state",
		filepath.Join(p.dir, "spare"),
		"--packs", "git", "--git", filepath.Join(p.dir, "git"), "--listen", "127.0.0.1:0")
	p.gatewayConfig = p.write("gateway.toml", fmt.Sprintf("%s\n[[node]]\nname = \"one\"\naddress = %q\n"+
		"weight = 1000\n[[node]]\nname = \"two\"\naddress = %q\n",
		patient, bad.at(), spare.listen), 0o600)
	p.signal(p.gateway, syscall.SIGTERM)
	if err := p.gateway.wait(); err != nil {
		t.Fatal(err)
	}
	p.startGateway()
	bad.set(weather{then: cut, after: 0}, sideChannels)
	for range 3 {
		for _, repo := range []string{"one", "two", "three"} {
			p.clone(repo)
		}
	}
	if p.metric(p.gateway, "packhorse_route_failovers_total") == 0 {
		t.Error("packhorse_route_failovers_total is 0, want more")
	}
	p.kill(p.node)
	p.clone("four")
	p.clone("five")
	p.idle(p.gateway)
}

// slowRoad has a connection with a long delay. It is not a failure, and the node and the gateway release all resources
// of a client that gives up.
func slowRoad(t *testing.T) {
	p := newPair(t, true)
	p.proxy.set(weather{delay: 20 * time.Millisecond})
	one, two, three := p.begin("one"), p.begin("two"), p.begin("three")
	eventually(t, "a clone is in its middle", func() bool {
		parts, _ := filepath.Glob(filepath.Join(three.dir, "objects/pack/tmp_pack_*"))
		return len(parts) > 0
	})
	if err := three.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	one.whole("slow")
	two.whole("slow")
	p.proxy.set(weather{})
	p.clone("four")
	p.letsGo(p.node, 2)
	p.letsGo(p.gateway, 2) // channels of clones at the same time are kept
}
