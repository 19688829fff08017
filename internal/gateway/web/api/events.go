package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	maxEvent    = 10 << 20 // bytes of one event: Sourcegraph's clients read no longer ones
	aliveEvery  = time.Second
	maxFilters  = 30
	maxNames    = 5 // in a message
	eventStream = "text/event-stream"
)

// stream answers Sourcegraph's GET /.api/search/stream. Parameters: q, t (kind of patterns), display (number of
// results) and cm (chunks instead of lines). Errors are events.
func (a *API) stream(w http.ResponseWriter, r *http.Request, v search.Visitor) error {
	if r.Method != http.MethodGet {
		return refuseMethod(w, "GET")
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return a.events(w, r, v, parameters{}, "stream", schema.StreamLines)
	}
	q := parameters{text: values.Get("q")}
	q.kind, _ = query.KindOf(values.Get("t"))
	if n, err := strconv.Atoi(values.Get("display")); err == nil && n > 0 {
		q.most = n
	}
	format := schema.StreamLines
	if chunks, _ := strconv.ParseBool(values.Get("cm")); chunks {
		format = schema.StreamChunks
	}
	return a.events(w, r, v, q, "stream", format)
}

// events sends server-sent events: matches, progress, filters, alert, error, and done at the end.
func (a *API) events(w http.ResponseWriter, r *http.Request, v search.Visitor, q parameters, api string,
	format schema.Format) (err error) {
	var failed error // reported as an event
	defer func() { a.metrics.count(api, cmp.Or(err, failed)) }()
	request, err := a.request(q, v, format)
	header(w.Header(), eventStream)
	if w.Header().Get("Cache-Control") == "" { // the gateway may have set it
		w.Header().Set("Cache-Control", "no-cache")
	}
	w.Header().Set("X-Accel-Buffering", "no") // nginx would buffer events
	e := &events{w: w, control: http.NewResponseController(w), own: format == schema.APIEvents,
		anonymous: v.Name() == "" && v.Reader() != nil, began: time.Now(), counts: map[string]int{}}
	summary := search.Summary{}
	if err == nil {
		alive := e.keepAlive()
		summary, err = a.Searcher.Search(r.Context(), request, e)
		alive()
		note(v, summary)
	}
	if e.broken != nil {
		return e.broken
	}
	if r.Context().Err() != nil {
		return r.Context().Err()
	}
	if failed = err; failed != nil {
		err, e.anonymous = nil, false
		v.Failed(failed)
		if !e.own {
			if fault.Is(failed, fault.Invalid) {
				e.send("alert", newAlert(q.text, failed))
			}
			e.send("error", schema.Failure{Name: "Error", Message: fault.Message(failed)})
		} else {
			e.send("error", newFailure(failed))
		}
	} else if !e.own {
		if alert, ok := noticeAlert(summary.Notices); ok {
			e.send("alert", alert)
		}
		if filters := e.filters(summary); len(filters) > 0 {
			e.send("filters", filters)
		}
	}
	summary.Done = true
	_ = e.Progress(summary)
	e.write("done", []byte("{}"))
	return e.broken
}

// noticeAlert returns an alert about ignored parts of a query, and whether there are any. Files that are searched only
// by name do not count.
func noticeAlert(notices []search.Notice) (schema.Alert, bool) {
	var messages []string
	for _, n := range notices {
		if n.Reason != "files" {
			messages = append(messages, n.Message)
		}
	}
	return schema.Alert{Title: "Parts of the query were ignored", Description: strings.Join(messages, " "),
		ProposedQueries: []schema.ProposedQuery{}}, len(messages) > 0
}

// newAlert describes an invalid query.
func newAlert(text string, err error) schema.Alert {
	alert := schema.Alert{Title: "Unable to process the query", Description: fault.Message(err),
		ProposedQueries: []schema.ProposedQuery{}}
	if text = strings.TrimSpace(text); text != "" && len(text) < 200 && !strings.ContainsAny(text, "\"\\\x00") {
		literal := `content:"` + text + `"`
		if _, err := query.Parse(literal); err == nil {
			alert.ProposedQueries = append(alert.ProposedQueries,
				schema.ProposedQuery{Description: "search for the text itself", Query: literal})
		}
	}
	return alert
}

// events writes the events of one search.
type events struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	own       bool // the format of Packhorse's API
	anonymous bool // the caller sent no credentials, and they might give access to more
	began     time.Time

	mu     sync.Mutex
	buf    []byte
	last   search.Summary
	counts map[string]int // results by repository
	broken error          // of the connection
}

// keepAlive sends the progress once a second until the caller stops it.
func (e *events) keepAlive() (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				e.mu.Lock()
				s := e.last
				e.mu.Unlock()
				s.Elapsed = time.Since(e.began)
				_ = e.Progress(s)
			}
		}
	}()
	return func() { close(ended); <-done }
}

// Matches implements search.Sink.
func (e *events) Matches(b search.Batch) error {
	if len(b.JSON) == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(b.JSON) > maxEvent-1024 {
		return fault.New(fault.Internal, "event too large: results of %d bytes", len(b.JSON))
	}
	if !e.own {
		e.countRepositories(b.JSON)
	}
	e.last.Results += b.Results
	e.last.Matches += b.Matches
	e.buf = append(e.buf[:0], "event: matches\ndata: ["...)
	e.buf = append(append(e.buf, b.JSON...), "]\n\n"...)
	return e.flush()
}

