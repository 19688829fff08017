package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// Repositories lists all repositories. Safe for concurrent use.
type Repositories interface {
	Repositories(ctx context.Context, each func(git.RepoPath) error) error
}

// APIOptions are the options of an API.
type APIOptions struct {
	Searcher     search.Searcher // nil: searches fail as unavailable
	Repositories Repositories    // nil: GraphQL lists no repositories
	// Status returns the state of the index, restricted to the repositories that may reports as readable. Nil means
	// that this server has no index.
	Status  func(may search.Readable) search.Status
	Version string    // of the server
	Built   time.Time // build time of the server

	Registerer prometheus.Registerer // of metrics; may be nil
}

// API serves Packhorse's and Sourcegraph's search APIs. Safe for concurrent use.
type API struct {
	APIOptions
	metrics *metrics
	graphql *graphQL
}

// NewAPI returns an API.
func NewAPI(o APIOptions) (*API, error) {
	a := &API{APIOptions: o, metrics: newMetrics(o.Registerer)}
	var err error
	a.graphql, err = newGraphQL()
	return a, err
}

const (
	apiPath     = "/-/api/v1/search"
	statusPath  = apiPath + "/status"
	streamPath  = "/.api/search/stream"
	graphqlPath = "/.api/graphql"
)

const (
	defaultResults = 500     // if neither the query nor the request has a limit
	allResults     = 1 << 20 // for count:all; the searcher has its own limit
	firstBytes     = 64 << 10
	maxForm        = 2 << 20 // bytes of a request body: the longest query, encoded as a form
)

// Has reports whether a path belongs to an API.
func (a *API) Has(path string) bool {
	return path == apiPath || path == statusPath || strings.HasPrefix(path, "/.api/")
}

// Serve answers a request. If it returns an error, it has sent no response or an incomplete one.
func (a *API) Serve(w http.ResponseWriter, r *http.Request, v search.Visitor) error {
	switch r.URL.Path {
	case apiPath:
		return a.serveSearch(w, r, v)
	case statusPath:
		return a.status(w, r, v)
	case streamPath:
		return a.stream(w, r, v)
	case graphqlPath:
		return a.serveGraphQL(w, r, v)
	}
	return fault.New(fault.NotFound, "unknown API: this server has %s and %s of Sourcegraph's APIs", streamPath,
		graphqlPath)
}

// parameters are the parameters of one search request. Zero values are not set.
type parameters struct {
	text    string
	kind    query.Kind
	limit   int // if the query has no count:
	most    int // also if the query has a higher count:
	timeout time.Duration
}

// serveSearch answers /-/api/v1/search. The parameters are in the URL, in a form or in JSON. The response is JSON, or
// server-sent events if the client accepts them.
func (a *API) serveSearch(w http.ResponseWriter, r *http.Request, v search.Visitor) error {
	if r.Method == http.MethodHead {
		return refuseMethod(w, "GET, POST")
	}
	values, err := readValues(r)
	if err == nil {
		var q parameters
		if q, err = readParameters(values); err == nil && strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			return a.events(w, r, v, q, "events", schema.APIEvents)
		} else if err == nil {
			return a.answer(w, r, v, q)
		}
	}
	if errors.Is(err, errMethod) {
		return refuseMethod(w, "GET, POST")
	}
	return sendFailure(w, err)
}

var errMethod = errors.New("method not allowed")

func refuseMethod(w http.ResponseWriter, allowed string) error {
	w.Header().Set("Allow", allowed)
	http.Error(w, "use "+allowed, http.StatusMethodNotAllowed)
	return nil
}

