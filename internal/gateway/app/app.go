// Package app is the application proxy: it passes requests that are not Git's to application workers, and their
// responses to the clients.
//
// A worker has few threads, and slow clients must not occupy them. So a request body is received before a worker is
// chosen, and a response is read as fast as the worker sends it, whatever the speed of the client. Then the worker gets
// its next request. Both are stored in memory, up to a limit. The rest of a longer body or response passes at the speed
// of the client.
//
// Each request gets a slot of a worker from package balance. httputil.ReverseProxy and one http.Transport for each
// worker do the rest. A response that was not sent in full never looks complete: the client's connection is cut
// instead.
package app

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Options configure a Proxy. Zero limits mean their defaults.
type Options struct {
	Routing Routing
	Workers []WorkerOptions // of the only pool, if Routing has no pools
	// Caller returns the party that the requests of a client count for in the queue. Nil means that all clients are one
	// party.
	Caller func(netip.Addr) balance.Caller

	Health   Health
	Blackout time.Duration // how long a drained worker has to be idle before it is reported as drained

	ConnectTimeout time.Duration // for a connection to a worker; default 5s
	HeaderTimeout  time.Duration // from the end of the request to the response header; default 60s
	StallTimeout   time.Duration // between two reads or writes in the middle of a message; default 60s
	KeepIdle       time.Duration // how long an unused connection is kept; default 1s

	MaxBody   int64         // bytes of a request body; default 1 GiB
	ReadStall time.Duration // how long a client may pause within a body; default 30s

	MaxUpgrades int           // upgraded connections at the same time. 0 means 1,000, negative means none
	UpgradeIdle time.Duration // how long both sides of an upgraded connection may be silent; default 10m

	Metrics *Metrics // nil: its own
	Log     *slog.Logger
}

// Proxy passes requests to workers. Safe for concurrent use.
type Proxy struct {
	Options
	table    atomic.Pointer[table]
	memory   budget // of bodies, beyond the first bytes of each
	buffers  bufferPool
	upgrades atomic.Int64 // requested or established

	running  context.Context // ends with the proxy
	end      context.CancelFunc
	checking sync.WaitGroup

	now func() time.Time

	mu       sync.Mutex // guards the state of pools and workers. It is taken before that of a scheduler
	isClosed bool
}

// maxMemory is the maximum size of all stored bodies, beyond the first bytes of each.
const maxMemory = 256 << 20

// Record describes a finished request, for logs and metrics.
type Record struct {
	Status   int    // sent to the client. 0: none, 499: the client disconnected first
	Worker   string // that answered, or was the last to fail
	Pool     string // also if none of its workers was available
	Reason   balance.Reason
	Tries    int           // workers that were asked
	Receive  time.Duration // until the request was received
	Queue    time.Duration // spent waiting for a worker
	Service  time.Duration // until the worker had sent its response
	In, Out  int64         // bytes of bodies
	Upgraded bool
	Err      error
	Cut      bool // the connection has to be cut, because the response is not complete
}

// New returns a Proxy. Without health checks it does not connect to workers before the first request.
func New(o Options) (*Proxy, error) {
	o.setDefaults()
	p := &Proxy{Options: o, memory: budget{limit: maxMemory}, now: time.Now}
	if len(o.Routing.Pools) == 0 {
		o.Routing.Pools = []PoolOptions{{Name: "app", Share: 1, Workers: o.Workers}}
	}
	p.running, p.end = context.WithCancel(context.Background())
	if err := p.Set(o.Routing); err != nil {
		return nil, err
	}
	p.Metrics.observe(p)
	return p, nil
}

func (o *Options) setDefaults() {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, time.Minute)
	o.StallTimeout = cmp.Or(o.StallTimeout, time.Minute)
	o.KeepIdle = cmp.Or(o.KeepIdle, time.Second)
	o.UpgradeIdle = cmp.Or(o.UpgradeIdle, 10*time.Minute)
	o.ReadStall = cmp.Or(o.ReadStall, 30*time.Second)
	o.Health.Timeout = cmp.Or(o.Health.Timeout, 5*time.Second)
	o.MaxBody = cmp.Or(o.MaxBody, 1<<30)
	o.MaxUpgrades = cmp.Or(o.MaxUpgrades, 1000)
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Close closes all connections to workers. Requests in flight fail.
func (p *Proxy) Close() {
	p.end()
	p.mu.Lock()
	p.isClosed = true
	p.mu.Unlock()
	p.checking.Wait()
	for _, pool := range p.table.Load().pools {
		for _, w := range pool.workers {
			w.transport.CloseIdleConnections()
		}
	}
}
