package gitssh

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Limits limits connections before their login. Package clients limits all connections. Addresses count as networks:
// one address of IPv4, 64 bits of IPv6.
type Limits struct {
	// that have not logged in, in all; from half of it on some are refused at random, more and more
	Logins        int
	AddressLogins int                   // that have not logged in, from one address
	AddressRate   float64               // new ones each second from one address, on average; 0: no limit
	Exempt        func(netip.Addr) bool // reports addresses without a limit for each address, such as proxies; nil: none
}

// rateBurst is the number of seconds whose connections may arrive at the same time.
const rateBurst = 10

// manySources is the number of addresses above which idle ones are removed every second instead of every minute.
const manySources = 1 << 14

// gate counts connections, and refuses them while that is cheap. Safe for concurrent use.
type gate struct {
	limits Limits
	now    func() time.Time
	roll   func() float64 // from 0 to 1

	mu      sync.Mutex
	logins  int
	sources map[netip.Prefix]*sourceState
	swept   time.Time
}

// sourceState is the state of one address.
type sourceState struct {
	open, logins int
	tokens       float64 // connections that are allowed now
	at           time.Time
}

// Reasons why a connection is refused; metric labels.
const (
	gateLogins      = "logins"
	gateEarly       = "early_drop"
	gateAddressOpen = "address_logins"
	gateRate        = "rate"
)

func newGate(l Limits) *gate {
	return &gate{limits: l, now: time.Now, roll: rand.Float64, sources: map[netip.Prefix]*sourceState{}}
}

// enter admits a connection before its login, or returns the reason of the refusal. The zero source has no limits of
// its own.
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
	g.logins++
	return ""
}

// loggedIn counts a connection's login.
func (g *gate) loggedIn(source netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logins--
	g.sources[source].logins--
}

// leave counts the end of a connection. loggedIn reports whether it had logged in.
func (g *gate) leave(source netip.Prefix, loggedIn bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[source]
	if !loggedIn {
		g.logins--
		s.logins--
	}
	s.open--
}

// sweep removes idle addresses. g.mu is held.
func (g *gate) sweep(now time.Time) {
	g.swept = now
	for p, s := range g.sources {
		if s.open == 0 && now.Sub(s.at) > rateBurst*time.Second {
			delete(g.sources, p)
		}
	}
}

func (g *gate) countLogins() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logins
}