// readValues reads parameters from the URL, a form or a JSON object.
func readValues(r *http.Request) (url.Values, error) {
	switch r.Method {
	case http.MethodGet:
		values, err := url.ParseQuery(r.URL.RawQuery)
		return values, fault.Wrap(fault.Invalid, "invalid query string", err)
	case http.MethodPost:
	default:
		return nil, errMethod
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxForm+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxForm {
		return nil, fault.New(fault.Invalid, "search too long: at most %d bytes", maxForm)
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(string(body))
		return values, fault.Wrap(fault.Invalid, "invalid form", err)
	case "application/json":
		var object map[string]any
		if err := json.Unmarshal(body, &object); err != nil {
			return nil, fault.Wrap(fault.Invalid, "the request body is not a JSON object", err)
		}
		values := url.Values{}
		for key, value := range object {
			switch value := value.(type) {
			case string:
				values.Set(key, value)
			case float64:
				values.Set(key, strconv.FormatFloat(value, 'f', -1, 64))
			default:
				return nil, fault.New(fault.Invalid, "parameter %.20q: use a string or a number", key)
			}
		}
		return values, nil
	}
	return nil, fault.New(fault.Invalid,
		"unsupported content type: use application/json or application/x-www-form-urlencoded")
}

// readParameters reads the parameters of /-/api/v1/search.
func readParameters(values url.Values) (q parameters, err error) {
	for key, list := range values {
		if len(list) != 1 {
			return q, fault.New(fault.Invalid, "parameter %.20q is set %d times", key, len(list))
		}
		switch value := list[0]; key {
		case "q":
			q.text = value
		case "count":
			if q.limit, err = strconv.Atoi(value); err != nil || q.limit < 1 {
				return q, fault.New(fault.Invalid, "invalid count %.40q: use a number from 1", value)
			}
		case "timeout":
			if strings.Trim(value, "0123456789") == "" {
				value += "s"
			}
			if q.timeout, err = time.ParseDuration(value); err != nil || q.timeout <= 0 {
				return q, fault.New(fault.Invalid, "invalid timeout %.40q: use a duration, as in 10s", value)
			}
		case "patterntype":
			var ok bool
			if q.kind, ok = query.KindOf(value); !ok {
				return q, fault.New(fault.Invalid, "invalid patterntype %.40q: use auto, literal or regexp", value)
			}
		default:
			return q, fault.New(fault.Invalid, "unknown parameter %.20q: use q, count, timeout and patterntype", key)
		}
	}
	if !values.Has("q") {
		return q, fault.New(fault.Invalid, "empty query: use q, as in "+apiPath+"?q=repo:team/+func+main")
	}
	return q, nil
}

// request returns the request for the searcher.
func (a *API) request(q parameters, v search.Visitor, format schema.Format) (search.Request, error) {
	if a.Searcher == nil {
		return search.Request{}, fault.New(fault.Unavailable, "this server has no search")
	}
	parsed, err := query.ParseAs(cmp.Or(q.kind, query.Auto), q.text)
	if err != nil {
		return search.Request{}, err
	}
	own := *parsed // a copy without limits: they are in r
	r := search.Request{Query: &own, Format: format, May: v.Reader(), Timeout: q.timeout}
	if own.Timeout > 0 {
		r.Timeout = own.Timeout
	}
	switch {
	case own.Count == query.All:
		r.Limit = allResults
	case own.Count > 0:
		r.Limit = min(own.Count, allResults)
	case q.limit > 0:
		r.Limit = min(q.limit, allResults)
	default:
		r.Limit = defaultResults
	}
	if q.most > 0 {
		r.Limit = min(r.Limit, q.most)
	}
	own.Count, own.Timeout = 0, 0
	return r, nil
}

// failure is an error in a response of Packhorse's API.
type failure struct {
	Message string `json:"message"`
	Offset  *int   `json:"offset,omitempty"` // of the invalid part of the query, in bytes
	Length  int    `json:"length,omitempty"`
}

func newFailure(err error) failure {
	f := failure{Message: fault.Message(err)}
	if bad, ok := errors.AsType[*query.Error](err); ok && bad.Length > 0 {
		f.Offset, f.Length = &bad.Offset, bad.Length
	}
	return f
}

// sendFailure answers invalid requests with 400. It returns other errors to the caller, which answers them.
func sendFailure(w http.ResponseWriter, err error) error {
	if !fault.Is(err, fault.Invalid) {
		return err
	}
	text, _ := json.Marshal(map[string]failure{"error": newFailure(err)})
	header(w.Header(), "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, err = w.Write(append(text, '\n'))
	return err
}

func header(h http.Header, contentType string) {
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
}

// Summary is the summary of a search in a response of Packhorse's API.
type Summary struct {
	Results      int                `json:"result_count"`
	Matches      int                `json:"match_count"`
	Limited      bool               `json:"limited"` // there are or may be more results
	TimedOut     bool               `json:"timed_out"`
	Elapsed      float64            `json:"elapsed_ms"`
	Searched     int                `json:"repositories_searched"`
	Repositories []search.Freshness `json:"repositories"` // with results, and the state of their indexes
	Unindexed    []string           `json:"unindexed"`
	Missing      []string           `json:"missing"`
	Notices      []search.Notice    `json:"notices"` // ignored parts of the query
}

func newSummary(s search.Summary) Summary {
	return Summary{
		Results: s.Results, Matches: s.Matches, Limited: s.Limited, TimedOut: s.TimedOut,
		Elapsed: float64(s.Elapsed.Microseconds()) / 1000, Searched: s.Searched,
		Repositories: append([]search.Freshness{}, s.Repositories...), Unindexed: append([]string{}, s.Unindexed...),
		Missing: append([]string{}, s.Missing...),
		Notices: append([]search.Notice{}, s.Notices...),
	}
}

// answer sends one JSON object: {"results":[...],"summary":{...}}.
func (a *API) answer(w http.ResponseWriter, r *http.Request, v search.Visitor, q parameters) (err error) {
	defer func() { a.metrics.count("json", err) }()
	request, err := a.request(q, v, schema.API)
	if err != nil {
		return sendFailure(w, err)
	}
	header(w.Header(), "application/json")
	whole := resultArrays.Get().(*resultArray)
	defer whole.release()
	whole.w, whole.buf = w, append(whole.buf[:0], `{"results":[`...)
	summary, err := a.Searcher.Search(r.Context(), request, whole)
	note(v, summary)
	if err != nil {
		w.Header().Del("Content-Type")
		if !whole.begun {
			return sendFailure(w, err)
		}
		return err
	}
	end, err := json.Marshal(newSummary(summary))
	if err != nil {
		return err
	}
	if !whole.begun {
		w.Header().Set("Server-Timing", serverTiming(summary))
	}
	return whole.end(end)
}

// serverTiming returns the durations of a search in milliseconds (W3C Server Timing): "index" in the search process,
// and "link" on the way to it and back.
func serverTiming(s search.Summary) string {
	text := strconv.AppendFloat(append(make([]byte, 0, 48), "index;dur="...), float64(s.Index.Nanoseconds())/1e6, 'f', 3,
		64)
	return string(strconv.AppendFloat(append(text, ", link;dur="...), float64(s.Link.Nanoseconds())/1e6, 'f', 3, 64))
}

// status sends the state of the index.
func (a *API) status(w http.ResponseWriter, r *http.Request, v search.Visitor) error {
	if r.Method != http.MethodGet {
		return refuseMethod(w, "GET")
	}
	if a.Status == nil {
		return fault.New(fault.NotFound, "this server has no search index")
	}
	text, err := json.Marshal(a.Status(v.Reader()))
	if err != nil {
		return err
	}
	header(w.Header(), "application/json")
	_, err = w.Write(append(text, '\n'))
	return err
}

// note adds the result of a search to the log line.
func note(v search.Visitor, s search.Summary) {
	v.Note(slog.Int("results", s.Results), slog.Bool("limited", s.Limited), slog.Bool("timed_out", s.TimedOut))
}

// resultArray writes results into a JSON array. A short response is sent at once, with its length.
type resultArray struct {
	w     http.ResponseWriter
	buf   []byte
	begun bool // a part was sent
	comma bool
}

// resultArrays keeps buffers for other requests.
var resultArrays = sync.Pool{New: func() any { return &resultArray{buf: make([]byte, 0, 16<<10)} }}

// release returns the array to the pool. The caller must not use it afterwards.
func (o *resultArray) release() {
	*o = resultArray{buf: o.buf}
	if cap(o.buf) <= 4*firstBytes {
		resultArrays.Put(o)
	}
}

// Matches implements search.Sink.
func (o *resultArray) Matches(b search.Batch) error {
	if len(b.JSON) == 0 {
		return nil
	}
	if o.comma {
		o.buf = append(o.buf, ',')
	}
	o.comma = true
	if len(o.buf)+len(b.JSON) <= firstBytes {
		o.buf = append(o.buf, b.JSON...)
		return nil
	}
	o.begun = true
	if _, err := o.w.Write(o.buf); err != nil {
		return err
	}
	o.buf = o.buf[:0]
	_, err := o.w.Write(b.JSON)
	return err
}

// Progress implements search.Sink.
func (o *resultArray) Progress(search.Summary) error { return nil }

// end writes the rest of the response.
func (o *resultArray) end(summary []byte) error {
	o.buf = append(append(append(o.buf, `],"summary":`...), summary...), "}\n"...)
	if !o.begun {
		o.w.Header().Set("Content-Length", strconv.Itoa(len(o.buf)))
	}
	_, err := o.w.Write(o.buf)
	return err
}
