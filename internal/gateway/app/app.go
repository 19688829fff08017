// Package app is the application proxy: it passes requests that are not Git's to application workers, and their
// responses to the clients.
//
// A worker has few threads, and slow clients must not occupy them. So a request body is received in full, in memory or
// a file, before a worker is chosen. A response is read as fast as the worker sends it, whatever the speed of the
// client. Then the worker gets its next request.
//
// Each request gets a slot of a worker from package balance. httputil.ReverseProxy and one http.Transport for each
// worker do the rest. A response that was not sent in full never looks complete: the client's connection is cut
// instead.
package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/transport/clientaddr"
)

// Options configure a Proxy. Zero limits mean their defaults.
type Options struct {
	Routing Routing
	Workers []WorkerOptions // of the only pool, if Routing has no pools
	// Caller returns the party that the requests of a client count for in the queue. Nil means that all clients are one
	// party.
	Caller func(netip.Addr) balance.Caller

	Health     Health
	Blackout   time.Duration // how long a drained worker has to be idle before it is reported as drained
	DrainShare float64       // part of a pool's workers that may be out of service at the same time; one always may
	Metrics    *Metrics      // nil: its own

	ConnectTimeout time.Duration // for a connection to a worker; default 5s
	HeaderTimeout  time.Duration // from the end of the request to the response header; default 60s
	StallTimeout   time.Duration // between two reads or writes in the middle of a message; default 60s
	KeepIdle       time.Duration // how long an unused connection is kept; default 1s

	Bodies Bodies
	Files  Files

	MaxUpgrades int           // upgraded connections at the same time. 0 means 1,000, negative means none
	UpgradeIdle time.Duration // how long both sides of an upgraded connection may be silent; default 10m

	Log *slog.Logger
}

// Bodies limits the stored parts of requests and responses.
type Bodies struct {
	MaxRequest    int64         // bytes of a request body; default 1 GiB
	RequestMemory int64         // bytes of a request body in memory; default 64 KiB
	ReadStall     time.Duration // how long a client may pause within a body; default 30s
	MaxMemory     int64         // bytes of all bodies in memory, the rest goes to files; default 256 MiB
	MaxResponse   int64         // stored bytes of a response before the worker waits; default 1 GiB
	Dir           string        // directory for files; empty: no files
	MaxDir        int64         // bytes of all files; default 8 GiB
}

// Proxy passes requests to workers. Safe for concurrent use.
type Proxy struct {
	Options
	table    atomic.Pointer[table]
	roots    []root
	memory   budget // of bodies, beyond the first bytes of each
	disk     budget
	buffers  bufferPool
	upgrades atomic.Int64 // requested or established
	diskLog  rate.Sometimes

	running  context.Context // ends with the proxy
	end      context.CancelFunc
	checking sync.WaitGroup

	mu       sync.Mutex // held by Set, Close, Drain and Undrain
	isClosed bool
	backends map[string]*backend // by address
}

// Record describes a finished request, for logs and metrics.
type Record struct {
	Status   int    // sent to the client. 0: none, 499: the client disconnected first
	Worker   string // that answered, or was the last to fail
	Pool     string // also if none of its workers was available
	Class    Class
	Reason   balance.Reason
	Tries    int           // workers that were asked
	Receive  time.Duration // until the request was received
	Queue    time.Duration // spent waiting for a worker
	Service  time.Duration // until the worker had sent its response
	In, Out  int64         // bytes of bodies
	Upgraded bool
	File     bool  // a file was sent
	Kernel   int64 // bytes of it that the kernel copied
	Spooled  int64 // bytes of the response that went through a file
	Err      error
	Cut      bool // the connection has to be cut, because the response is not complete
}

// New returns a Proxy. Without health checks it does not connect to workers before the first request.
func New(o Options) (*Proxy, error) {
	o.setDefaults()
	p := &Proxy{Options: o, diskLog: rate.Sometimes{Interval: time.Minute}, backends: map[string]*backend{}}
	p.disk.limit, p.memory.limit = o.Bodies.MaxDir, o.Bodies.MaxMemory
	err := openDir(o.Bodies.Dir)
	if err != nil {
		return nil, err
	}
	if p.roots, err = openRoots(&o.Files); err != nil {
		return nil, err
	}
	if len(o.Routing.Pools) == 0 {
		o.Routing.Pools = []PoolOptions{{Name: "app", Share: 1, Workers: o.Workers}}
	}
	p.running, p.end = context.WithCancel(context.Background())
	if err := p.Set(o.Routing); err != nil {
		closeRoots(p.roots)
		return nil, err
	}
	p.Metrics.observe(p)
	return p, nil
}

func (o *Options) setDefaults() {
	setDuration := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	setSize := func(n *int64, value int64) {
		if *n <= 0 {
			*n = value
		}
	}
	setDuration(&o.ConnectTimeout, 5*time.Second)
	setDuration(&o.HeaderTimeout, time.Minute)
	setDuration(&o.StallTimeout, time.Minute)
	setDuration(&o.KeepIdle, time.Second)
	setDuration(&o.UpgradeIdle, 10*time.Minute)
	setDuration(&o.Health.Timeout, 5*time.Second)
	setDuration(&o.Bodies.ReadStall, 30*time.Second)
	setSize(&o.Bodies.MaxRequest, 1<<30)
	setSize(&o.Bodies.RequestMemory, 64<<10)
	setSize(&o.Bodies.MaxMemory, 256<<20)
	setSize(&o.Bodies.MaxResponse, 1<<30)
	setSize(&o.Bodies.MaxDir, 8<<30)
	if o.MaxUpgrades == 0 {
		o.MaxUpgrades = 1000
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// ServeHTTP answers a request. It cuts the connection if the response is not complete.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Serve(r.Context(), w, r, clientaddr.Proxies(nil).Of(r)).Cut {
		panic(http.ErrAbortHandler)
	}
}

// Close closes all connections to workers. Requests in flight fail.
func (p *Proxy) Close() {
	p.end()
	p.mu.Lock()
	p.isClosed = true
	p.mu.Unlock()
	p.checking.Wait()
	for _, b := range p.backends {
		b.transport.CloseIdleConnections()
	}
	closeRoots(p.roots)
}
