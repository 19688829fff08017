package roles

import (
	"os"

	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// lanes has the limits that all requests of a process share, and the parts that observe requests.
type lanes struct {
	pump *bulk.Pump
	admit.Lanes
	memory  *admit.Budget // of large requests
	metrics *admit.Metrics
	board   *inflight.Board      // running requests
	sli     *inflight.Levels     // service levels
	tree    *observe.ProcessTree // child processes
	tracer  *inflight.Tracer     // nil if disabled
}

// Lanes that have no key: git.slots and push.slots limit the expensive work in them.
const (
	smallLane = 1024 // ref advertisements, ls-refs, negotiation
	pushLane  = 256
	pagesLane = 256 // code searches and pages
)

// addLanes makes the limits that all requests share.
func (d *deps) addLanes() error {
	cfg := d.cfg
	l := lanes{
		pump: bulk.NewPump(bulk.PumpOptions{Registerer: d.reg}),
		Lanes: admit.NewLanes(admit.Sizes{
			Small: smallLane, Hit: cfg.Lanes.Hit, Cold: cfg.Lanes.Cold, Push: pushLane, Pages: pagesLane,
		}),
		// Memory of finished requests that is not collected yet can double this.
		memory: admit.NewBudget("requests", config.AtMost(int64(cfg.Lanes.RequestBytes), cfg.MemoryShares().Server/4)),
		board:  inflight.NewBoard(),
		sli:    inflight.NewLevels(inflight.LevelBounds(cfg.SLI.Scale), d.reg),
		tree: observe.NewProcessTree(observe.TreeOptions{Workers: map[string]string{reaper.Name: "reaper"},
			Programs: map[string]string{ipc.Program: searches}, Registerer: d.reg, Log: d.log}),
	}
	l.metrics = admit.NewMetrics(l.Lanes, l.memory, d.reg)
	l.Small.Watch(l.pump)
	if cfg.Tracing.Endpoint != "" {
		headers, err := observe.TracingHeaders(d.process.Getenv)
		if err != nil {
			return err
		}
		exporter, err := observe.NewExporter(observe.TracingOptions{
			Endpoint: cfg.Tracing.Endpoint, GRPC: cfg.Tracing.Protocol == config.OtlpGRPC, Headers: headers,
			Role: string(d.role), Version: d.process.Version, Log: d.log, Registerer: d.reg,
		})
		if err != nil {
			return err
		}
		l.tracer = inflight.NewTracer(exporter.Tracer(), cfg.Tracing.Ratio, callerTraces)
		d.life.push("trace exporter", exporter.Close)
	}
	d.lanes = l
	return nil
}

// callerTraces is the maximum number of requests a second that are traced because their callers trace them.
const callerTraces = 10

// searches names the search processes among the child processes.
const searches = "search"

// account returns a function that adds ended processes to a part of the process tree.
func (l *lanes) account(part string) func(*os.ProcessState) {
	return func(state *os.ProcessState) { l.tree.Ended(part, state) }
}

// reserveForKnown limits anonymous callers to a share of each lane once known reports that callers can be identified.
// That can change while the server runs, with the first token or with new rules.
func (l *lanes) reserveForKnown(known func() bool) {
	for _, lane := range l.All() {
		lane.Anonymous(config.AnonymousShare, known)
	}
	l.memory.Anonymous(config.AnonymousShare, known)
}
