package gitssh

import (
	"net/netip"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

func TestSSHGate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	g := newGate(Limits{Logins: 8, AddressLogins: 3, AddressRate: 1})
	roll := 1.0
	g.now, g.roll = func() time.Time { return now }, func() float64 { return roll }
	source := func(s string) netip.Prefix { return clients.NetworkOf(netip.MustParseAddr(s)) }
	want := func(from, why string) {
		t.Helper()
		if got := g.enter(source(from)); got != why {
			t.Fatalf("%s: %q, want %q", from, got, why)
		}
	}
	// From one address; 64 bits of IPv6 are one.
	want("192.0.2.1", "")
	want("192.0.2.1", "")
	want("::ffff:192.0.2.1", "")
	want("192.0.2.1", gateAddressOpen)
	want("2001:db8::1", "")
	want("2001:db8::ffff", "")
	want("2001:db8::2", "")
	want("2001:db8::3", gateAddressOpen)
	// More than half of the logins: some are refused, and at the limit all.
	roll = 0
	want("192.0.2.9", gateEarly)
	roll = 1
	want("192.0.2.9", "")
	want("192.0.2.10", "")
	want("192.0.2.11", gateLogins)
	// Logged in, they count no more as logins.
	for range 3 {
		g.loggedIn(source("192.0.2.1"))
	}
	for range 3 {
		want("192.0.2.1", "")
		g.loggedIn(source("192.0.2.1"))
	}
	for range 6 {
		g.leave(source("192.0.2.1"), true)
	}
	// Ten at once, then one each second.
	for range 4 {
		want("192.0.2.1", "")
		g.leave(source("192.0.2.1"), false)
	}
	want("192.0.2.1", gateRate)
	now = now.Add(time.Second)
	want("192.0.2.1", "")
	want("192.0.2.1", gateRate)
	g.leave(source("192.0.2.1"), false)
	now = now.Add(time.Hour)
	want("192.0.2.1", "")
	if logins := g.countLogins(); logins != 6 || len(g.sources) != 4 {
		t.Errorf("logins = %d, addresses = %d, want 6 and 4", logins, len(g.sources))
	}
}

func TestRekeyLimit(t *testing.T) {
	t.Parallel()
	l := &rekeyLimit{}
	now, moved := time.Unix(1000, 0), int64(0)
	for i := range rekeyBurst {
		if wait := l.wait(now, moved); wait != 0 {
			t.Fatalf("wait of key exchange %d = %v, want 0", i, wait)
		}
	}
	if wait := l.wait(now, moved); wait < 900*time.Millisecond || wait > time.Second {
		t.Errorf("wait %v, want a second", wait)
	}
	if wait := l.wait(now.Add(1500*time.Millisecond), moved); wait != 0 {
		t.Errorf("wait after a second = %v, want 0", wait)
	}
	moved += 3 * rekeyBytes / 2
	for range 2 {
		if wait := l.wait(now.Add(1500*time.Millisecond), moved); wait != 0 {
			t.Errorf("wait after a MiB and a half = %v, want 0", wait)
		}
	}
	if wait := l.wait(now.Add(1500*time.Millisecond), moved); wait == 0 {
		t.Error("wait = 0, want more")
	}
}

// TestSSHGateForgets connects from many addresses. The gate stores those of the last ten seconds only.
func TestSSHGateForgets(t *testing.T) {
	t.Parallel()
	g, now := newGate(Limits{Logins: 10, AddressLogins: 10}), time.Unix(1000, 0)
	g.now = func() time.Time { return now }
	most := 0
	for i := range 20 * manySources {
		source := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		if why := g.enter(source); why != "" {
			t.Fatal(why)
		}
		g.leave(source, false)
		now = now.Add(10 * time.Second / manySources)
		most = max(most, len(g.sources))
	}
	if most > 3*manySources {
		t.Errorf("stored addresses = %d, want at most %d", most, 3*manySources)
	}
}