// countRepositories counts results by repository. It need not parse JSON: in a JSON string the quotes of mark would be
// escaped.
func (e *events) countRepositories(results []byte) {
	mark := []byte(`"repository":"`)
	for {
		i := bytes.Index(results, mark)
		if i < 0 {
			return
		}
		results = results[i+len(mark):]
		end := bytes.IndexByte(results, '"')
		if end < 0 {
			return
		}
		if name := results[:end]; bytes.IndexByte(name, '\\') < 0 {
			e.counts[string(name)]++
		}
	}
}

// Progress implements search.Sink.
func (e *events) Progress(s search.Summary) error {
	if e.own {
		e.send("progress", struct {
			Done bool `json:"done"`
			Summary
		}{s.Done, newSummary(s)})
	} else {
		p := newProgress(s)
		if s.Done && e.anonymous && s.Searched == 0 {
			p.Skipped = append(p.Skipped, schema.Skipped{Reason: "repository-missing", Title: "nothing was searched",
				Message: "No repository is public. Use an access token to search others.", Severity: "warn"})
		}
		e.send("progress", p)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken
}

func (e *events) send(name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("null")
	}
	e.write(name, text)
}

// write sends an event. Its data is JSON and contains no line break.
func (e *events) write(name string, data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf = append(append(append(e.buf[:0], "event: "...), name...), "\ndata: "...)
	e.buf = append(append(e.buf, data...), "\n\n"...)
	_ = e.flush()
}

// flush sends buf. The caller holds e.mu.
func (e *events) flush() error {
	if e.broken == nil {
		_, e.broken = e.w.Write(e.buf)
	}
	if e.broken == nil {
		e.broken = e.control.Flush()
	}
	return e.broken
}

// filters offers filters for the repositories with most results.
func (e *events) filters(s search.Summary) []schema.Filter {
	list := []schema.Filter{}
	for name, n := range e.counts {
		list = append(list, schema.Filter{Value: "repo:^" + quoteMeta(name) + "$", Label: name, Count: n, LimitHit: s.Limited,
			Kind: "repo"})
	}
	slices.SortFunc(list, func(a, b schema.Filter) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(a.Label, b.Label)
	})
	return list[:min(len(list), maxFilters)]
}

// quoteMeta escapes a name for a filter.
func quoteMeta(name string) string {
	var b strings.Builder
	for _, r := range name {
		if strings.ContainsRune(`\.+*?()|[]{}^$@ `, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// notices are the notices in Sourcegraph's format, without messages.
var notices = map[string]schema.Skipped{
	"branch": {Reason: "branch-unindexed", Title: "branch not searched", Severity: "warn"},
	"filter": {Reason: "unknown-filter", Title: "not a filter", Severity: "warn"},
	"files":  {Reason: "document-match-limit", Title: "files not searched", Severity: "info"},
}

// newProgress returns the progress of a search and the skipped parts, in Sourcegraph's format.
func newProgress(s search.Summary) schema.Progress {
	p := schema.Progress{
		Done: s.Done, MatchCount: s.Matches, DurationMs: s.Elapsed.Milliseconds(), RepositoriesCount: s.Searched,
		Skipped: []schema.Skipped{},
	}
	skip := func(reason, title, message, severity string) {
		p.Skipped = append(p.Skipped, schema.Skipped{Reason: reason, Title: title, Message: message, Severity: severity})
	}
	if s.Limited {
		skip("shard-match-limit", "limit reached",
			"There are more results. Use count:N or count:all, or a narrower query.", "info")
	}
	if s.TimedOut {
		skip("shard-timeout", "time limit reached",
			"There may be more results. Use timeout: to search for longer, or a narrower query.", "warn")
	}
	if n := len(s.Missing); n > 0 {
		skip("repository-missing", counted(n, "repository", "repositories")+" not searched",
			"Too large, or no index yet: "+listed(s.Missing)+".", "warn")
	}
	if n := len(s.Unindexed); n > 0 {
		skip("repository-unindexed", counted(n, "repository", "repositories")+" searched without an index",
			"No index yet: "+listed(s.Unindexed)+".", "info")
	}
	for _, n := range s.Notices {
		notice := notices[n.Reason]
		skip(notice.Reason, notice.Title, n.Message, notice.Severity)
	}
	var late []string
	for _, r := range s.Repositories {
		if r.Indexed != "" && r.Indexed != r.Current {
			late = append(late, r.Repository+" ("+lag(r)+")")
		}
	}
	if len(late) > 0 {
		skip("repository-stale", counted(len(late), "index", "indexes")+" behind", "Newer commits are not searched yet: "+
			listed(late)+".", "info")
	}
	return p
}

func lag(f search.Freshness) string {
	if f.Lag < 0 {
		return "behind"
	}
	return counted(f.Lag, "commit", "commits") + " behind"
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// listed returns the first of some names and the number of the others.
func listed(list []string) string {
	if len(list) <= maxNames {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:maxNames], ", ") + " and " + strconv.Itoa(len(list)-maxNames) + " more"
}
