package gitssh

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// SSHLimits bound connections before anything is known of who makes them; package connlimit bounds all of them.
// Addresses count as networks: one address of IPv4, 64 bits of IPv6.
type Limits struct {
	// that have not logged in, in all; from half of it on some are refused at random, more and more
	Logins        int
	AddressLogins int                   // that have not logged in, from one address
	AddressRate   float64               // new ones each second from one address, on average; 0: no limit
	Exempt        func(netip.Addr) bool // reports addresses without limits of their own, as those of proxies; nil: none
}

// rateBurst is how many seconds' worth of connections may come at once.
const rateBurst = 10

// manySources is how many addresses are remembered before those of which nothing is to be known are forgotten each
// second, and not each minute.
const manySources = 1 << 14

// sshGate counts connections, and refuses them while that is cheap. Safe for concurrent use.
type gate struct {
	limits Limits
	now    func() time.Time
	roll   func() float64 // from 0 to 1

	mu      sync.Mutex
	open    int
	logins  int
	sources map[netip.Prefix]*sourceState
	swept   time.Time
}

// sourceState is what is known of one address.
type sourceState struct {
	open, logins int
	tokens       float64 // connections that may come at once
	at           time.Time
}

// Why a connection is refused; metric labels.
const (
	gateLogins      = "logins"
	gateEarly       = "early_drop"
	gateAddressOpen = "address_logins"
	gateRate        = "rate"
)

func newGate(l Limits) *gate {
	return &gate{limits: l, now: time.Now, roll: rand.Float64, sources: map[netip.Prefix]*sourceState{}}
}

// addressOf is the IP address of a connection's peer; the zero value if it has none.
func addressOf(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap()
}

// enter lets a connection in that has not logged in yet, or says why not. The zero source has no limits of its own.
func (g *gate) enter(source netip.Prefix) (refused string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if pause := now.Sub(g.swept); pause > time.Minute || len(g.sources) > manySources && pause > time.Second {
		g.sweep(now)
	}
	s := g.sources[source]
	if s == nil {
		s = &sourceState{tokens: g.limits.AddressRate * rateBurst, at: now}
		g.sources[source] = s
	}
	if rate := g.limits.AddressRate; rate > 0 && source.IsValid() {
		s.tokens = min(rate*rateBurst, s.tokens+now.Sub(s.at).Seconds()*rate)
		s.at = now
		if s.tokens < 1 {
			return gateRate
		}
	}
	half := g.limits.Logins / 2
	switch {
	case s.logins >= g.limits.AddressLogins && source.IsValid():
		return gateAddressOpen
	case g.logins >= g.limits.Logins:
		return gateLogins
	case g.logins > half && g.roll() < float64(g.logins-half)/float64(g.limits.Logins-half):
		return gateEarly
	}
	s.tokens--
	s.open++
	s.logins++
	g.open++
	g.logins++
	return ""
}

// in says that a connection has logged in.
func (g *gate) in(source netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logins--
	g.sources[source].logins--
}

// leave ends a connection; in tells whether it had logged in.
func (g *gate) leave(source netip.Prefix, in bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[source]
	if !in {
		g.logins--
		s.logins--
	}
	g.open--
	s.open--
}

// sweep forgets addresses that nothing is to be remembered of. g.mu is held.
func (g *gate) sweep(now time.Time) {
	g.swept = now
	for p, s := range g.sources {
		if s.open == 0 && now.Sub(s.at) > rateBurst*time.Second {
			delete(g.sources, p)
		}
	}
}

func (g *gate) counts() (open, logins int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.logins
}
