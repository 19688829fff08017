package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// between is what a connection between a gateway and a node is for.
type between int

const (
	controlCalls between = iota
	sideChannels
)

func (b between) String() string { return [...]string{"control calls", "side channels"}[b] }

// fate is the way in which a connection ends.
type fate int

const (
	passes  fate = iota
	cut          // reset at both ends
	ended        // closed at both ends
	halfEnd      // no more from the node: the gateway reads an end, and may go on sending
	lost         // no byte passes any more, and neither side notices, also not the end of the other
	dropped      // the node's end is reset, and the gateway learns nothing of it
)

// weather is what a faultProxy does to the connections of one kind, those that are open and those to come.
type weather struct {
	hold  bool          // no byte and no end passes, and connections are made without a node
	delay time.Duration // of each step of at most 32 KiB, in each direction: makes a route long and narrow

	then  fate  // the end of a connection after so many bytes from the node
	after int64 // have passed; those of the answer that opens a side channel do not count
	early bool  // or just before that answer passes
}

// faultProxy is a proxy between gateways and a node that causes network faults. It recognizes the purpose of a
// connection by its first bytes, and in TLS by the protocol that they offer.
type faultProxy struct {
	t        *testing.T
	listener net.Listener
	network  string
	address  string // of the node

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	weather [2]weather
	open    map[*crossing]bool
	ending  bool
	running sync.WaitGroup
}

// crossing is a connection through a faultProxy. Its fields are guarded by the proxy's lock.
type crossing struct {
	kind          between
	gateway, node *net.TCPConn
	fate          fate
	opening       bool // the answer that opens a side channel has not passed
	passed        int64
}

// newFaultProxy begins to stand before the node at a TCP address.
func newFaultProxy(t *testing.T, node string) *faultProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &faultProxy{t: t, listener: l, network: "tcp", address: node, changed: make(chan struct{}),
		open: map[*crossing]bool{}}
	p.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.carry(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(p.close)
	return p
}

func (p *faultProxy) at() string { return p.listener.Addr().String() }

// close ends everything.
func (p *faultProxy) close() {
	p.listener.Close()
	p.change(func() {
		p.ending = true
		for c := range p.open {
			c.gateway.Close()
			if c.node != nil {
				c.node.Close()
			}
		}
	})
	p.running.Wait()
}

// change calls do with the lock held, and wakes the goroutines that wait for a change.
func (p *faultProxy) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// set makes the weather for connections of these kinds; with none, of both.
func (p *faultProxy) set(w weather, kinds ...between) {
	if len(kinds) == 0 {
		kinds = []between{controlCalls, sideChannels}
	}
	p.change(func() {
		for _, k := range kinds {
			p.weather[k] = w
		}
	})
}

// strike does something to all connections of these kinds that are open now; with none, of both.
func (p *faultProxy) strike(f fate, kinds ...between) {
	p.change(func() {
		for c := range p.open {
			if len(kinds) == 0 || kinds[0] == c.kind {
				p.decide(c, f)
			}
		}
	})
}

// decide brings a fate over a connection. With p.mu held.
func (p *faultProxy) decide(c *crossing, f fate) {
	if c.fate != passes || f == passes {
		return
	}
	c.fate = f
	reset := func(conn *net.TCPConn) {
		if conn != nil {
			_ = conn.SetLinger(0)
			conn.Close()
		}
	}
	switch f {
	case cut:
		reset(c.gateway)
		reset(c.node)
	case ended:
		c.gateway.Close()
		if c.node != nil {
			c.node.Close()
		}
	case halfEnd:
		_ = c.gateway.CloseWrite()
	case dropped:
		reset(c.node)
	}
}

// carry carries one connection until both its ends are gone.
func (p *faultProxy) carry(gateway *net.TCPConn) {
	defer gateway.Close()
	first := make([]byte, 4096)
	n, err := gateway.Read(first)
	if err != nil {
		return
	}
	first = first[:n]
	c := &crossing{gateway: gateway, kind: controlCalls}
	isTLS := first[0] == 22
	if bytes.HasPrefix(first, []byte("GET /packhorse/channel ")) || isTLS && bytes.Contains(first, []byte("http/1.1")) {
		c.kind = sideChannels
		c.opening = !isTLS
	}
	p.change(func() {
		p.open[c] = true
		if p.ending {
			gateway.Close()
		}
	})
	defer p.change(func() { delete(p.open, c) })
	if !p.clear(c) {
		return
	}
	conn, err := net.Dial(p.network, p.address)
	if err != nil {
		p.change(func() { p.decide(c, cut) })
		return
	}
	defer conn.Close()
	p.change(func() {
		c.node = conn.(*net.TCPConn)
		if p.ending || c.fate == cut {
			conn.Close()
		}
	})
	var directions sync.WaitGroup
	directions.Go(func() { p.pump(c, io.MultiReader(bytes.NewReader(first), gateway), c.node, false) })
	directions.Go(func() { p.pump(c, c.node, gateway, true) })
	directions.Wait()
}

// clear waits until something may pass. It reports whether the connection is still one.
func (p *faultProxy) clear(c *crossing) bool {
	for {
		p.mu.Lock()
		hold, changed, ending, fate := p.weather[c.kind].hold, p.changed, p.ending, c.fate
		p.mu.Unlock()
		if ending || fate == cut || fate == ended {
			return false
		}
		if !hold {
			return true
		}
		<-changed
	}
}

// pump carries one direction.
func (p *faultProxy) pump(c *crossing, from io.Reader, to *net.TCPConn, ofNode bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.clear(c) {
			return
		}
		p.mu.Lock()
		w := p.weather[c.kind]
		p.mu.Unlock()
		time.Sleep(w.delay)
		for pass := buf[:n]; len(pass) > 0; {
			k := p.passing(c, pass, ofNode)
			if k == 0 {
				break // it is lost, or closed
			}
			if _, err := to.Write(pass[:k]); err != nil && p.fateOf(c) == passes {
				p.change(func() { p.decide(c, cut) }) // who is no longer there resets
			}
			pass = pass[k:]
		}
		if err == nil {
			continue
		}
		if f := p.fateOf(c); f == passes || f == halfEnd && !ofNode {
			if errors.Is(err, io.EOF) {
				_ = to.CloseWrite()
			} else {
				p.change(func() { p.decide(c, cut) })
			}
		}
		return
	}
}

func (p *faultProxy) fateOf(c *crossing) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.fate
}

// passing is how many of the bytes may pass; when it is their turn, the connection's fate comes over it.
func (p *faultProxy) passing(c *crossing, b []byte, ofNode bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.fate != passes && !(c.fate == halfEnd && !ofNode) {
		return 0
	}
	if !ofNode {
		return len(b)
	}
	if c.opening { // the node's head ends with an empty line, and nothing follows before the channel is claimed
		c.opening = !strings.HasSuffix(string(b), "\r\n\r\n")
		if w := p.weather[c.kind]; !c.opening && w.early {
			p.decide(c, w.then)
		}
		return len(b)
	}
	w := p.weather[c.kind]
	if w.then == passes {
		c.passed += int64(len(b))
		return len(b)
	}
	n := int(min(int64(len(b)), max(w.after-c.passed, 0)))
	c.passed += int64(n)
	if n == 0 {
		p.decide(c, w.then)
		close(p.changed)
		p.changed = make(chan struct{})
	}
	return n
}
