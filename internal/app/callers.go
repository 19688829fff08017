package app

import (
	"net/netip"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/balance"
)

// callers keeps what Options.Caller said of addresses, as the last one of those that share a place: most requests come from few. Safe for concurrent use.
type callers [256]atomic.Pointer[caller]

type caller struct {
	address netip.Addr
	is      balance.Caller
}

// of is the caller at an address.
func (c *callers) of(address netip.Addr, ask func(netip.Addr) balance.Caller) balance.Caller {
	place := byte(0)
	for _, b := range address.As16() {
		place = place*31 + b
	}
	if kept := c[place].Load(); kept != nil && kept.address == address {
		return kept.is
	}
	is := ask(address)
	c[place].Store(&caller{address, is})
	return is
}
