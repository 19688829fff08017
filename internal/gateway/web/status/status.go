package status

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/search"
)

// Sources are the parts of a server that the page asks. The page has no data of a nil source.
type Sources struct {
	Role, Version string
	Board         *inflight.Board
	Nodes         func() []router.Status // storage nodes in other processes
	// Mirrors returns mirrors, and whether these are all. It ends soon after ctx.
	Mirrors func(ctx context.Context) (list []Mirror, complete bool)
	Search  func(may search.Readable) search.Status
}

// Mirror is the state of a mirror.
type Mirror struct {
	Path, Origin   string
	Fresh, Updated time.Time // when the origin last had this state; the last change
	State, Error   string    // the state in words; why the last check failed
}

// Status serves the page. Safe for concurrent use. The owner closes it.
type Status struct {
	*page.Site
	Sources
	began   time.Time
	history history

	metrics prometheus.Gatherer // set by Start, before the first request
	end     context.CancelFunc
	running sync.WaitGroup

	mirrorsMu sync.Mutex
	mirrors   mirrorList // the last answer of Mirrors
}

// New returns a Status.
func New(site *page.Site, s Sources) *Status {
	return &Status{Site: site, Sources: s, began: time.Now()}
}

// Start begins to take samples of metrics.
func (s *Status) Start(from prometheus.Gatherer) {
	ctx, end := context.WithCancel(context.Background())
	s.metrics, s.end = from, end
	s.running.Go(func() { s.history.follow(ctx, from) })
}

// Close ends what Start began.
func (s *Status) Close() {
	if s.end != nil {
		s.end()
		s.running.Wait()
	}
}

// Limits of refresh=, in seconds.
const minRefresh, maxRefresh = 5, 3600

// Serve sends the page to an administrator.
func (s *Status) Serve(w http.ResponseWriter, r *http.Request, v page.Caller) error {
	query := r.URL.Query()
	if n, err := strconv.Atoi(query.Get("refresh")); err == nil {
		w.Header().Set("Refresh", strconv.Itoa(min(max(n, minRefresh), maxRefresh)))
	}
	w.Header().Set("Cache-Control", "private, no-store")
	var drawings map[int]*drawing
	isDay := query.Get("range") == "day"
	if s.metrics != nil {
		drawings = s.history.drawings(s.history.until(s.history.take(s.metrics), isDay))
	}
	main := g.Group{h.H1(h.Class("crumbs"), g.Text("Status")), s.head(), ranges(query, isDay)}
	for _, name := range sections {
		content := s.tables(r.Context(), name)
		figures := g.Group{}
		for i := range plots {
			if d := drawings[i]; d != nil && d.section == name {
				figures = append(figures, d.figure())
			}
		}
		if len(figures) > 0 {
			content = append(g.Group{h.Div(h.Class("plots"), figures)}, content...)
		}
		if len(content) > 0 {
			main = append(main, h.Section(h.H2(g.Text(name)), content))
		}
	}
	head := s.HeadFor(r, v, page.Head{Kind: "list", Title: "Status"})
	return s.Send(w, r, http.StatusOK, "status", s.Frame(head, main))
}

// head describes the process.
func (s *Status) head() g.Node {
	_, running := s.Board.Requests(0)
	of := "These are the numbers of this process."
	if s.Nodes != nil {
		of = "These are the numbers of this gateway. CPU of Git by repository and caller includes that of the storage " +
			"nodes for its requests. Caches, mirrors and stores are those of the nodes: see packhorse top there."
	}
	return h.Div(h.Class("about"), h.Span(g.Text("packhorse "+s.Role+" "+s.Version)),
		h.Span(g.Text("up for "+age(s.began))),
		h.Span(g.Textf("%d running %s", running, page.Plural(running, "request", "requests"))), h.Span(g.Text(of)))
}

// ranges returns the links to other times.
func ranges(query url.Values, isDay bool) g.Node {
	link := func(text, key, value string, isCurrent bool) g.Node {
		q := url.Values{}
		for _, known := range []string{"range", "refresh"} {
			if query.Has(known) {
				q.Set(known, query.Get(known))
			}
		}
		if q.Set(key, value); value == "" {
			q.Del(key)
		}
		return h.A(page.Href(page.StatusPath+"?"+q.Encode()), g.If(isCurrent, h.Aria("current", "true")), g.Text(text))
	}
	return h.Nav(h.Class("tabs"), h.Aria("label", "Time"), link("2 hours", "range", "", !isDay),
		link("24 hours", "range", "day", isDay), link("Refresh", "refresh", "", false),
		link("Refresh every 10 seconds", "refresh", "10", query.Get("refresh") != ""))
}
