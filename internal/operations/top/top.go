// Package top reports the current activity of a process: running requests, git commands, slots, lanes, the cache, and
// the heaviest repositories and callers. The private listener serves it as JSON, and `packhorse top` displays it
// as frames on a terminal. A frame is a pure function of a State and a View.
package top

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Path is the path of the report on the private listener.
const Path = "/debug/top"

// State is the activity of a process at one moment. All lists are bounded; Requests.Running and Git.Running also count
// requests and commands that are not listed.
type State struct {
	Time     time.Time `json:"time"`
	Role     string    `json:"role"`
	Version  string    `json:"version"`
	UptimeMS int64     `json:"uptime_ms"`
	Requests Requests  `json:"requests"`
	Git      Git       `json:"git"`
	Lanes    []Lane    `json:"lanes"`
	Cache    *Cache    `json:"cache,omitempty"`
	// Origins are the hosts of mirrors, and the forge.
	Origins []origin.Status `json:"origins"`
	Heavy   Heavy           `json:"heavy"`
}

// Requests are the running requests, the oldest first.
type Requests struct {
	Running int            `json:"running"`
	Stages  map[string]int `json:"stages"` // number of listed requests by stage
	List    []Request      `json:"list"`
}

// Request is a running request.
type Request struct {
	ID         string  `json:"id"` // field "request" of log lines
	Operation  string  `json:"operation"`
	Stage      string  `json:"stage"` // reading, queued, working, packing, sending, remote
	AgeMS      int64   `json:"age_ms"`
	StageMS    int64   `json:"stage_ms"` // time in the stage
	Repository string  `json:"repository,omitempty"`
	Caller     string  `json:"caller,omitempty"`
	Bytes      int64   `json:"bytes"`         // sent to the client
	GitCPUMS   float64 `json:"git_cpu_ms"`    // of its git commands, including running ones
	GitRSS     int64   `json:"git_rss_bytes"` // of the running ones
	Commands   int     `json:"git_commands"`  // that have ended
}

// Git has the running git commands, the oldest first, and their slots.
type Git struct {
	Running int       `json:"running"`
	List    []Command `json:"list"`
	Slots   []Slots   `json:"slots"`
}

// Command is a running git command or hook.
type Command struct {
	PID        int     `json:"pid"`
	Class      string  `json:"class"`
	Subcommand string  `json:"subcommand"`
	Arguments  string  `json:"arguments"`
	Repository string  `json:"repository,omitempty"`
	Caller     string  `json:"caller,omitempty"`
	Request    string  `json:"request,omitempty"` // ID of its request
	AgeMS      int64   `json:"age_ms"`
	QueueMS    int64   `json:"queue_ms"`
	CPUMS      float64 `json:"cpu_ms"`
	RSS        int64   `json:"rss_bytes"`
	In         int64   `json:"in_bytes"`
	Out        int64   `json:"out_bytes"`
	Processes  int     `json:"processes"`
}

// Slots are the slots of one class of git commands.
type Slots struct {
	Class  string `json:"class"`
	Used   int    `json:"used"`
	Queued int    `json:"queued"`
	Size   int    `json:"size"`
}

// Lane is a class of requests. Totals count from the start of the process.
type Lane struct {
	Name          string `json:"name"`
	Running       int64  `json:"running"`
	Queued        int64  `json:"queued"`
	Limit         int64  `json:"limit"`
	AdmittedTotal int64  `json:"admitted_total"`
	RefusedTotal  int64  `json:"refused_total"`
}

// Cache is the pack cache. Totals count from the start of the process.
type Cache struct {
	Bytes        int64 `json:"bytes"`
	MaxBytes     int64 `json:"max_bytes"`
	Entries      int   `json:"entries"`
	Fills        int   `json:"fills"` // running cache fills
	HitsTotal    int64 `json:"hits_total"`
	MissesTotal  int64 `json:"misses_total"`
	FollowsTotal int64 `json:"follows_total"`
}

// Heavy lists the ten heaviest repositories and callers of the last minutes for each measure.
type Heavy struct {
	Minutes      int      `json:"minutes"`
	Repositories []Hitter `json:"repositories"`
	Callers      []Hitter `json:"callers"`
}

