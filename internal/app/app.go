// Package app is the application proxy: it hands requests that are none of Git's to application workers, a free one first, and relays their
// answers.
//
// A worker has few threads, and slow clients are not their business. So a request is received whole, in memory or a file, before a worker is taken for
// it, and an answer is taken off the worker as fast as that gives it, whatever the client's speed; only then does the worker get the next request.
// What streams is passed on as it comes.
//
// Requests are read by net/http, and written anew for the worker from what was understood of them: nothing that two servers could read in two ways
// gets through. Answers are read strictly. A part of an answer never looks like a whole one: the client's connection is cut instead.
//
// All of a small request happens on the goroutine of net/http's server: one write to the worker, one read, one write to the client. httputil.ReverseProxy
// hands each request to two other goroutines and copies through a buffer of its own: 41 KB of memory for a request where this takes 5 (BenchmarkRelay).
//
// No part of such a request costs much by itself. Of its CPU time, the kernel had a quarter, memory and its collection a sixth, the scheduler of goroutines an
// eighth; ours and net/http's code shared the rest. What could go was what is done for each request and needed by few: watching for a client that
// goes away (watch here, and bulk.Serve for net/http's own), time limits, entering the scheduler with a context made for waiting. What is left
// of net/http is two maps of headers, a context and a goroutine, which only a server of our own could spare.
package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// Options says which workers there are, and what requests and answers may take. Zero limits mean their defaults.
type Options struct {
	Routing Routing
	Workers []WorkerOptions // of the one pool that there is, if Routing has none
	// Caller tells whom a request counts for in the queue, by the address of its client, always the same for the same one; nil: all are one.
	Caller func(netip.Addr) balance.Caller

	Health     Health
	Blackout   time.Duration // how long a drained worker that has nothing left is not said to be drained yet
	DrainShare float64       // the part of a pool's workers that may be out of service at once; one always may
	SlowStart  time.Duration // for how long a worker that is ready again is given less than its share
	Metrics    *Metrics      // nil: of its own

	ConnectTime time.Duration // for a connection to a worker; 0: 5 s
	HeaderTime  time.Duration // from the request's last byte to the header of the answer; 0: 60 s
	IdleTime    time.Duration // between two bytes of an answer; 0: 60 s
	KeepIdle    time.Duration // how long a connection is kept that no request uses; 0: 1 s

	MaxBody    int64         // bytes of a request's body; 0: 1 GiB
	BodyMemory int64         // bytes of one that are held in memory; 0: 64 KiB
	ReadStall  time.Duration // how long a client may send nothing in the middle of a body, and ten times that for 64 KiB of it; 0: 30 s
	MaxMemory  int64         // bytes of all bodies in memory; what is beyond goes to files; 0: 256 MiB
	Memory     int64         // bytes of an answer that are held in memory for a slow client; 0: 128 KiB; at least 64 KiB
	MaxAnswer  int64         // bytes of an answer that are held for a slow client; then the worker waits for it; 0: 1 GiB
	Dir        string        // where what is beyond memory goes; empty: nowhere
	MaxDir     int64         // bytes there, of all requests; 0: 8 GiB

	// Files are what workers may have sent, by the header FileHeader: X-Sendfile or X-Accel-Redirect; empty: none.
	FileHeader string
	Files      []FileRoot

	MaxUpgrades int           // connections that speak another protocol, at a time; 0: 1,000; negative: none
	UpgradeIdle time.Duration // how long neither side of one may say anything; 0: 10 minutes

	Log *slog.Logger
}

// WorkerOptions describes a worker.
type WorkerOptions struct {
	Name    string
	Address string // "unix:/run/app/w0.sock" or "http://127.0.0.1:3001"
	Slots   int    // requests at a time; 0: 1
	Auto    bool   // so many of them as sharing the worker is measured to be good for
	Weight  int
	Files   bool // it may have files sent
}

// FileRoot is a directory that files are sent from.
type FileRoot struct {
	Dir string
	URI string // what X-Accel-Redirect names it by, as in "/protected/"
}

// Proxy relays requests to workers. Safe for concurrent use.
type Proxy struct {
	Options
	table    atomic.Pointer[table]
	roots    []root
	memory   budget // of bodies, beyond the first bytes of each
	disk     budget
	buffers  sync.Pool    // of *[copySize]byte
	rings    sync.Pool    // of *[]byte
	spooled  atomic.Int64 // bytes that went into files
	upgrades atomic.Int64 // that were asked for, or are there
	outlives outlives
	callers  callers

	complained atomic.Int64 // of files that cannot be written: ns since 1970; 0: never

	running  context.Context // ends with the proxy
	end      context.CancelFunc
	watching sync.WaitGroup // checks of workers

	setting sync.Mutex // held by Set, Close, and what changes a worker for good, which must not be one that is replaced meanwhile
	stopped bool
	known   map[string]*conns // by address, also those of workers that were left out and still have requests
}

// Record tells what became of a request, for logs and metrics.
type Record struct {
	Status   int    // that was sent; 0: none; 499: the client went away before
	Worker   string // that answered, or was the last to fail
	Pool     string // that it belongs to, also if none of its workers could be had
	Class    Class
	Reason   balance.Reason
	Tries    int           // workers that were asked
	Receive  time.Duration // until the request was here
	Queue    time.Duration // it waited for a worker
	Service  time.Duration // the worker took to answer whole
	In, Out  int64         // bytes of bodies
	Upgraded bool
	File     bool  // a file was sent
	Kernel   int64 // bytes of it that the kernel copied
	Spooled  int64 // bytes that went through a file
	Err      error
	// Cut: the connection has to be cut, because what was sent is no whole answer.
	Cut bool
}

// New makes a proxy. Without checks of health no connection is made before the first request.
func New(o Options) (*Proxy, error) {
	o.defaults()
	p := &Proxy{Options: o}
	p.disk.limit, p.memory.limit = o.MaxDir, o.MaxMemory
	err := openDir(o.Dir)
	if err != nil {
		return nil, err
	}
	if p.roots, err = openRoots(&o); err != nil {
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
	p.Metrics.tell(p)
	return p, nil
}

func (o *Options) defaults() {
	time := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	size := func(n *int64, value int64) {
		if *n <= 0 {
			*n = value
		}
	}
	time(&o.ConnectTime, 5*second)
	time(&o.HeaderTime, 60*second)
	time(&o.IdleTime, 60*second)
	time(&o.KeepIdle, second)
	time(&o.ReadStall, 30*second)
	time(&o.UpgradeIdle, 600*second)
	size(&o.MaxBody, 1<<30)
	size(&o.BodyMemory, 64<<10)
	size(&o.MaxMemory, 256<<20)
	size(&o.Memory, 128<<10)
	o.Memory = max(o.Memory, copySize)
	size(&o.MaxAnswer, 1<<30)
	size(&o.MaxDir, 8<<30)
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

const second = time.Second

// ServeHTTP answers a request, and cuts the connection of an answer that is not whole.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Serve(r.Context(), w, r, origin.Proxies(nil).Of(r)).Cut {
		panic(http.ErrAbortHandler)
	}
}

// Close closes all connections to workers. Requests that run fail.
func (p *Proxy) Close() {
	p.end()
	p.setting.Lock()
	p.stopped = true
	p.setting.Unlock()
	p.watching.Wait()
	for _, c := range p.known {
		c.close()
	}
	p.outlives.close()
	closeRoots(p.roots)
}
