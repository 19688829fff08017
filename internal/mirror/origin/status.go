package origin

import (
	"cmp"
	"slices"
	"time"
)

// Status is the state of a host with origins.
type Status struct {
	Host    string `json:"host"`
	Running int    `json:"running"`           // requests
	Error   string `json:"error,omitempty"`   // the circuit breaker is open or half-open, with its cause; "": it is closed
	Pause   int64  `json:"pause_ms,omitzero"` // how long the host wants no requests
}

// StatusOf returns the states of the hosts of some origins, sorted by host.
func StatusOf(origins []*Origin) []Status {
	all := []Status{}
	for _, o := range origins {
		s := Status{Host: o.Host(), Running: o.limits.all.InUse()}
		if !o.limits.breaker.IsClosed() {
			s.Error = o.limits.errOpen().Error()
		}
		o.limits.mu.Lock()
		s.Pause = max(time.Until(o.limits.paused), 0).Milliseconds()
		o.limits.mu.Unlock()
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Host, b.Host) })
	return slices.CompactFunc(all, func(a, b Status) bool { return a.Host == b.Host }) // which share their limits
}