// Hitter is a repository or a caller with its cost. Fields with "_over" are the maximum error of the field before them
// (inflight.Heavy).
type Hitter struct {
	Name         string  `json:"name"`
	Requests     int64   `json:"requests"`
	RequestsOver int64   `json:"requests_over,omitempty"`
	Bytes        int64   `json:"bytes"`
	BytesOver    int64   `json:"bytes_over,omitempty"`
	GitCPUMS     float64 `json:"git_cpu_ms"`
	GitCPUOverMS float64 `json:"git_cpu_over_ms,omitempty"`
}

// Sources are the parts that a State is made from. A State has no data of a nil source.
type Sources struct {
	Role, Version string
	Board         *inflight.Board
	Runner        *process.Runner
	Lanes         *admit.Metrics
	Cache         func() packcache.Stats
	Origins       func() []origin.Status
	// Redact removes secrets from names.
	Redact func(string) string
	Log    *slog.Logger
}

const (
	// defaultShown and maxShown are limits of listed requests and of listed git commands.
	defaultShown = 200
	maxShown     = 2000
	maxHeavy     = 10 // of each measure
	// freshFor is the time for which a State is reused, so that several callers cost no more than one.
	freshFor = 200 * time.Millisecond
)

// Top makes States of a process. It is safe for concurrent use and makes one State at a time.
type Top struct {
	Sources
	began time.Time

	mu    sync.Mutex
	made  time.Time
	shown int
	text  []byte
}

// New returns a Top of a process that starts now.
func New(s Sources) *Top { return &Top{Sources: s, began: time.Now()} }

// State returns the current activity. It lists at most the given number of requests, and as many git commands.
func (t *Top) State(most int) *State {
	now := time.Now()
	s := &State{
		Time: now.UTC(), Role: t.Role, Version: t.Version, UptimeMS: now.Sub(t.began).Milliseconds(),
		Requests: Requests{Stages: map[string]int{}, List: []Request{}}, Git: Git{List: []Command{}, Slots: []Slots{}},
		Lanes: []Lane{}, Origins: []origin.Status{},
		Heavy: Heavy{Minutes: inflight.HeavyMinutes, Repositories: []Hitter{}, Callers: []Hitter{}},
	}
	t.requests(s, most)
	t.git(s, most)
	if t.Lanes != nil {
		for _, l := range t.Lanes.States() {
			s.Lanes = append(s.Lanes, Lane{l.Name, l.Running, l.Queued, l.Limit, l.Admitted, l.Refused})
		}
	}
	if t.Cache != nil {
		c := t.Cache()
		s.Cache = &Cache{c.Bytes, c.MaxBytes, c.Entries, c.Fills, c.Hits, c.Misses, c.Follows}
	}
	if t.Origins != nil {
		s.Origins = t.Origins()
		for i := range s.Origins {
			s.Origins[i].Error = t.Redact(s.Origins[i].Error)
		}
	}
	return s
}

func (t *Top) requests(s *State, most int) {
	all, running := t.Board.Requests(most)
	s.Requests.Running = running
	for _, r := range all {
		s.Requests.Stages[r.Stage.String()]++
		s.Requests.List = append(s.Requests.List, Request{
			ID: r.ID, Operation: t.Redact(r.Kind), Stage: r.Stage.String(), AgeMS: r.Age.Milliseconds(),
			StageMS:    r.InStage.Milliseconds(),
			Repository: t.Redact(r.Repository), Caller: t.Redact(r.Caller), Bytes: r.Bytes,
			GitCPUMS: milliseconds(r.Git.User + r.Git.System),
			Commands: r.Git.Commands,
		})
	}
	repositories, callers := t.Board.Heaviest(maxHeavy)
	s.Heavy.Repositories, s.Heavy.Callers = t.hitters(repositories), t.hitters(callers)
}

