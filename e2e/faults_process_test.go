package e2e

import (
	"syscall"
	"testing"
)

// TestProcessFaults kills and stops a node or a gateway.
func TestProcessFaults(t *testing.T) {
	t.Parallel()
	together(t, map[string]func(*testing.T){
		"node-killed":     nodeKilled,
		"node-stopped":    nodeStopped,
		"gateway-killed":  gatewayKilled,
		"gateway-stopped": gatewayStopped,
		"client-killed":   clientKilled,
	})
}

func nodeKilled(t *testing.T) {
	p := newPair(t, false)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.kill(p.node)
	during.fails("killed during the transfer")
	p.refused("two", "cannot be reached; try again")
	p.loosen()
	p.gone(children)
	p.letsGo(p.gateway, 0)

	p.startNode(p.node.listen)
	p.found()
	p.clone("one")
	p.clone("three")

	// After a transfer, with connections that wait for the next one.
	p.kill(p.node)
	p.startNode(p.node.listen)
	p.found()
	p.clone("four")
	p.letsGo(p.gateway, 0)
}

func nodeStopped(t *testing.T) {
	p := newPair(t, false)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.signal(p.node, syscall.SIGSTOP)
	p.begin("two").fails("stopped before the transfer") // it was asked before anybody could know
	during.fails("stopped during the transfer")
	p.refused("three", "cannot be reached; try again")
	p.idle(p.gateway)

	// It finds that its callers have gone.
	p.signal(p.node, syscall.SIGCONT)
	p.gone(children)
	p.found()
	p.letsGo(p.node, 0)
	p.loosen()
	p.clone("one")
	p.clone("four")

	// After a transfer, for a moment.
	p.signal(p.node, syscall.SIGSTOP)
	after := p.begin("five")
	p.signal(p.node, syscall.SIGCONT)
	after.whole("stopped for a moment")
	p.letsGo(p.node, 0)
	p.letsGo(p.gateway, 0)
}

func gatewayKilled(t *testing.T) {
	p := newPair(t, false)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.kill(p.gateway)
	during.fails("killed during the transfer")
	p.gone(children)
	p.letsGo(p.node, -2) // neither the connection for calls is left, nor the channel of before
	p.loosen()

	p.startGateway()
	p.found()
	p.clone("one")
	p.kill(p.gateway) // after a transfer
	p.letsGo(p.node, -2)
	p.startGateway()
	p.found()
	p.clone("two")
	p.letsGo(p.node, 0)
}

func gatewayStopped(t *testing.T) {
	p := newPair(t, false)
	during := p.stick("one")
	children := childrenOf(p.node.cmd.Process.Pid)
	p.signal(p.gateway, syscall.SIGSTOP)
	before := p.begin("two")
	p.gone(children)
	p.letsGo(p.node, 0)

	p.signal(p.gateway, syscall.SIGCONT)
	during.fails("stopped during the transfer")
	p.loosen()
	if before.wait() != nil { // it may have found a connection that the node had given up
		before.fails("stopped before the transfer")
	}
	p.found()
	p.clone("one")
	p.letsGo(p.gateway, 0)
	p.letsGo(p.node, 0)
}

// A git client that goes away takes all with it that ran for it, at both.
func clientKilled(t *testing.T) {
	p := newPair(t, false)
	one, two := p.stick("one"), p.stick("two")
	children := childrenOf(p.node.cmd.Process.Pid)
	if err := one.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// SIGINT is ignored by what a shell starts in the background
	if err := two.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-one.ended
	two.fails("interrupted")
	p.gone(children)
	p.letsGo(p.node, 0)
	p.letsGo(p.gateway, 0)
	p.loosen()
	p.clone("one")
}
