package admit

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// How much of an address is a network, in bits: what one household, office or machine usually has.
const (
	network4 = 24
	network6 = 64
)

// CallerOf returns the caller that a request counts for: the name of its identity, else the network of its address.
func (l *Lanes) CallerOf(name, address string) balance.Caller {
	if name != "" {
		return balance.Caller(name)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return "local/" // a Unix socket
	}
	return l.CallerAt(at.Addr())
}

// CallerAt is the caller of a request that has no name, by its address.
func (l *Lanes) CallerAt(address netip.Addr) balance.Caller {
	bits := network4
	ip := address.Unmap().WithZone("")
	if ip.Is6() {
		bits = network6
	}
	network, _ := ip.Prefix(bits)
	return balance.Caller(network.String())
}

// tallies is how many counters a tally has.
const tallies = 4096

// tally counts for each caller in a fixed number of counters, so that it takes no lock and no more memory for more
// callers. Two callers may share one by chance, which no caller can influence. One of
// 4,096 callers shares a counter with a greedy caller and is treated like it.
type tally struct {
	seed     maphash.Seed
	counters *[tallies]atomic.Int64
}

func newTally() tally { return tally{maphash.MakeSeed(), new([tallies]atomic.Int64)} }

func (t *tally) of(c balance.Caller) *atomic.Int64 {
	return &t.counters[maphash.String(t.seed, string(c))%tallies]
}