func (t *Top) hitters(all []inflight.Heavy) []Hitter {
	list := make([]Hitter, len(all))
	for i, h := range all {
		list[i] = Hitter{
			Name: t.Redact(h.Name), Requests: h.Requests.Value, RequestsOver: h.Requests.Over, Bytes: h.Bytes.Value,
			BytesOver: h.Bytes.Over,
			GitCPUMS:  milliseconds(time.Duration(h.CPU.Value)), GitCPUOverMS: milliseconds(time.Duration(h.CPU.Over)),
		}
	}
	return list
}

func (t *Top) git(s *State, most int) {
	if t.Runner == nil {
		return
	}
	for _, c := range t.Runner.States() {
		s.Git.Slots = append(s.Git.Slots, Slots{string(c.Class), c.Used, c.Queued, c.Size})
	}
	all := t.Runner.Running()
	s.Git.Running = len(all)
	of := make(map[string]*Request, len(s.Requests.List))
	for i := range s.Requests.List {
		of[s.Requests.List[i].ID] = &s.Requests.List[i]
	}
	for i, c := range all {
		cpu := milliseconds(c.User + c.System)
		if r := of[c.Request]; r != nil {
			r.GitCPUMS += cpu
			r.GitRSS += c.RSS
		}
		if i >= most {
			continue
		}
		s.Git.List = append(s.Git.List, Command{
			PID: c.Pid, Class: string(c.Class), Subcommand: c.Subcommand, Arguments: t.Redact(c.Args),
			Repository: t.Redact(c.Repository),
			Caller:     t.Redact(string(c.Caller)), Request: c.Request, AgeMS: c.Age.Milliseconds(),
			QueueMS: c.Queue.Milliseconds(),
			CPUMS:   cpu, RSS: c.RSS, In: c.In, Out: c.Out, Processes: c.Processes,
		})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// ServeHTTP answers with a State as JSON. The query parameter "most" is the maximum number of listed requests, and of
// listed git commands.
func (t *Top) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	most := defaultShown
	if text := r.URL.Query().Get("most"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			http.Error(w, "most is a number from 0 to "+strconv.Itoa(maxShown), http.StatusBadRequest)
			return
		}
		most = min(n, maxShown)
	}
	text, err := t.encoded(most)
	if err != nil {
		t.Log.Error("cannot report the activity of the process", "error", err)
		http.Error(w, "internal error; see the server's log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(text)
}

// encoded returns a State as JSON, at most freshFor old.
func (t *Top) encoded(most int) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text != nil && t.shown == most && time.Since(t.made) < freshFor {
		return slices.Clone(t.text), nil
	}
	text, err := json.Marshal(t.State(most))
	if err != nil {
		return nil, err
	}
	t.text, t.shown, t.made = append(text, '\n'), most, time.Now()
	return slices.Clone(t.text), nil
}

// Sorts are the orders of requests that there are.
var Sorts = []Sort{ByAge, ByBytes, ByCPU, ByRepository, ByCaller, ByStage}

// Sort is an order of requests.
type Sort string

// The orders: the oldest, those that were sent most, those whose git commands took most CPU time, and by name.
const (
	ByAge        Sort = "age"
	ByBytes      Sort = "bytes"
	ByCPU        Sort = "cpu"
	ByRepository Sort = "repository"
	ByCaller     Sort = "caller"
	ByStage      Sort = "stage"
)

// Order sorts requests. Equal ones are sorted by age.
func Order(list []Request, by Sort, reversed bool) {
	slices.SortStableFunc(list, func(a, b Request) int {
		order := 0
		switch by {
		case ByBytes:
			order = cmp.Compare(b.Bytes, a.Bytes)
		case ByCPU:
			order = cmp.Compare(b.GitCPUMS, a.GitCPUMS)
		case ByRepository:
			order = cmp.Compare(a.Repository, b.Repository)
		case ByCaller:
			order = cmp.Compare(a.Caller, b.Caller)
		case ByStage:
			order = cmp.Compare(a.Stage, b.Stage)
		}
		order = cmp.Or(order, cmp.Compare(b.AgeMS, a.AgeMS), cmp.Compare(a.ID, b.ID))
		if reversed {
			return -order
		}
		return order
	})
}
